"""The twin of `mcproxy.cluster.homes`."""

from __future__ import annotations

import json

import pytest

from mcproxy.cluster.homes import (
    NOWHERE,
    Home,
    HomeKind,
    answered_label,
    body_home,
    names_something,
    names_stream,
    opens_stream,
    session_home,
    stream_home,
)


def body(**params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "any", "params": params}).encode()


def test_a_session_lives_where_its_label_says() -> None:
    assert session_home("a1.sealed") == Home(HomeKind.SESSION, "a1.sealed", "a1")
    assert session_home("sealed").label == ""


def test_a_stream_of_2024_11_05_lives_where_the_label_in_its_url_says() -> None:
    assert names_stream("/messages?session_id=a1.ff")
    assert stream_home("/messages?x=1&session_id=a1.ff") == Home(HomeKind.STREAM, "a1.ff", "a1")
    assert stream_home("/messages?session_id=").label == ""


@pytest.mark.parametrize(
    ("params", "home"),
    [
        ({"requestState": "a1.sealed"}, Home(HomeKind.PARKED, "a1.sealed", "a1")),
        ({"requestState": "sealed"}, NOWHERE),
        ({"taskId": "b2.sealed"}, Home(HomeKind.TASK, "b2.sealed", "b2")),
        ({"notifications": {"taskIds": ["sealed", "b2.sealed"]}}, Home(HomeKind.TASK, "b2.sealed", "b2")),
        ({"taskId": "sealed"}, NOWHERE),
        ({"uri": "mcproxy-result:c3.sealed/0-9"}, Home(HomeKind.RESULT, "mcproxy-result:c3.sealed/0-9", "c3")),
        ({"uri": "mcproxy-result:sealed"}, NOWHERE),
    ],
)
def test_a_body_names_a_parked_call_a_task_or_a_kept_result(params: dict[str, object], home: Home) -> None:
    assert names_something(body(**params))
    assert body_home(body(**params)) == home


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b'{"params":7}', b'{"params":{"requestState":7}}', b'{"params":{"taskIds":"x"}}', b"\xff"],
)
def test_a_body_that_cannot_be_read_names_nothing(text: bytes) -> None:
    assert body_home(text) == NOWHERE
    assert answered_label(text) in {None, ""}


def test_streams_of_changes_are_told_from_those_that_answer_calls() -> None:
    assert opens_stream("GET", b"")
    assert opens_stream("POST", body(notifications={"taskIds": ["a1.sealed"]}))
    assert not opens_stream("POST", body(taskId="a1.sealed"))
    assert not opens_stream("DELETE", b"")


def test_an_ordinary_body_names_nothing() -> None:
    assert not names_something(body(name="tool", arguments={"text": "x" * 100}))
    assert body_home(body(name="tool")) == NOWHERE


@pytest.mark.parametrize(
    ("message", "label"),
    [
        ({"id": "a1.7", "result": {}}, "a1"),
        ({"id": "a1.7", "error": {"code": 1, "message": ""}}, "a1"),
        ({"id": 7, "result": {}}, ""),
        ({"method": "notifications/cancelled", "params": {}}, ""),
        ({"id": "a1.7", "method": "tools/call"}, None),
    ],
)
def test_an_answer_of_a_client_is_for_the_process_that_asked(message: dict[str, object], label: str | None) -> None:
    assert answered_label(json.dumps(message).encode()) == label
