"""Who hears of a task between the answer that made it and its end."""

from __future__ import annotations

import pytest

from mcproxy.protocol.jsonrpc import ErrorObject, ErrorResponse, Params, RequestId, Response, raw
from mcproxy.upstream.handshake.dialect import TaskClients
from tests.upstream.support import FakeClient, request, tool


def progress(token: RequestId) -> Params:
    return {"progressToken": raw(token), "progress": raw(1)}


def made(task_clients: TaskClients, token: int, task: str) -> FakeClient:
    """The client of a call that became a task."""
    client = FakeClient()
    task_clients.answered(token, tool("t", client=client), Response(token, {"task": raw({"taskId": task})}))
    return client


def heard(client: FakeClient) -> int:
    return len(client.told)


@pytest.mark.parametrize("token", [1, "1"])
def test_progress_goes_to_the_client_whose_token_it_has(token: RequestId) -> None:
    task_clients = TaskClients(2)
    one, other = made(task_clients, 1, "a"), made(task_clients, 2, "b")
    task_clients.progress(progress(token))
    assert one.told == [("notifications/progress", {"progress": 1})]
    assert not other.told
    assert (task_clients.find("a"), task_clients.find("b")) == (one, other)


def test_who_is_no_task_or_names_none_is_found_by_nothing() -> None:
    task_clients = TaskClients(2)
    task_clients.answered(1, tool("t"), Response(1, {"content": raw([])}))
    task_clients.answered(2, tool("t"), ErrorResponse(2, ErrorObject(-1, "no")))
    for params in (progress(1), progress(2), {}):
        task_clients.progress(params)
    assert task_clients.find(None) is None
    assert task_clients.find("a") is None


@pytest.mark.parametrize(
    "over",
    [
        ("tasks/result", Response(9, {"content": raw([])})),
        ("tasks/result", ErrorResponse(9, ErrorObject(-1, "failed"))),
        ("tasks/get", Response(9, {"status": raw("completed")})),
        ("tasks/cancel", Response(9, {"status": raw("cancelled")})),
    ],
)
def test_a_task_that_is_over_is_told_of_no_more(over: tuple[str, Response | ErrorResponse]) -> None:
    task_clients = TaskClients(2)
    client = made(task_clients, 1, "a")
    task_clients.answered(8, request("tasks/get", taskId="a"), Response(8, {"status": raw("working")}))
    assert task_clients.find("a") is client
    method, answer = over
    task_clients.answered(9, request(method, taskId="a"), answer)
    task_clients.progress(progress(1))
    assert task_clients.find("a") is None
    assert not client.told


def test_a_server_may_tell_itself_that_a_task_is_over() -> None:
    task_clients = TaskClients(2)
    client = made(task_clients, 1, "a")
    task_clients.changed("a", {"status": raw("input_required")})
    assert task_clients.find("a") is client
    task_clients.changed("a", {"status": raw("failed")})
    assert task_clients.find("a") is None


def test_the_oldest_give_way() -> None:
    task_clients = TaskClients(2)
    clients = [made(task_clients, token, task) for token, task in enumerate(("a", "b", "a", "c"), 1)]
    for token in range(1, 5):
        task_clients.progress(progress(token))
    assert [heard(client) for client in clients] == [0, 0, 1, 1]
