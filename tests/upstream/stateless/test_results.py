"""What a result of the stateless era is."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from mcproxy.call.calls import Complete, InputRequired, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.protocol.jsonrpc import first_level, parse_object, raw
from mcproxy.protocol.methods import METHODS
from mcproxy.protocol.tasks import EXTENSION
from mcproxy.upstream.stateless.dialect import Malformed, read_result

CALL = METHODS["tools/call"]
LIST = METHODS["tools/list"]


def read(extensions: Collection[str] = (), **members: Any) -> Outcome:
    return read_result(first_level(members), CALL, extensions)


@pytest.mark.parametrize("result", [b'{"content":[]}', b'{ "resultType": "complete", "odd": 1.0 }'])
def test_a_final_result_passes_as_it_is(result: bytes) -> None:
    members = parse_object(result)
    passed = read_result(members, CALL)
    assert isinstance(passed, Complete)
    assert passed.result is members


def test_a_request_for_input_holds_its_questions_its_state_and_the_whole() -> None:
    ask = {"a": {"method": "elicitation/create", "params": {"message": "who?", "_meta": {"progressToken": 1}}}}
    required = read(resultType="input_required", inputRequests=ask, requestState="s", _meta={"kept": 1})
    assert isinstance(required, InputRequired)
    assert required.requests == {"a": InputRequest("elicitation/create", {"message": raw("who?")})}
    assert required.state == "s"
    assert required.result["_meta"] == raw({"kept": 1})


def test_a_request_for_input_may_hold_a_state_alone_or_a_question_without_params() -> None:
    assert isinstance(read(resultType="input_required", requestState=""), InputRequired)
    required = read(resultType="input_required", inputRequests={"r": {"method": "roots/list"}})
    assert isinstance(required, InputRequired)
    assert required.requests == {"r": InputRequest("roots/list", {})}
    assert required.state is None


def test_a_request_for_input_may_write_null_for_what_it_leaves_out() -> None:
    required = read(resultType="input_required", inputRequests=None, requestState="s", odd=None)
    left = first_level({"resultType": "input_required", "requestState": "s", "odd": None})
    assert required == InputRequired({}, "s", left)
    required = read(resultType="input_required", inputRequests={"r": {"method": "roots/list"}}, requestState=None)
    assert isinstance(required, InputRequired)
    assert (required.state, "requestState" in required.result) == (None, False)


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"inputRequests": None, "requestState": None},
        {"inputRequests": {}},
        {"inputRequests": []},
        {"inputRequests": {"a": {}}},
        {"inputRequests": {"a": {"method": "tools/call", "params": {}}}},
        {"requestState": 7},
    ],
)
def test_a_request_for_input_that_cannot_be_met_is_malformed(members: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match="it asks for"):
        read(resultType="input_required", **members)


def test_only_some_requests_may_be_answered_by_a_question() -> None:
    with pytest.raises(Malformed, match="tools/list"):
        read_result(first_level({"resultType": "input_required", "requestState": "s"}), LIST)


def test_an_unknown_type_of_result_passes_only_where_an_extension_is_shared() -> None:
    with pytest.raises(Malformed, match="odd"):
        read(resultType="odd", value="1")
    passed = read({"org.example/odd"}, resultType="odd", value="1")
    assert passed == Complete(first_level({"resultType": "odd", "value": "1"}))


def test_a_task_answers_only_clients_with_the_extension_of_tasks_and_only_what_may_become_one() -> None:
    task = {"resultType": "task", "taskId": "1"}
    assert read({EXTENSION}, **task) == Complete(first_level(task))
    with pytest.raises(Malformed, match="task"):
        read({"org.example/odd"}, **task)
    with pytest.raises(Malformed, match="task"):
        read_result(first_level(task), LIST, {EXTENSION})


def test_a_type_that_is_no_text_is_malformed() -> None:
    with pytest.raises(Malformed):
        read(resultType=1)


@pytest.mark.parametrize("method", ["novel/ask", "tools/call"])
def test_a_question_of_an_extension_is_one_where_both_sides_have_such_an_extension(method: str) -> None:
    asked = first_level({"resultType": "input_required", "inputRequests": {"q": {"method": method}}})
    with pytest.raises(Malformed, match="that no client can be asked for"):
        read_result(asked, CALL)
    if method == "novel/ask":
        assert isinstance(read_result(asked, CALL, asks_more=True), InputRequired)
        return
    with pytest.raises(Malformed, match="that no client can be asked for"):
        read_result(asked, CALL, asks_more=True)
