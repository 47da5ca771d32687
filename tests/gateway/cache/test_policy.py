"""The twin of `mcproxy.gateway.cache.policy`: any interleaving of reads, writes, news, losses and cancellations.

The model knows of each resource the newest version that the gateway was told of. Whoever begins to read after that
must get nothing older, whatever happens meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mcproxy import settings
from mcproxy.call.calls import Call, Complete, Outcome
from mcproxy.call.clients import Listener
from mcproxy.gateway.cache.policy import META_STALE
from mcproxy.protocol.methods import row_of
from tests.depth import examples
from tests.fakes.reading import DOWN, Arrived, Pending, Reader, Server, World, members, read, settled, text, world

T = TypeVar("T")

MAX_BYTES = 8_000
PUBLIC, PRIVATE = "public:x", "private:x"
URIS = st.sampled_from([PUBLIC, PRIVATE])
PRINCIPALS = st.sampled_from(["alice", "bob"])


@dataclass(eq=False)
class ScopedServer(Server):
    """Its URIs say whom their content is for, except for those that have turned."""

    turned: set[str] = field(default_factory=set)

    def result(self, call: Call, uri: str) -> Outcome:
        public = uri.startswith("public:") != (uri in self.turned)
        scope: dict[str, object] = {"cacheScope": "public" if public else "private"}
        self.hints = scope if self.subscribable else {**scope, "ttlMs": 20_000}
        return super().result(call, uri)


@dataclass(eq=False)
class Asked:
    """One read, and the oldest version that may answer it: marked as stale or not."""

    pending: Pending
    uri: str
    principal: str
    floor: int
    stale_floor: int


@dataclass
class Model:
    told: dict[str, int] = field(default_factory=dict)
    """The newest version that the gateway knows of, by news or by doubt."""
    reported: dict[str, int] = field(default_factory=dict)
    """The same, by the upstream's word alone: what is older is not good even in need."""
    news: list[tuple[str, int]] = field(default_factory=list)
    """On their way to the gateway, over the link that stands."""


class CacheMachine(RuleBasedStateMachine):
    """Drives one event loop by hand: each rule lets all tasks go as far as they can."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model = Model()
        self.asked: list[Asked] = []
        self.up = True
        self.stop = False

    def drive(self, work: Coroutine[Any, Any, T]) -> T:
        async def driven() -> T:
            result = await work
            await settled()
            return result

        return self.runner.run(driven())

    @initialize(coherent=st.booleans(), early=st.booleans())
    def begin(self, coherent: bool, early: bool) -> None:
        """Coherent: no TTL, and news of what is watched. Else: a TTL, and news of everything."""
        self.coherent = coherent
        self.server = ScopedServer(slow=True, subscribable=coherent, early=early, padding=500)

        async def opened() -> World:
            started: asyncio.Future[World] = asyncio.get_running_loop().create_future()
            self.host = asyncio.get_running_loop().create_task(self.live(started))
            return await started

        self.w = self.drive(opened())
        self.w.table.slow = True

    async def live(self, started: asyncio.Future[World]) -> None:
        self.closing = anyio.Event()
        async with world(
            self.server,
            limits=settings.CacheLimits(max_bytes=MAX_BYTES),
            coherent=self.coherent,
            max_watched=1,
            stale_if_error=30,
            max_bytes=MAX_BYTES - 1000,
            invalidate_on_tool_calls=True,
        ) as w:
            started.set_result(w)
            await self.closing.wait()

    @rule(uri=URIS, principal=PRINCIPALS)
    def someone_reads(self, uri: str, principal: str) -> None:
        async def begin() -> Pending:
            return self.w.begin(read(uri, Reader(principal)))

        floors = self.model.told.get(uri, 0), self.model.reported.get(uri, 0)
        self.asked.append(Asked(self.drive(begin()), uri, principal, *floors))

    @rule(uri=URIS)
    def everybody_reads(self, uri: str) -> None:
        for principal in ("alice", "bob", "alice"):
            self.someone_reads(uri, principal)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def someone_gives_up(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from(self.asked))

        async def cancel() -> None:
            asked.pending.scope.cancel()

        self.drive(cancel())
        self.asked.remove(asked)

    @precondition(lambda self: self.server.arrived)
    @rule(data=st.data())
    def the_server_decides_what_to_say(self, data: st.DataObject) -> None:
        arrived = self.one_arrived(data)
        arrived.outcome = arrived.outcome or self.server.result(arrived.call, arrived.uri)

    @precondition(lambda self: self.server.arrived)
    @rule()
    def the_server_answers_all(self) -> None:
        async def answer() -> None:
            for arrived in self.server.arrived:
                arrived.answer(self.server.result(arrived.call, arrived.uri))

        self.drive(answer())

    @precondition(lambda self: self.server.arrived)
    @rule(data=st.data())
    def the_server_answers(self, data: st.DataObject) -> None:
        arrived = self.one_arrived(data)

        async def answer() -> None:
            arrived.answer(self.server.result(arrived.call, arrived.uri))

        self.drive(answer())

    @rule(uri=URIS, principal=PRINCIPALS)
    def someone_reads_and_all_is_answered(self, uri: str, principal: str) -> None:
        async def answer() -> None:
            while self.server.arrived:
                for arrived in self.server.arrived:
                    arrived.answer(self.server.result(arrived.call, arrived.uri))
                await settled()

        self.someone_reads(uri, principal)
        self.drive(answer())
        self.someone_reads(uri, principal)

    @precondition(lambda self: self.coherent and self.up)
    @rule(uri=URIS, principal=PRINCIPALS)
    def a_resource_is_kept_right(self, uri: str, principal: str) -> None:
        """Read twice, and watched in between."""
        self.someone_reads_and_all_is_answered(uri, principal)
        while self.w.table.waiting:
            self.drive(self.confirm(next(iter(self.w.table.waiting))))
        self.someone_reads_and_all_is_answered(uri, principal)

    def one_arrived(self, data: st.DataObject) -> Arrived:
        return data.draw(st.sampled_from(self.server.arrived))

    @rule(uri=URIS)
    def a_resource_changes_and_the_news_are_quick(self, uri: str) -> None:
        self.a_resource_changes(uri)
        while self.model.news:
            self.news_arrive()

    @rule(uri=URIS)
    def a_resource_turns_private_or_public(self, uri: str) -> None:
        self.server.turned ^= {uri}
        self.a_resource_changes_and_the_news_are_quick(uri)

    @precondition(lambda self: self.up)
    @rule(uri=URIS, silently=st.booleans())
    def a_change_goes_unheard_as_the_link_is_lost(self, uri: str, silently: bool) -> None:
        self.a_resource_changes(uri)
        self.the_link_is_lost(silently)

    @rule(uri=URIS)
    def a_resource_changes(self, uri: str) -> None:
        """Reported over the link that stands: in coherent mode only while the resource is subscribed."""
        version = self.server.write(uri)
        if not self.up:
            return
        if not self.coherent or uri in self.confirmed():
            self.model.news.append((uri, version))
        elif not any(arrived.uri == uri for arrived in self.server.arrived):
            # Nobody watches it and nobody reads it: nothing older than this may be held from now on.
            self.model.told[uri] = version

    def confirmed(self) -> set[str]:
        """What the upstream itself has agreed to report."""
        waiting = self.w.table.waiting
        return {uri for watch, uri in self.w.table.held.items() if watch not in waiting or waiting[watch].is_set()}

    @precondition(lambda self: self.model.news)
    @rule()
    def news_arrive(self) -> None:
        uri, version = self.model.news.pop(0)
        self.tell({uri: version}, reported=True)

        async def deliver() -> None:
            self.w.updated(uri)

        self.drive(deliver())

    @rule()
    def a_tool_writes(self) -> None:
        async def call() -> None:
            await self.w.get(Call(row_of("tools/call"), {}, read(PUBLIC).caller, Reader()))

        for uri in list(self.server.versions):
            self.server.write(uri)
        self.drive(call())
        self.tell(self.server.versions, reported=True)

    @precondition(lambda self: self.up)
    @rule(silently=st.booleans())
    def the_link_is_lost(self, silently: bool) -> None:
        """With all that was on its way over it; silently: it is back at once, and only that is heard."""
        self.model.news.clear()
        self.tell(self.server.versions, reported=False)
        self.up, self.server.down = silently, not silently

        async def lose() -> None:
            for arrived in list(self.server.arrived):
                arrived.outcome = DOWN
                arrived.gate.set()
            if silently:
                self.w.connected()
            else:
                self.w.lost()

        self.drive(lose())

    @precondition(lambda self: not self.up)
    @rule()
    def the_link_is_made_again(self) -> None:
        self.up, self.server.down = True, False

        async def connect() -> None:
            self.w.connected()

        self.drive(connect())

    @precondition(lambda self: self.w.table.waiting)
    @rule(data=st.data())
    def a_watch_is_confirmed(self, data: st.DataObject) -> None:
        self.drive(self.confirm(data.draw(st.sampled_from(list(self.w.table.waiting)))))

    async def confirm(self, watch: Listener) -> None:
        self.w.table.waiting.pop(watch).set()

    @rule(seconds=st.sampled_from([1, 10, 25]))
    def time_passes(self, seconds: float) -> None:
        self.w.clock.now += seconds

    def tell(self, versions: dict[str, int], *, reported: bool) -> None:
        for uri, version in versions.items():
            self.model.told[uri] = max(version, self.model.told.get(uri, 0))
            if reported:
                self.model.reported[uri] = max(version, self.model.reported.get(uri, 0))

    @invariant()
    def nobody_gets_what_was_known_to_be_out_of_date_nor_what_is_anothers(self) -> None:
        for asked in [asked for asked in self.asked if asked.pending.outcome is not None]:
            self.asked.remove(asked)
            self.check(asked, asked.pending.outcome)

    def check(self, asked: Asked, outcome: Outcome | None) -> None:
        if not isinstance(outcome, Complete):
            assert outcome is DOWN
            return
        version, _, owner = text(outcome).partition(" for ")
        stale = META_STALE in str(members(outcome).get("_meta", ""))
        assert int(version) >= (asked.stale_floor if stale else asked.floor)
        assert owner == asked.principal or members(outcome)["cacheScope"] == "public"

    @invariant()
    def the_cache_stays_within_its_limits(self) -> None:
        if not hasattr(self, "w"):
            return
        assert self.w.metric("mcproxy_cache_bytes") <= MAX_BYTES - 1000
        assert len(self.w.table.held) <= 1 + len(self.w.table.waiting)

    def teardown(self) -> None:
        if hasattr(self, "w"):
            self.drive(self.leave())
        self.runner.close()

    async def leave(self) -> None:
        """When all have gone, nothing is on its way any more, and the loss of the link leaves no watch."""
        for asked in self.asked:
            asked.pending.scope.cancel()
        for watching in self.w.table.waiting.values():
            watching.set()
        self.w.lost()
        await settled()
        assert self.server.arrived == []
        assert self.w.table.held == {}
        self.closing.set()
        await self.host


TestCache = CacheMachine.TestCase
TestCache.settings = hypothesis_settings(max_examples=examples(250), stateful_step_count=60)
