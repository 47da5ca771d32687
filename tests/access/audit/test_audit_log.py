"""The twin of `mcproxy.access.audit.audit_log`."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
import structlog.testing

from mcproxy.access.audit.audit_log import MOST_AT_ONCE, AuditLog
from mcproxy.access.audit.records import Digests, End, Record, recorded
from mcproxy.access.refusals import RefusalReason, RefusedCredentials
from mcproxy.call.calls import Call, CallSubject
from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.methods import row_of
from mcproxy.sealing import Sealer
from mcproxy.settings.access.audit import AuditSettings as Spec
from mcproxy.telemetry.metrics import Metrics
from tests.fakes.upstream import FakeClient, Sleeper, quiet
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


@dataclass
class Disk:
    """A file that a test can make full, or slow."""

    full: bool = False
    """It takes nothing; a file on it can be opened."""
    missing: bool = False
    lines: list[bytes] = field(default_factory=list)
    open: threading.Event = field(default_factory=threading.Event)
    wrote: anyio.Event = field(default_factory=anyio.Event)

    def append(self, data: bytes) -> None:
        assert self.open.wait(GUARD)
        if self.missing:
            raise OSError(2, "No such file or directory")
        if self.full and data:
            raise OSError(28, "No space left on device")
        self.lines += data.splitlines()
        anyio.from_thread.run_sync(self._written)

    def _written(self) -> None:
        self.wrote.set()
        self.wrote = anyio.Event()

    @property
    def subjects(self) -> list[str]:
        return [json.loads(line)["subject"] for line in self.lines]


@dataclass
class Desk:
    audit: AuditLog
    disk: Disk
    sleeper: Sleeper
    metrics: Metrics

    def metric(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"mcproxy_audit_{name}")

    async def begin(self) -> None:
        if not self.audit.begins():
            await self.audit.wait()

    async def note(self, subject: str) -> None:
        with anyio.fail_after(GUARD):
            await self.begin()
        self.audit.end(a_record(subject))

    async def written(self, count: int) -> None:
        """Returns once so many records were."""
        with anyio.fail_after(GUARD):
            while len(self.disk.lines) < count:
                await self.disk.wrote.wait()
            # The thread has written; the loop is still to hear of it.
            while (self.metric("records_total") or 0) < count:
                await anyio.lowlevel.checkpoint()

    async def healed(self) -> None:
        """Returns once the file is written again: calls then begin without waiting, whose patience is short here."""
        with anyio.fail_after(GUARD):
            while self.metric("failing"):
                await anyio.lowlevel.checkpoint()


def a_record(subject: str) -> Record:
    call = Call(row_of("tools/call"), {}, Caller(ANONYMOUS, LATEST), FakeClient())
    return recorded(call, CallSubject("up", own=subject), End(0, 0, "ok", None), "hash", Digests(Sealer(b"key").digest))


@asynccontextmanager
async def desk(disk: Disk | None = None, gather: float = 0, **settings: object) -> AsyncIterator[Desk]:
    disk = disk or Disk()
    disk.open.set()
    spec = Spec.model_validate({"file": "audit.jsonl", "patience": 0.01, **settings})
    sleeper, metrics = Sleeper(), Metrics()
    audit = AuditLog(spec, metrics, opening=lambda spec: disk, sleep=sleeper, gather=gather)
    async with audit.running():
        yield Desk(audit, disk, sleeper, metrics)


async def test_records_are_written_in_order_and_counted() -> None:
    async with desk() as d:
        for number in range(MOST_AT_ONCE + 5):
            await d.note(str(number))
        await d.written(MOST_AT_ONCE + 5)
        assert d.disk.subjects == [str(number) for number in range(MOST_AT_ONCE + 5)]
        assert d.metric("lost_total") == 0


async def test_what_waits_is_written_at_the_end() -> None:
    disk = Disk()
    async with desk(disk, gather=math.inf) as d:
        await d.note("last")
    assert disk.subjects == ["last"]


async def test_records_are_gathered_until_the_queue_is_half_full() -> None:
    async with desk(Disk(missing=True), gather=math.inf, max_queued=10) as d:
        await d.sleeper.slept(1)
        d.disk.missing = False
        d.sleeper.wake()
        await d.healed()
        for batch in range(1, 4):
            for _ in range(5):
                assert len(d.disk.lines) == (batch - 1) * 5
                await d.note("one")
                await anyio.wait_all_tasks_blocked()
            await d.written(batch * 5)


async def test_closed_records_are_gathered_no_longer_where_a_call_waits_for_their_room() -> None:
    async with desk(gather=math.inf, fail="closed", max_queued=10, patience=GUARD) as d:
        for _ in range(6):
            await d.begin()
        for _ in range(4):
            await d.note("one")
        await d.begin()
        await d.written(4)


async def test_no_call_waits_for_the_disk() -> None:
    async with desk() as d:
        d.disk.open.clear()
        for number in range(100):
            await d.note(str(number))
        assert d.disk.lines == []
        d.disk.open.set()
        await d.written(100)


async def test_open_what_does_not_fit_is_lost_and_that_is_said_once() -> None:
    async with desk(max_queued=3) as d:
        d.disk.open.clear()
        with structlog.testing.capture_logs() as logs:
            for number in range(10):
                await d.note(str(number))
        assert d.metric("lost_total") == 7
        assert [entry["event"] for entry in logs] == ["records of the audit are lost"]
        d.disk.open.set()


async def test_open_a_full_disk_loses_records_and_serves_calls() -> None:
    async with desk() as d:
        d.disk.full = True
        with structlog.testing.capture_logs() as logs:
            await d.note("lost")
            await d.sleeper.slept(1)
            d.sleeper.wake()
            await d.sleeper.slept(2)
            await d.note("lost too")
            d.sleeper.wake()
            await d.sleeper.slept(3)
        assert (d.metric("lost_total"), d.metric("failing")) == (2, 1)
        assert [entry["event"] for entry in logs] == [
            "the audit log cannot be written",
            "records of the audit are lost",
        ]
        d.disk.full = False
        await d.note("kept")
        d.sleeper.wake()
        await d.written(1)
    assert (d.disk.subjects, d.metric("failing")) == (["kept"], 0)


async def test_closed_a_full_disk_loses_nothing_and_refuses_calls_before_they_begin() -> None:
    async with desk(fail="closed") as d:
        d.disk.full = True
        await d.note("kept")
        await d.sleeper.slept(1)
        with pytest.raises(McpError, match="without which it serves no call") as refused:
            await d.begin()
        assert refused.value.reason is Reason.UNAVAILABLE
        d.disk.full = False
        d.sleeper.wake()
        await d.healed()
        await d.note("and this")
        await d.written(2)
        assert d.disk.subjects == ["kept", "and this"]
        assert d.metric("lost_total") == 0


async def test_closed_a_file_that_can_never_be_written_lets_no_call_begin() -> None:
    async with desk(Disk(missing=True), fail="closed") as d:
        await d.sleeper.slept(1)
        with pytest.raises(McpError):
            await d.begin()


@pytest.mark.parametrize("fail", ["open", "closed"])
async def test_a_file_that_can_be_opened_again_is_so_without_a_record(fail: str) -> None:
    async with desk(Disk(missing=True), fail=fail) as d:
        await d.sleeper.slept(1)
        assert (d.metric("failing"), d.metric("lost_total")) == (1, 0)
        d.disk.missing = False
        d.sleeper.wake()
        await d.healed()


async def test_closed_calls_that_run_have_their_place_in_the_queue() -> None:
    async with desk(fail="closed", max_queued=2) as d:
        await d.begin()
        await d.begin()
        with pytest.raises(McpError):
            await d.begin()
        d.audit.end(a_record("one"))
        await d.written(1)
        await d.note("two")
        d.audit.end(a_record("three"))
        await d.written(3)


async def test_closed_a_call_waits_for_room_no_longer_than_it_may() -> None:
    async with desk(fail="closed", max_queued=1, patience=3600) as d:
        await d.begin()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(d.note, "second")
            await quiet()
            d.audit.end(a_record("first"))
        await d.written(2)
        assert d.disk.subjects == ["first", "second"]


async def test_what_is_lost_at_the_end_is_counted() -> None:
    with structlog.testing.capture_logs() as logs:
        async with desk(fail="closed") as d:
            await d.note("lost")
            d.disk.full = True
    assert d.metric("lost_total") == 1
    assert logs[-1]["why"] == "the gateway ends"


async def test_another_file_takes_what_comes_and_no_file_is_off() -> None:
    async with desk() as d:
        d.audit.reconfigure(Spec(), ())
        assert not d.audit.on
        d.audit.reconfigure(Spec(file="other"), ())
        assert d.audit.on
        await d.note("x")
        await d.written(1)


async def test_a_log_that_is_off_has_no_thread() -> None:
    before = set(threading.enumerate())
    async with AuditLog(Spec(), Metrics()).running():
        await anyio.wait_all_tasks_blocked()
        assert set(threading.enumerate()) <= before


async def test_r88_a_refusal_is_recorded_and_takes_no_calls_room() -> None:
    refused = RefusedCredentials(0, RefusalReason.UNKNOWN_KEY, "the key is not known", None, 0)
    async with desk(max_queued=2, fail="closed") as d:
        d.disk.open.clear()
        await d.note("call")
        for _ in range(5):
            d.audit.note(refused)
        assert not d.audit.begins()
        d.disk.open.set()
        await d.written(2)
        assert d.metric("lost_total") == 4
    assert [json.loads(line).get("event") for line in d.disk.lines] == [None, "credentials refused"]
