"""The judge is itself judged: what it must let pass, and what it must not."""

from typing import Any

import pytest

from tests.judge import Judge, Violation

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"roots": {}},
        "clientInfo": {"name": "c", "version": "1"},
    },
}
INITIALIZED = {
    "jsonrpc": "2.0",
    "id": 0,
    "result": {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}},
}
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "t", "arguments": {}, "_meta": {"progressToken": 7}},
}


@pytest.fixture
def judge() -> Judge:
    judge = Judge()
    judge.sent(INITIALIZE)
    judge.received(INITIALIZED)
    judge.sent(CALL)
    return judge


def test_a_sound_conversation_passes_with_the_version_of_the_answer(judge: Judge) -> None:
    judge.received(_notification("notifications/progress", {"progressToken": 7, "progress": 0.5}))
    judge.received({"jsonrpc": "2.0", "id": "q", "method": "roots/list"})
    judge.received({"jsonrpc": "2.0", "id": 1, "result": {"content": [], "unknown": {"kept": True}}})
    assert judge.version == "2025-06-18"
    assert judge.verdicts == 4


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"id": 1, "result": {"content": []}}, id="no jsonrpc member"),
        pytest.param({"jsonrpc": "2.0", "id": "1", "result": {"content": []}}, id="an id of another type"),
        pytest.param({"jsonrpc": "2.0", "id": 1, "result": {"content": "text"}}, id="a result of another shape"),
        pytest.param({"jsonrpc": "2.0", "id": 1, "error": {"message": "no code"}}, id="an error without code"),
        pytest.param({"jsonrpc": "2.0", "id": 5, "method": "sampling/createMessage"}, id="a question without params"),
        pytest.param({"jsonrpc": "2.0", "id": 5, "method": "tools/list"}, id="a question that is no server's"),
        pytest.param(
            {"jsonrpc": "2.0", "method": "notifications/elicitation/complete", "params": {"elicitationId": "e"}},
            id="a notification of a later version",
        ),
        pytest.param(
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": "7", "progress": 1}},
            id="progress on a token of another type",
        ),
        pytest.param(
            {
                "jsonrpc": "2.0",
                "id": 5,
                "method": "elicitation/create",
                "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
            },
            id="a question that the client did not declare",
        ),
    ],
)
def test_a_message_that_should_not_be_is_a_violation(judge: Judge, message: dict[str, Any]) -> None:
    with pytest.raises(Violation):
        judge.received(message)


def test_progress_after_the_result_is_a_violation(judge: Judge) -> None:
    judge.received({"jsonrpc": "2.0", "id": 1, "result": {"content": []}})
    with pytest.raises(Violation, match="token of no request in flight"):
        judge.received(_notification("notifications/progress", {"progressToken": 7, "progress": 1}))


def test_a_second_answer_is_a_violation(judge: Judge) -> None:
    judge.received({"jsonrpc": "2.0", "id": 1, "result": {"content": []}})
    with pytest.raises(Violation, match="answered already"):
        judge.received({"jsonrpc": "2.0", "id": 1, "result": {"content": []}})


def test_a_stateless_answer_is_judged_by_the_version_of_its_request() -> None:
    judge = Judge()
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
    judge.sent({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}})
    with pytest.raises(Violation, match="resultType"):
        judge.received({"jsonrpc": "2.0", "id": 1, "result": {"tools": []}})


@pytest.mark.parametrize(
    "flaw", [{"status": "done"}, {"status": "completed"}, {"status": "failed", "result": {}}, {"ttlMs": "long"}]
)
def test_the_state_of_a_task_of_the_extension_must_say_what_its_status_promises(flaw: dict[str, Any]) -> None:
    judge = Judge()
    judge.version = "2026-07-28"
    times = {"createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z", "ttlMs": None}
    good = {"taskId": "1", "status": "working", **times}
    judge.received(_notification("notifications/tasks", good))
    with pytest.raises(Violation):
        judge.received(_notification("notifications/tasks", {**good, **flaw}))


def _notification(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}
