"""The twin of `mcproxy.upstream.fleet`: who starts, who stays, and how those end that are gone (R49)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from mcproxy.call.calls import Outcome
from mcproxy.call.errors import Reason
from mcproxy.call.upstreams import Connected, LinkState
from mcproxy.settings import Proxy, Settings, UpstreamSettings
from mcproxy.settings.differences import diff
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.fleet import Fleet
from tests.timeouts import GUARD
from tests.upstream.support import DONE, QUICK, Events, FakeLink, failure, tool
from tests.upstream.test_supervisor import FakeConnect

pytestmark = pytest.mark.anyio


def upstream(name: str, **options: object) -> UpstreamSettings:
    return UpstreamSettings.model_validate({"name": name, "prefix": name, "command": "c", "timeouts": QUICK, **options})


@dataclass
class Harbour:
    """A fleet that runs, and all that it says."""

    settings: Settings
    connect: FakeConnect = field(default_factory=FakeConnect)
    events: Events = field(default_factory=Events)
    metrics: Metrics = field(default_factory=Metrics)
    fleet: Fleet = field(init=False)

    def __post_init__(self) -> None:
        self.fleet = Fleet(self.settings, self.events, self.metrics, connect=self.connect)

    def reconfigure(self, *upstreams: UpstreamSettings, grace: float = 5) -> None:
        before, self.settings = self.settings, settings_of(*upstreams, grace=grace)
        self.fleet.reconfigure(self.settings, diff(before, self.settings))

    async def connected(self, times: int) -> None:
        await self.events.until(lambda: len(self.events.of(Connected)) == times)

    def series(self, name: str) -> int:
        samples = (sample for family in self.metrics.registry.collect() for sample in family.samples)
        return sum(sample.labels.get("upstream") == name for sample in samples)

    async def until(self, name: str, series: int) -> None:
        while self.series(name) != series:
            await anyio.lowlevel.checkpoint()


def settings_of(*upstreams: UpstreamSettings, grace: float = 5) -> Settings:
    return Settings(proxy=Proxy(shutdown_grace=grace), upstreams=upstreams)


@asynccontextmanager
async def harbour(*upstreams: UpstreamSettings) -> AsyncIterator[Harbour]:
    it = Harbour(settings_of(*upstreams))
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.fleet.run)
            yield it
            tasks.cancel_scope.cancel()
    assert it.connect.alive == 0


async def test_r49_a_kept_upstream_keeps_its_link_and_a_new_one_gets_one() -> None:
    async with harbour(upstream("a"), upstream("b")) as it:
        await it.connected(2)
        a = it.fleet.upstreams["a"]
        it.reconfigure(upstream("c"), upstream("a", prefix="other", max_in_flight=1))
        await it.connected(3)
        assert list(it.fleet.upstreams) == ["c", "a"]
        assert it.fleet.upstreams["a"] is a
        assert [event.upstream for event in it.events.of(Connected)] == ["a", "b", "c"]


async def test_r49_new_settings_of_a_kept_upstream_count_on_the_link_that_it_has() -> None:
    async with harbour(upstream("a", connection="session")) as it:
        await it.connected(1)
        await it.fleet.upstreams["a"](tool("x", session="s"))
        adopted = upstream("a", connection="session", max_connections=1, list_poll=9)
        it.reconfigure(adopted)
        assert [context.spec for context in it.connect.contexts] == [adopted, adopted]
        refused = failure(await it.fleet.upstreams["a"](tool("x", session="t")))
        assert "max_connections" in refused.error.message


async def test_r49_a_call_in_flight_ends_before_its_upstream_does() -> None:
    hold = anyio.Event()
    async with harbour(upstream("a")) as it:
        it.connect.links.append(FakeLink(hold=hold))
        await it.connected(1)
        outcomes: list[Outcome] = []

        async def call() -> None:
            outcomes.append(await before(tool("x")))

        before = it.fleet.upstreams["a"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            it.reconfigure()
            await anyio.wait_all_tasks_blocked()
            assert it.connect.alive == 1
            hold.set()
        assert outcomes == [DONE]
        await it.until("a", series=0)


@pytest.mark.parametrize("after", [[], [upstream("a", command="other")]], ids=["removed", "changed"])
async def test_r49_a_call_that_waits_for_a_start_is_made_before_its_upstream_ends(
    after: list[UpstreamSettings],
) -> None:
    async with harbour() as it:
        it.connect.may_connect = anyio.Event()
        it.reconfigure(upstream("a"))
        before, outcomes = it.fleet.upstreams["a"], list[Outcome]()

        async def call() -> None:
            outcomes.append(await before(tool("x")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            it.reconfigure(*after)
            await anyio.wait_all_tasks_blocked()
            assert outcomes == []
            it.connect.may_connect.set()
        assert outcomes == [DONE]
        assert it.connect.given[0].calls == 1, "the one that was being started, by the settings before"
        while it.connect.alive != len(after):
            await anyio.lowlevel.checkpoint()


async def test_r49_a_start_that_no_call_waits_for_ends_with_its_upstream() -> None:
    async with harbour() as it:
        it.connect.may_connect = anyio.Event()
        it.reconfigure(upstream("a"))
        await anyio.wait_all_tasks_blocked()
        before = it.fleet.upstreams["a"]
        it.reconfigure()
        assert before.status.state is LinkState.RETIRED


async def test_r49_a_start_that_takes_longer_than_the_grace_is_waited_for_no_longer() -> None:
    async with harbour() as it:
        it.connect.may_connect = anyio.Event()
        it.reconfigure(upstream("a"))
        before, outcomes = it.fleet.upstreams["a"], list[Outcome]()

        async def call() -> None:
            outcomes.append(await before(tool("x")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            it.reconfigure(grace=0.01)
        assert "not connected: it has been stopped" in failure(outcomes[0]).error.message


async def test_r49_a_call_that_never_ends_holds_its_upstream_no_longer_than_the_grace() -> None:
    async with harbour(upstream("a")) as it:
        link = FakeLink(hold=anyio.Event())
        it.connect.links.append(link)
        await it.connected(1)
        before = it.fleet.upstreams["a"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(before, tool("x"))
            await anyio.wait_all_tasks_blocked()
            it.reconfigure(grace=0)
            await it.until("a", series=0)
            assert it.connect.alive == 0
            tasks.cancel_scope.cancel()


async def test_r49_a_removed_upstream_says_nothing_more_and_is_never_revived() -> None:
    hold = anyio.Event()
    async with harbour(upstream("a"), upstream("b")) as it:
        it.connect.links += [FakeLink(hold=hold), FakeLink(hold=hold)]
        await it.connected(2)
        said = list(it.events.all)
        before = it.fleet.upstreams["a"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(before, tool("x"))
            await anyio.wait_all_tasks_blocked()
            it.reconfigure(upstream("a", enabled=False), upstream("b"))
            it.connect.given[0].lost.set()
            hold.set()
        assert failure(await before(tool("x"))).reason is Reason.UNAVAILABLE
        await it.until("a", series=0)
        assert it.events.all == said
        assert len(it.connect.contexts) == 2
        assert before.status.state is LinkState.RETIRED


async def test_r49_a_removed_upstream_that_still_connects_is_given_up_at_once() -> None:
    async with harbour(upstream("a")) as it:
        it.connect.may_connect = anyio.Event()
        await anyio.wait_all_tasks_blocked()
        it.reconfigure()
        await it.until("a", series=0)
        assert it.events.all == []


async def test_r49_a_new_link_takes_the_place_of_the_old_one_under_the_same_name() -> None:
    async with harbour(upstream("a")) as it:
        await it.connected(1)
        before = it.fleet.upstreams["a"]
        it.reconfigure(upstream("a", args=("more",)))
        await it.connected(2)
        while it.connect.alive != 1:
            await anyio.lowlevel.checkpoint()
        assert it.fleet.upstreams["a"] is not before
        assert it.metrics.registry.get_sample_value("mcproxy_upstream_up", {"upstream": "a"}) == 1


async def test_r52_the_series_of_an_upstream_that_came_back_under_its_name_stay() -> None:
    hold = anyio.Event()
    async with harbour(upstream("a")) as it:
        it.connect.links.append(FakeLink(hold=hold))
        await it.connected(1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.fleet.upstreams["a"], tool("x"))
            await anyio.wait_all_tasks_blocked()
            it.reconfigure()
            it.reconfigure(upstream("a"))
            await it.connected(2)
            hold.set()
        while it.connect.alive != 1:
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        assert it.metrics.registry.get_sample_value("mcproxy_upstream_up", {"upstream": "a"}) == 1
