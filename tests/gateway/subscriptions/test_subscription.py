"""The twin of `mcproxy.gateway.subscriptions.subscription`: the gateway's subscriptions go by its table alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
import pytest

from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.errors import Party, Reason
from mcproxy.call.upstreams import Connected, Disconnected, PushChannel, UpstreamChanged
from mcproxy.gateway.listings.keys import LinkKey, ResourceKey
from mcproxy.gateway.subscriptions.resources import ResourceSubscriptions
from mcproxy.gateway.subscriptions.subscription import TRANSITIONS, SubscriptionEvent, SubscriptionState
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, ErrorObject
from mcproxy.protocol.methods import SUBSCRIBE, UNSUBSCRIBE
from tests.fakes.upstream import FakeUpstream, Gate, House, complete, failed, house, quiet

pytestmark = pytest.mark.anyio

URI = "memo:x"
S, E = SubscriptionState, SubscriptionEvent


class HeldUpstream(FakeUpstream):
    """Answers subscriptions when the test lets it, and connects nothing by itself."""

    def __init__(self) -> None:
        super().__init__("up")
        self.door = Gate()
        self.answers = {SUBSCRIBE: lambda call: self.answer, UNSUBSCRIBE: lambda call: complete()}
        self.answer: Complete | Failed = complete()

    async def __call__(self, call: Call) -> Outcome:
        if call.row.name != SUBSCRIBE:
            return self._answer(call)
        await self.door.passed()
        return self._answer(call)


class Driven:
    """One subscription of a gateway that runs; `owner` is whose link it is made over."""

    def __init__(self, h: House, owner: str | None) -> None:
        up = h["up"]
        assert isinstance(up, HeldUpstream)
        self.up, self.h, self.owner = up, h, owner
        self.key = ResourceKey(LinkKey("up", owner), URI)
        self.listener = h.listener(session=owner)
        self.watches = list[Coroutine[Any, Any, Outcome]]()

    @property
    def subscriptions(self) -> ResourceSubscriptions:
        return self.h.gateway.subscriptions

    @property
    def state(self) -> SubscriptionState:
        return self.subscriptions.state_of(self.key)

    def watch(self) -> None:
        """Begins to watch, as far as that goes without waiting."""
        watching = self.subscriptions.watch(self.key, self.listener, URI)
        try:
            watching.send(None)
        except StopIteration:
            return
        self.watches.append(watching)

    def leave(self) -> None:
        """Stops waiting for the upstream to agree, or stops watching."""
        while self.watches:
            self.watches.pop().close()
        self.subscriptions.unwatch(self.key, self.listener, URI)

    def link_up(self) -> None:
        self.h.gateway.on_event(Connected("up", self.owner, self.up.identity))

    def link_lost(self) -> None:
        self.h.gateway.on_event(Disconnected("up", self.owner, "gone"))

    def channel_restored(self) -> None:
        self.h.gateway.on_event(UpstreamChanged("up", self.owner, PushChannel.RESTORED))

    async def sent(self) -> None:
        """Lets the gateway send what is due; no answer comes."""
        self.up.door.shut()
        if self.state in (S.REFUSED, S.UNSURE):
            await quiet()
            self.h.sleeper.wake()
        await quiet()

    async def agreed(self) -> None:
        self.up.answer = complete()
        self.up.door.open()
        await self.moved()

    async def refused(self) -> None:
        self.up.answer = failed("no")
        self.up.door.open()
        await self.moved()

    async def unanswered(self) -> None:
        self.up.answer = Failed(ErrorObject(INTERNAL_ERROR, "no answer"), Party.UPSTREAM, Reason.TIMEOUT)
        self.up.door.open()
        await self.moved()

    async def moved(self) -> None:
        """Returns with the next transition to another state; where there is none, once nothing moves any more."""
        before = self.state
        for _ in range(30):
            await anyio.lowlevel.checkpoint()
            if self.state is not before:
                return

    async def does(self, event: SubscriptionEvent) -> SubscriptionState:
        acts: dict[SubscriptionEvent, Callable[[], Awaitable[None] | None]] = {
            E.SENT: self.sent,
            E.SENT_UNCONNECTED: self.sent,
            E.AGREED: self.agreed,
            E.REFUSED: self.refused,
            E.UNANSWERED: self.unanswered,
            E.LINK_UP: self.link_up,
            E.LINK_LOST: self.link_lost,
            E.CHANNEL_RESTORED: self.channel_restored,
            E.LEFT: self.leave,
            E.WATCHED: self.watch,
            E.WITHDRAWN: quiet,
        }
        done = acts[event]()
        if done is not None:
            await done
        return self.state


ASKED = (E.LINK_UP, E.WATCHED, E.SENT)
MADE = (*ASKED, E.AGREED)
OWN = {S.CONNECTING, S.LEFT_CONNECTING}
"""States that only subscriptions over a session's own link come into."""
WAYS_TO: dict[SubscriptionState, tuple[SubscriptionEvent, ...]] = {
    S.WANTED: (E.WATCHED,),
    S.CONNECTING: (E.WATCHED, E.SENT_UNCONNECTED),
    S.ASKED: ASKED,
    S.MADE: MADE,
    S.DOUBTFUL: (*MADE, E.CHANNEL_RESTORED),
    S.RENEWING: (*MADE, E.CHANNEL_RESTORED, E.SENT),
    S.REFUSED: (*ASKED, E.REFUSED),
    S.UNSURE: (*MADE, E.CHANNEL_RESTORED, E.SENT, E.REFUSED),
    S.LEFT_CONNECTING: (E.WATCHED, E.SENT_UNCONNECTED, E.LEFT),
    S.LEFT_ASKED: (*ASKED, E.LEFT),
    S.UNWANTED: (*MADE, E.LEFT),
}
"""The events that bring a new subscription into each state."""
ANSWERED_LATE = (*ASKED, E.LINK_LOST)
"""The events after which an answer is that of a link which is gone."""


def ways() -> list[tuple[SubscriptionState, SubscriptionEvent, tuple[SubscriptionEvent, ...], str | None]]:
    found = []
    for state, row in TRANSITIONS.items():
        for event in row:
            way = WAYS_TO[state]
            if state is S.WANTED and event in (E.AGREED, E.REFUSED, E.UNANSWERED):
                way = ANSWERED_LATE
            if state is S.WANTED and event is E.SENT:
                way = (E.WATCHED, E.LINK_UP)
            owned = state in OWN or event is E.SENT_UNCONNECTED
            found.append((state, event, way, "s1" if owned else None))
    return found


@pytest.mark.parametrize(("state", "event", "way", "owner"), ways(), ids=lambda each: getattr(each, "name", ""))
async def test_a_subscription_takes_every_edge_of_its_table(
    state: SubscriptionState, event: SubscriptionEvent, way: tuple[SubscriptionEvent, ...], owner: str | None
) -> None:
    options = {"up": {"connection": "session"}} if owner else {}
    async with house(HeldUpstream(), options=options) as h:
        await quiet()
        driven = Driven(h, owner)
        await quiet()
        for before in way:
            await driven.does(before)
        assert driven.state is state
        assert await driven.does(event) is TRANSITIONS[state][event]
        driven.leave()


async def test_a_subscription_that_never_was_is_ended() -> None:
    async with house(HeldUpstream()) as h:
        driven = Driven(h, None)
        assert driven.state is S.ENDED
        driven.leave()
        assert driven.state is S.ENDED
