"""The twin of `mcproxy.gateway.listings.listeners`: who may hear which notice."""

from __future__ import annotations

import pytest

from mcproxy.call.clients import Notice
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import ELICITATION_COMPLETE, LOG_MESSAGE
from tests.fakes.upstream import FakeUpstream, house

pytestmark = pytest.mark.anyio

OWN_LINKS = {"own": {"connection": "session"}}


def line(level: str) -> Notice:
    return Notice(LOG_MESSAGE, {"level": raw(level), "data": raw("x")}, level)


async def test_log_messages_reach_those_whose_level_admits_them() -> None:
    async with house(FakeUpstream("a"), FakeUpstream("b")) as h:
        curious, content, silent, elsewhere = (
            h.listener(level="debug"),
            h.listener("a", level="error"),
            h.listener(),
            h.listener("b", level="debug"),
        )
        h["a"].announce(line("info"))
        h["a"].announce(line("error"))
        assert curious.changes == [line("info"), line("error")]
        assert content.changes == [line("error")]
        assert silent.changes == []
        assert elsewhere.changes == []


async def test_other_notices_reach_all_that_see_the_upstream() -> None:
    notice = Notice(ELICITATION_COMPLETE, {"elicitationId": raw("e")})
    async with house(FakeUpstream("a"), FakeUpstream("b")) as h:
        one, two, other = h.listener(), h.listener("a"), h.listener("b")
        h["a"].announce(notice)
        assert (one.changes, two.changes, other.changes) == ([notice], [notice], [])


async def test_r26_a_notice_on_a_sessions_own_link_is_for_that_session() -> None:
    async with house(FakeUpstream("own"), options=OWN_LINKS) as h:
        one, two, nobody = h.listener(session="s1"), h.listener(session="s2"), h.listener()
        notice = Notice(ELICITATION_COMPLETE, {"elicitationId": raw("e")})
        h["own"].announce(notice, "s1")
        assert (one.changes, two.changes, nobody.changes) == ([notice], [], [])
