"""Calls and events as they pass."""

from __future__ import annotations

import anyio
import pytest

from mcproxy.admin.live_feed import BACKLOG, Feed
from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.clients import ListChanged
from mcproxy.call.errors import Party, Reason
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.call.upstreams import Disconnected, UpstreamChanged
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import ErrorObject, raw
from mcproxy.protocol.methods import Kind, row_of
from tests.fakes.upstream import FakeClient

pytestmark = pytest.mark.anyio


def call(name: str = "echo") -> Call:
    return Call(
        row_of("tools/call"),
        {"name": raw(name), "arguments": raw({"p": "s3cret"})},
        Caller(ANONYMOUS, LATEST),
        FakeClient(),
    )


async def fine(call: Call) -> Outcome:
    return Complete({})


async def test_a_watcher_sees_calls_and_events_and_no_argument() -> None:
    feed = Feed(1, clock=lambda: 7.0)
    with feed.watched() as passings:
        await feed.around(fine)(call())
        feed.on_event(Disconnected("odd", None, "the child exited"))
        feed.on_event(UpstreamChanged("odd", None, ListChanged(Kind.TOOLS)))
        first, second, third = [await anext(passings) for _ in range(3)]
    assert (first.time, first.kind, first.subject, first.outcome) == (7.0, "tools/call", "echo", "ok")
    assert first.seconds is not None
    assert "s3cret" not in repr(first)
    assert (second.kind, second.subject, second.outcome) == ("disconnected", "odd", "the child exited")
    assert (third.kind, third.outcome) == ("list changed", "tools")


async def test_a_failure_and_an_end_in_between_are_told_apart() -> None:
    async def failing(call: Call) -> Outcome:
        return Failed(ErrorObject(-1, "away"), Party.UPSTREAM, Reason.UNAVAILABLE)

    async def never(call: Call) -> Outcome:
        await anyio.sleep_forever()
        raise AssertionError

    feed = Feed(1)
    with feed.watched() as passings:
        await feed.around(failing)(call())
        with anyio.CancelScope() as scope:
            scope.cancel()
            await feed.around(never)(call())
        assert [(await anext(passings)).outcome for _ in range(2)] == ["unavailable: away", "cancelled"]


async def test_a_watcher_that_does_not_read_holds_up_no_other_and_a_bounded_amount() -> None:
    feed = Feed(2)
    handler = feed.around(fine)
    with feed.watched() as slow, feed.watched():
        assert feed.is_full
        for number in range(BACKLOG + 5):
            await handler(call(str(number)))
        assert [(await anext(slow)).subject for _ in range(BACKLOG)][-1] == str(BACKLOG - 1)
    assert not feed.is_full


async def test_without_a_watcher_nothing_is_kept() -> None:
    feed = Feed(1)
    assert isinstance(await feed.around(fine)(call()), Complete)
    feed.on_event(Disconnected("odd", None, ""))
    with feed.watched() as passings, anyio.move_on_after(0):
        await anext(passings)
        pytest.fail("what passed before was kept")
