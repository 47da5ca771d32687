"""What the upstream says, and to whom it says nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.answers import (
    KEPT,
    MARK,
    PAGE_BYTES,
    Listening,
    Reply,
    Silence,
    Stepwise,
    Watching,
    Whole,
    read,
    reply,
    updated,
)

Json = dict[str, Any]


def answer(method: str, params: Json | None = None, id: object = 7, tools: int = 1) -> Reply:
    message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}
    return reply(read(json.dumps(message).encode()), tools)


def result(said: Reply) -> Json:
    assert isinstance(said, Whole)
    body: Json = json.loads(said.body)["result"]
    return body


def test_a_text_has_the_size_that_was_asked_for_and_the_mark() -> None:
    text = result(answer("tools/call", {"name": "echo", "arguments": {"size": 4000}}))["content"][0]["text"]
    assert len(text) == 4000
    assert text.startswith(MARK)


@pytest.mark.parametrize("id", [7, "7"])
def test_an_answer_has_the_id_of_its_request(id: object) -> None:
    said = answer("ping", id=id)
    assert isinstance(said, Whole)
    assert json.loads(said.body) == {"jsonrpc": "2.0", "id": id, "result": {}}


def test_progress_comes_before_the_answer_under_the_token_of_the_caller() -> None:
    said = answer("tools/call", {"name": "echo", "arguments": {"steps": 2}, "_meta": {"progressToken": "t"}})
    assert isinstance(said, Stepwise)
    *steps, last = map(json.loads, said.bodies)
    assert [step["params"] for step in steps] == [{"progressToken": "t", "progress": n} for n in (1, 2)]
    assert last["id"] == 7


def test_only_kept_pages_may_be_cached() -> None:
    kept = result(answer("resources/read", {"uri": f"{KEPT}1"}))
    fresh = result(answer("resources/read", {"uri": "bench://fresh/1"}))
    assert (kept["ttlMs"], kept["cacheScope"]) == (3_600_000, "public")
    assert (fresh["ttlMs"], fresh["cacheScope"]) == (0, "private")
    assert len(fresh["contents"][0]["text"]) == PAGE_BYTES


def test_as_many_tools_are_listed_as_there_are() -> None:
    tools = result(answer("tools/list", tools=300))["tools"]
    assert len({tool["name"] for tool in tools}) == 300


def test_a_subscription_says_which_resource_it_is_about() -> None:
    said = answer("resources/subscribe", {"uri": "bench://x"})
    assert isinstance(said, Watching)
    assert (said.uri, said.wanted) == ("bench://x", True)


def test_a_listener_is_told_of_what_it_asked_for_under_the_id_of_its_request() -> None:
    said = answer("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["bench://x"]}}, id="s")
    assert isinstance(said, Listening)
    assert json.loads(said.first)["params"]["notifications"] == {"resourceSubscriptions": ["bench://x"]}
    told = json.loads(updated("bench://x", said.tag))["params"]
    assert told == {"uri": "bench://x", "_meta": {"io.modelcontextprotocol/subscriptionId": "s"}}


def test_a_notification_is_not_answered() -> None:
    said = reply(read(b'{"jsonrpc":"2.0","method":"notifications/initialized"}'), 1)
    assert isinstance(said, Silence)


def test_an_unknown_method_is_an_error() -> None:
    said = answer("tools/paint")
    assert isinstance(said, Whole)
    assert json.loads(said.body)["error"]["code"] == -32601
