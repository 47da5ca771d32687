"""The twin of `mcproxy.gateway.input.request_state`."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.calls import Call
from mcproxy.call.errors import McpError
from mcproxy.call.identity import Caller, Principal
from mcproxy.gateway.input.request_state import (
    MAX_CANONICAL,
    AfterLogin,
    Continuation,
    Parked,
    Relayed,
    RequestStates,
)
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, Params, raw
from mcproxy.protocol.methods import row_of
from mcproxy.sealing import Sealer, label_of
from tests.fakes.upstream import FakeClient

RELAYED = Relayed("up", "the upstream's own")
NOW = 1000.0


def a_call(principal: str = "ada", endpoint: str = "", method: str = "tools/call", **params: object) -> Call:
    members = {"name": "greet", "arguments": {"a": 1, "b": [1.5, "x"]}, **params}
    caller = Caller(Principal(principal), LATEST, endpoint=endpoint)
    return Call(row_of(method), {key: raw(value) for key, value in members.items()}, caller, FakeClient())


def carrying(call: Call, token: object) -> Call:
    return call.with_params({**call.params, "requestState": raw(token)})


def states(secret: bytes = b"secret") -> RequestStates:
    return RequestStates(Sealer(secret))


def refusal(call: Call, token: object, now: float = NOW) -> str:
    with pytest.raises(McpError) as refused:
        states().open(carrying(call, token), now)
    assert refused.value.code == INVALID_PARAMS
    return refused.value.message


@pytest.mark.parametrize("continuation", [RELAYED, Parked("id", 3)])
def test_a_retry_continues_what_its_state_says(continuation: Relayed | Parked) -> None:
    token = states().issue(a_call(), continuation, NOW + 1)
    assert states().open(carrying(a_call(), token), NOW) == continuation


@pytest.mark.parametrize(
    ("continuation", "home"),
    [
        (RELAYED, ""),
        (Parked("id", 3), "replica"),
        (Relayed("up", "the upstream's own", "an approval"), "replica"),
        (AfterLogin(RELAYED, "", NOW), ""),
        (AfterLogin(Relayed("up", None, "an approval"), "", NOW), "replica"),
        (AfterLogin(None, "", NOW), ""),
    ],
)
def test_what_lives_in_one_replica_names_it(continuation: Continuation, home: str) -> None:
    sealer = Sealer(b"secret", label="replica")
    token = RequestStates(sealer).issue(a_call(), continuation, NOW + 1)
    assert label_of(token) == home
    assert RequestStates(sealer).open(carrying(a_call(), token), NOW) == continuation


def test_what_changes_between_attempts_does_not_matter() -> None:
    token = states().issue(a_call(_meta={"traceparent": "1"}, requestState="older"), RELAYED, NOW + 1)
    retry = a_call(_meta={"traceparent": "2"}, inputResponses={"1": {}})
    assert states().open(carrying(retry, token), NOW) == RELAYED


def test_the_same_arguments_may_be_spelled_otherwise() -> None:
    token = states().issue(a_call(), RELAYED, NOW + 1)
    params: Params = {"arguments": Raw(b'{ "b": [1.50, "\\u0078"], "a": 1 }'), "name": raw("greet")}
    assert states().open(carrying(replace(a_call(), params=params), token), NOW) == RELAYED


@pytest.mark.parametrize(
    "other",
    [
        a_call("eve"),
        a_call(endpoint="up"),
        a_call(method="prompts/get"),
        a_call(name="other"),
        a_call(arguments={"a": 2, "b": [1.5, "x"]}),
        a_call(arguments={"a": True, "b": [1.5, "x"]}),
        a_call(extra=1),
    ],
)
def test_a_state_is_no_good_for_another_request(other: Call) -> None:
    token = states().issue(a_call(), RELAYED, NOW + 1)
    assert "another request" in refusal(other, token)


def test_a_state_expires() -> None:
    token = states().issue(a_call(), RELAYED, NOW)
    assert "expired" in refusal(a_call(), token)


@pytest.mark.parametrize("token", ["", "x", "a" * 100, "ü", 7, None, {"a": 1}])
def test_what_is_no_state_is_refused(token: object) -> None:
    assert "not one that this gateway gave" in refusal(a_call(), token)


def test_a_state_of_another_key_or_purpose_is_refused() -> None:
    of_another_key = states(b"other").issue(a_call(), RELAYED, NOW + 1)
    of_another_purpose = Sealer(b"secret").seal("cursor", b"{}")
    not_a_state = Sealer(b"secret").seal("requestState", b"{}")
    for token in (of_another_key, of_another_purpose, not_a_state):
        assert "not one that this gateway gave" in refusal(a_call(), token)


ALPHABET = string.ascii_letters + string.digits + "-_"


@given(st.data())
def test_no_changed_character_passes(data: st.DataObject) -> None:
    token = states().issue(a_call(), RELAYED, NOW + 1)
    place = data.draw(st.integers(0, len(token) - 2))  # the last character may hold bits that nobody reads
    # Tokens differ from run to run, and what is drawn must not: the letter some way further in the alphabet.
    other = ALPHABET[(ALPHABET.index(token[place]) + data.draw(st.integers(1, len(ALPHABET) - 1))) % len(ALPHABET)]
    assert "not one that this gateway gave" in refusal(a_call(), token[:place] + other + token[place + 1 :])


def test_a_state_shows_nothing_of_what_it_holds() -> None:
    token = states().issue(a_call(), RELAYED, NOW + 1)
    assert "upstream" not in token
    assert token != states().issue(a_call(), RELAYED, NOW + 1)


def test_arguments_too_deep_to_understand_are_bound_by_their_bytes() -> None:
    deep = Raw(b"[" * 5000 + b"]" * 5000)
    call = a_call(arguments=deep)
    token = states().issue(call, RELAYED, NOW + 1)
    assert states().open(carrying(call, token), NOW) == RELAYED
    deeper = a_call(arguments=Raw(b"[" * 5001 + b"]" * 5001))
    assert "another request" in refusal(deeper, token)


def test_r78_arguments_that_are_very_long_are_bound_by_their_bytes() -> None:
    text = b"x" * MAX_CANONICAL
    call = a_call(arguments=Raw(b'{"a":"%b"}' % text))
    token = states().issue(call, RELAYED, NOW + 1)
    assert states().open(carrying(call, token), NOW) == RELAYED
    for spelled in (b'{"a": "%b"}' % text, b'{"a":"%b"}' % (text[1:] + b"y")):
        assert "another request" in refusal(a_call(arguments=Raw(spelled)), token)


def test_large_numbers_are_told_apart() -> None:
    token = states().issue(a_call(arguments=Raw(b"123456789012345678901234567890")), RELAYED, NOW + 1)
    assert "another request" in refusal(a_call(arguments=Raw(b"123456789012345678901234567891")), token)
