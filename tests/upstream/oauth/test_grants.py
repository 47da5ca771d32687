"""The life of a grant: every edge of its table, and what it says to send."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mcproxy.upstream.oauth.grants import JITTER, OLD, TRANSITIONS, Grant, GrantEvent, GrantLife, GrantState
from mcproxy.upstream.oauth.registration import ClientIdentity
from mcproxy.upstream.oauth.tokens import Token


def grant(*, expires_at: float | None = 1100, refresh: str | None = "r", generation: int = 1) -> Grant:
    token = Token(f"access-{generation}", expires_at, 1000, refresh)
    return Grant("up", "https://a", "https://a", "https://as", ClientIdentity("me"), (), token, generation)


ACTIONS: dict[GrantEvent, Callable[[GrantLife], None]] = {
    GrantEvent.REQUESTED: GrantLife.requested,
    GrantEvent.GRANTED: lambda life: life.granted(grant()),
    GrantEvent.UNAVAILABLE: lambda life: life.unavailable("busy"),
    GrantEvent.REFUSED: lambda life: life.refused("no"),
    GrantEvent.DISCARDED: GrantLife.discarded,
}
PATHS = {
    GrantState.WANTED: (),
    GrantState.REQUESTING: (GrantEvent.REQUESTED,),
    GrantState.SERVING: (GrantEvent.GRANTED,),
    GrantState.REFRESHING: (GrantEvent.GRANTED, GrantEvent.REQUESTED),
    GrantState.REFUSED: (GrantEvent.REFUSED,),
}


def reached(state: GrantState) -> GrantLife:
    life = GrantLife()
    for event in PATHS[state]:
        ACTIONS[event](life)
    assert life.state is state
    return life


@pytest.mark.parametrize("state", GrantState)
@pytest.mark.parametrize("event", GrantEvent)
def test_a_grant_goes_where_the_table_says_and_nowhere_else(state: GrantState, event: GrantEvent) -> None:
    life = reached(state)
    if event not in TRANSITIONS[state]:
        with pytest.raises(KeyError):
            ACTIONS[event](life)
        return
    ACTIONS[event](life)
    assert life.state is TRANSITIONS[state][event]


def test_a_token_is_sent_until_its_end() -> None:
    life = GrantLife()
    assert life.token(0) is None
    life.granted(grant(expires_at=1100))
    assert life.token(1099.9) is not None
    assert life.token(1100) is None
    life.granted(grant(expires_at=None))
    assert life.token(10**9) is not None


@pytest.mark.parametrize("jitter", [0, 0.5, 1])
def test_a_token_is_old_after_three_quarters_of_its_life_or_a_little_before(jitter: float) -> None:
    life = GrantLife(jitter)
    life.granted(grant(expires_at=1100))
    old = 1000 + 100 * (OLD - JITTER * jitter)
    assert not life.is_old(old - 0.001)
    assert life.is_old(old)
    life.requested()
    assert not life.is_old(old), "a new one is requested already"


def test_r65_a_request_without_an_answer_drops_no_token() -> None:
    life = reached(GrantState.REFRESHING)
    life.unavailable("busy")
    assert life.token(1000) is not None
    assert life.reason == "busy"


def test_a_refused_grant_sends_nothing_and_keeps_the_reason() -> None:
    life = reached(GrantState.REFRESHING)
    life.refused("invalid_grant")
    assert life.token(1000) is None
    assert life.reason == "invalid_grant"
    life.granted(grant())
    assert life.reason is None


def test_r65_a_grant_that_is_not_renewed_serves_until_its_token_ends() -> None:
    life = reached(GrantState.REFRESHING)
    life.not_renewed("invalid_grant")
    assert life.state is GrantState.REFUSED
    assert life.reason == "invalid_grant"
    assert life.token(1099) is not None
    assert not life.is_old(1099), "no renewal is begun again"
    assert life.token(1100) is None


def test_r64_a_refresh_changes_the_token_and_its_generation_alone() -> None:
    first = grant()
    second = first.renewed(Token("new", 2000, 1500, None))
    assert (second.token.access, second.token.refresh, second.generation) == ("new", "r", 2)
    assert (second.upstream, second.resource, second.client) == (first.upstream, first.resource, first.client)
    assert second.renewed(Token("newer", 2000, 1500, "other")).token.refresh == "other"
