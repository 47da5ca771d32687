"""The twin of `mcproxy.cluster.records`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

import anyio
import anyio.lowlevel
import pytest
from msgspec import Raw

from mcproxy.call.calls import Call, Complete, Outcome
from mcproxy.call.clients import Change, InputRequest, ResourceUpdated
from mcproxy.call.errors import McpError
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.cluster.records import SessionRecords
from mcproxy.cluster.store.protocol import StoreUnavailable
from mcproxy.downstream.handshake.client_requests import NoClient
from mcproxy.protocol.jsonrpc import parse_text, raw
from mcproxy.protocol.methods import METHODS, SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE
from mcproxy.sealing import Sealer
from mcproxy.telemetry.metrics import Metrics
from tests.fakes.local_store import LocalStore
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


class Flaky(LocalStore):
    is_away = False
    failures = 0
    """How many reads fail before one succeeds."""

    async def put(self, key: str, value: bytes, ttl: float) -> None:
        if self.is_away:
            raise StoreUnavailable("away")
        await super().put(key, value, ttl)

    async def get(self, key: str, wait: float = 0) -> bytes | None:
        if self.is_away or self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        return await super().get(key, wait)


@dataclass(eq=False)
class FakeSession:
    """A listener that remembers what it was told."""

    caller: Caller
    told: list[Change] = field(default_factory=list)

    def set_log_level(self, level: str) -> None:
        self.caller = Caller(ANONYMOUS, "2025-11-25", session=self.caller.session, log_level=level, transport="http")

    def signal(self, change: Change) -> None:
        self.told.append(change)

    async def ask(self, request: InputRequest) -> Raw:
        raise McpError(0, "not asked in these tests")


def session(key: str) -> FakeSession:
    return FakeSession(Caller(ANONYMOUS, "2025-11-25", session=key, log_level="info", transport="http"))


@dataclass
class Replica:
    """The records of one replica, and what its sessions watch."""

    records: SessionRecords
    watched: dict[object, list[str]] = field(default_factory=dict)
    refuses: bool = False
    ended: list[object] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    """Sessions of whose end other replicas were told."""

    async def subscribe(self, call: Call) -> Outcome:
        if self.refuses:
            raise McpError(-32002, "there is no such resource")
        self.watched.setdefault(call.listener, []).append(parse_text(call.params["uri"]) or "")
        return Complete({})

    async def handle(self, call: Call) -> Outcome:
        match call.method:
            case "resources/subscribe":
                return await self.subscribe(call)
            case "resources/unsubscribe":
                self.watched[call.listener].remove(parse_text(call.params["uri"]) or "")
            case "logging/setLevel":
                assert call.listener is not None
                call.listener.set_log_level(parse_text(call.params["level"]) or "")
        return Complete({})

    async def ask(self, who: FakeSession, method: str, **params: str) -> None:
        call = Call(METHODS[method], {key: raw(value) for key, value in params.items()}, who.caller, NoClient(), who)
        await self.records.recorded(self.handle)(call)


@asynccontextmanager
async def replica(
    store: LocalStore, on_loss: Literal["reopen", "404"] = "reopen", patience: float = GUARD
) -> AsyncIterator[Replica]:
    async with anyio.create_task_group() as tasks:
        made: Replica

        async def subscribe(call: Call) -> Outcome:
            return await made.subscribe(call)

        records = SessionRecords(
            store,
            Sealer(b"secret"),
            lambda listener: made.watched.get(listener, []),
            subscribe,
            lambda listener: made.ended.append(listener),
            lambda: 60.0,
            on_loss,
            tasks,
            Metrics(),
            lambda key: made.told.append(key),
            patience,
        )
        made = Replica(records)
        yield made
        tasks.cancel_scope.cancel()


async def reopened(at: Replica, key: str = "k") -> FakeSession | None:
    """The session, opened again at another replica; None where it is refused."""
    async with at.records.fetched(key):
        if at.records.is_lost(key, 0):
            return None
        again = session(key)
        at.records.reopened(key, again)
        await at.ask(again, SET_LEVEL, level=again.caller.log_level or "")
        return again


async def test_r71_a_session_is_restored_as_its_client_left_it_and_told_of_one_update_each() -> None:
    store, before = LocalStore(), session("k")
    async with replica(store) as first, replica(store) as second:
        for uri in ("a:1", "a:2", "a:3"):
            await first.ask(before, SUBSCRIBE, uri=uri)
        await first.ask(before, UNSUBSCRIBE, uri="a:2")
        await first.ask(before, SET_LEVEL, level="error")
        again = await reopened(second)
        assert again is not None
        assert again.caller.log_level == "error"
        assert second.watched[again] == ["a:1", "a:3"]
        assert again.told == [ResourceUpdated("a:1"), ResourceUpdated("a:3")]


async def test_a_session_that_changed_nothing_is_opened_as_it_is() -> None:
    async with replica(LocalStore()) as second:
        again = await reopened(second)
        assert again is not None
        assert again.told == []


async def test_a_session_that_ended_is_refused() -> None:
    store = LocalStore()
    async with replica(store) as first, replica(store) as second:
        await first.ask(session("k"), SUBSCRIBE, uri="a:1")
        first.records.end("k")
        with anyio.fail_after(GUARD):
            while first.records._unsaved:
                await anyio.lowlevel.checkpoint()
        assert await reopened(second) is None


async def test_a_session_whose_record_is_late_is_opened_all_the_same() -> None:
    store = Flaky()
    async with replica(store) as first, replica(store) as second:
        await first.ask(session("k"), SUBSCRIBE, uri="a:1")
        store.failures = 2
        again = await reopened(second)
        assert again is not None
        await second.ask(again, SUBSCRIBE, uri="a:2")
        assert second.watched[again] == ["a:1", "a:2"]


async def test_a_session_whose_record_cannot_be_read_is_refused() -> None:
    store = Flaky()
    async with replica(store, patience=0) as second:
        store.is_away = True
        assert await reopened(second) is None


async def test_a_record_that_was_not_sealed_with_our_secret_is_not_believed() -> None:
    store = LocalStore()
    async with replica(store) as second:
        name = second.records._names("k")[0]
        await store.put(name, b"forged", 60)
        assert await reopened(second) is None


async def test_every_session_of_another_replica_is_refused_where_the_settings_say_so() -> None:
    async with replica(LocalStore(), "404") as second:
        assert await reopened(second) is None


async def test_what_could_not_be_written_is_written_when_the_store_is_back() -> None:
    store, before = Flaky(), session("k")
    async with replica(store) as first, replica(store) as second, anyio.create_task_group() as tasks:
        store.is_away = True
        await first.ask(before, SUBSCRIBE, uri="a:1")
        store.is_away = False
        tasks.start_soon(first.records.run, 0.001)
        with anyio.fail_after(GUARD):
            while (again := await reopened(second)) is None or again not in second.watched:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def test_a_session_whose_subscriptions_cannot_be_restored_is_ended() -> None:
    store = LocalStore()
    async with replica(store) as first, replica(store) as second:
        await first.ask(session("k"), SUBSCRIBE, uri="a:1")
        second.refuses = True
        again = await reopened(second)
        assert second.ended == [again]


async def test_after_a_store_lost_its_data_what_sessions_need_is_written_again() -> None:
    store = LocalStore()
    async with replica(store) as at:
        watching, idle = session("k"), session("idle")
        at.watched[watching] = ["up+memo:a"]
        at.records.write_again([("k", watching), ("idle", idle), ("ended", None)])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(at.records.run, 0.001)
            with anyio.fail_after(GUARD):
                while len(store._keys) < 2:
                    await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    async with replica(store) as other:
        assert await reopened(other, "ended") is None
        again = await reopened(other)
        assert again is not None
        with anyio.fail_after(GUARD):
            while not other.watched.get(again):
                await anyio.lowlevel.checkpoint()
        assert len(store._keys) == 2, "a session that changed nothing needs no record"


async def test_a_session_that_ended_while_its_end_was_being_written_ends_once() -> None:
    """As a drain does: two writes of the same end overlap, and the one that is over first has nothing left to write."""
    store = Slow()
    async with replica(store) as at:
        at.records.end("k")
        at.records.end("k")
        await store.written(2)
        assert at.told == ["k", "k"]
        assert await reopened(at) is None


class Slow(LocalStore):
    """A store whose writes end only once others have begun."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = 0
        self._ended = 0

    async def put(self, key: str, value: bytes, ttl: float) -> None:
        self._begun += 1
        while self._begun < 2:
            await anyio.lowlevel.checkpoint()
        await super().put(key, value, ttl)
        self._ended += 1

    async def written(self, times: int) -> None:
        with anyio.fail_after(GUARD):
            while self._ended < times:
                await anyio.lowlevel.checkpoint()
