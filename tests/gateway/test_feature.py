"""The seam between the core and its features, with a small feature of the test's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Self

import anyio
import pytest

from mcproxy.call.calls import Call, Handler, Outcome
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.features import FEATURES
from mcproxy.gateway.feature import Core, Feature, Listed, Place, Placed
from mcproxy.gateway.gateway import Gateway
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.methods import row_of
from mcproxy.sealing import Sealer
from mcproxy.settings import Settings
from mcproxy.telemetry.metrics import Metrics
from tests.fakes.upstream import FakeClient, complete, decoded, quiet, settings_of

pytestmark = pytest.mark.anyio


class Connection:
    closed = 0

    async def retire(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1


class Counting(Feature):
    """Counts calls, over reloads; holds one connection for each name of the gateway."""

    name = "counting"
    running = 0

    def __init__(self, core: Core) -> None:
        self.key = core.settings.proxy.name
        self.connection = Connection()
        self.calls: list[str] = []

    def adopt(self, previous: Self) -> None:
        self.calls = previous.calls
        if previous.key == self.key:
            self.connection = previous.connection

    def stages(self) -> Iterable[Placed]:
        return [Placed(Place.CHECK, "counts calls", self.counting)]

    def counting(self, handler: Handler) -> Handler:
        def count(call: Call) -> Awaitable[Outcome]:
            self.calls.append(call.method)
            return handler(call)

        return count

    def answers(self) -> Mapping[str, Handler]:
        return {"counting/read": self.read}

    async def read(self, call: Call) -> Outcome:
        return complete(calls=self.calls)

    def resources(self) -> Iterable[Connection]:
        return [self.connection]

    async def run(self) -> None:
        type(self).running += 1
        try:
            await anyio.sleep_forever()
        finally:
            type(self).running -= 1


class ListedHere(Listed, frozen=True):
    def load(self) -> Callable[[Core], Feature]:
        return Counting


def gateway(settings: Settings) -> Gateway:
    listed = ListedHere("counting", "", lambda settings: settings.proxy.name != "off")
    return Gateway(settings, {}, Metrics(), Sealer(b"secret"), features=lambda settings: [*FEATURES, listed])


def feature(gateway: Gateway) -> Counting:
    found = gateway._features["counting"]
    assert isinstance(found, Counting)
    return found


async def test_a_reload_replaces_a_feature_that_adopts_what_it_needs() -> None:
    it = gateway(settings_of({}, name="one"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(it.run)
        await quiet()
        first = feature(it)
        first.calls.append("ping")
        it.reconfigure(settings_of({}, name="one"), {})
        second = feature(it)
        await quiet()
        assert second is not first
        assert (second.calls, second.connection) == (["ping"], first.connection)
        assert (first.connection.closed, Counting.running) == (0, 1)
        it.reconfigure(settings_of({}, name="two"), {})
        await quiet()
        assert (first.connection.closed, feature(it).connection.closed, Counting.running) == (1, 0, 1)
        last = feature(it).connection
        tasks.cancel_scope.cancel()
    assert (last.closed, Counting.running) == (1, 0)


async def test_a_feature_that_is_not_configured_contributes_nothing() -> None:
    it = gateway(settings_of({}, name="off"))
    assert "counting" not in {row.feature for row in it.pipeline()}
    it.reconfigure(settings_of({}, name="on"), {})
    assert "counting" in {row.feature for row in it.pipeline()}


def test_the_pipeline_is_printed_in_the_order_of_places() -> None:
    rows = gateway(settings_of({}, name="on")).pipeline()
    assert [Place[row.place] for row in rows] == sorted(Place[row.place] for row in rows)
    assert ("client", "CHECK", "counting", "counts calls") in [
        (row.side, row.place, row.feature, row.about) for row in rows
    ]


async def test_a_feature_answers_a_method_of_its_own() -> None:
    it = gateway(settings_of({}, name="on"))
    call = Call(row_of("counting/read"), {}, Caller(ANONYMOUS, LATEST), FakeClient())
    assert decoded(await it.handler(call)) == {"calls": ["counting/read"]}
