"""The audit log: a queue of records, written to a file by one task in a thread, so that no call waits for a disk.

If records cannot be written, `fail: open` counts them as lost, and `fail: closed` begins no call whose record could not
be kept; both are logged. In either mode a process that is killed loses the records not written yet: those of some 20
ms, if the disk keeps up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

import anyio
import anyio.to_thread
import structlog

from mcproxy.access.audit.grant_records import GrantRecord
from mcproxy.access.audit.journal import Journal
from mcproxy.access.audit.operator_records import OperatorRecord
from mcproxy.access.audit.record_lines import AuditRecord, Lines
from mcproxy.access.audit.records import Record
from mcproxy.access.refusals import RefusedCredentials
from mcproxy.call.errors import McpError, Reason
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR
from mcproxy.settings.access import audit as settings
from mcproxy.telemetry.metrics import Metrics

log = structlog.get_logger()

RETRY: Final = 1.0
"""Seconds after which a failed write is tried again."""
FAREWELL: Final = 5.0
"""Seconds for writing the last records at the end."""
GATHER: Final = 0.02
"""Seconds between two batches, unless the queue is half full: each turn of the thread delays all calls."""
MOST_AT_ONCE: Final = 1000
"""Records that are written in one batch."""


class Appends(Protocol):
    """The file that the audit log's lines are appended to."""

    def append(self, data: bytes) -> None:
        """Raises OSError."""


class AuditLog:
    """Takes records; `running` writes them."""

    def __init__(
        self,
        spec: settings.AuditSettings,
        metrics: Metrics,
        secrets: Iterable[str] = (),
        *,
        opening: Callable[[settings.AuditSettings], Appends] | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        clock: Callable[[], float] = time.time,
        gather: float = GATHER,
    ) -> None:
        """`gather` is in seconds."""
        self.clock = clock
        self._gather = gather
        self._metrics = metrics
        self._opening = opening or _journal
        self._sleep = sleep
        self._queue: deque[AuditRecord] = deque()
        self._running = 0
        self._failing = False
        self._losing = False
        self._refuses_records = False
        """Whether records could not be written, and none since."""
        self._came = anyio.Event()
        self._went = anyio.Event()
        self._urgent = anyio.Event()
        """Set if waiting records should be written without gathering more."""
        self.reconfigure(spec, secrets)

    def reconfigure(self, spec: settings.AuditSettings, secrets: Iterable[str]) -> None:
        """Puts other settings in force; queued records go to their file."""
        self._spec = spec
        self.arguments = spec.arguments
        self._must_keep = spec.fail == "closed"
        self._most = spec.max_queued
        self._failing = self._refuses_records = False
        self._lines = Lines(secrets, spec.redact)
        self._file = self._opening(spec) if spec.file is not None else None

    @property
    def on(self) -> bool:
        """Whether records are written at all."""
        return self._file is not None

    @property
    def failing(self) -> bool:
        """Whether the file cannot be written now."""
        return self._failing

    def begins(self) -> bool:
        """Call it before each call. False if its record could not be kept, and must be (`fail: closed`): see `wait`."""
        if self._must_keep and (self._failing or self._is_full()):
            return False
        self._running += 1
        return True

    async def wait(self) -> None:
        """Waits until a call may begin for which `begins` returned False. Raises McpError after `patience` seconds."""
        self._urgent.set()
        with anyio.move_on_after(self._spec.patience):
            while self._failing or self._is_full():
                await self._went.wait()
        if not self.begins():
            sentence = "the gateway cannot write its audit log, without which it serves no call: tell its operator"
            raise McpError(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)

    def end(self, record: Record) -> None:
        """Takes the record of a call that is over. Never blocks."""
        self._running -= 1
        if len(self._queue) >= self._most and not self._must_keep:
            self._lose(1, "too many records wait to be written")
            return
        self._enqueue(record)

    def note(self, record: RefusedCredentials | GrantRecord | OperatorRecord) -> None:
        """Takes a record that belongs to no call.

        Never blocks: if there is no room it is lost, and displaces no call's record.
        """
        if not self.on:
            return
        if self._is_full():
            self._lose(1, "too many records wait to be written")
            return
        self._enqueue(record)

    def _enqueue(self, record: AuditRecord) -> None:
        if not self._queue:
            self._came.set()
        self._queue.append(record)
        if len(self._queue) * 2 >= self._most:
            self._urgent.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Writes records until left, then those still queued. Enter it before, and leave it after, the servers."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._run)
                yield
                tasks.cancel_scope.cancel()
        finally:
            with anyio.move_on_after(FAREWELL, shield=True):
                await self._write_last()

    def _is_full(self) -> bool:
        return self._running + len(self._queue) >= self._most

    async def _run(self) -> None:
        """Writes batch by batch; the first is empty, to learn whether the file can be written at all.

        A record that comes alone is written at once.
        """
        while True:
            await self._write_some()
            if self._failing:
                await self._sleep(RETRY)
                continue
            with anyio.move_on_after(self._gather):
                await self._urgent.wait()
            self._urgent = anyio.Event()
            if not self._queue:
                await self._came.wait()
            self._came = anyio.Event()

    async def _write_last(self) -> None:
        while self._queue and await self._write_some():
            pass
        if self._queue:
            self._lose(len(self._queue), "the gateway ends")

    async def _write_some(self) -> bool:
        """Writes one batch. True if its records left the queue, written or lost."""
        some = list(islice(self._queue, MOST_AT_ONCE))
        try:
            if self._file is not None:
                with anyio.CancelScope(shield=True):  # a record that may have been written is never written again
                    await anyio.to_thread.run_sync(_append, self._file, self._lines, some)
        except OSError as error:
            self._failed(error)
            self._refuses_records |= bool(some)
            if self._spec.fail == "closed":
                return False
            if some:
                self._lose(len(some), "the file cannot be written")
        else:
            self._succeeded(len(some))
        for _ in some:
            self._queue.popleft()
        self._make_room()
        return True

    def _failed(self, error: OSError) -> None:
        if not self._failing:
            log.error("the audit log cannot be written", file=self._spec.file, why=error.strerror, fail=self._spec.fail)
        self._failing = True
        self._metrics.audit_failing.set(1)

    def _succeeded(self, count: int) -> None:
        if self._refuses_records and not count:
            return  # A full disk takes an empty batch: only a record shows that it takes records again.
        self._refuses_records = False
        if self._failing:
            log.warning("the audit log is written again", file=self._spec.file)
        self._failing = False
        self._metrics.audit_failing.set(0)
        self._metrics.audit_records.inc(count)

    def _lose(self, count: int, why: str) -> None:
        if not self._losing:
            log.error("records of the audit are lost", why=why)
        self._losing = True
        self._metrics.audit_lost.inc(count)

    def _make_room(self) -> None:
        self._losing = self._failing
        self._went.set()
        self._went = anyio.Event()


def _append(file: Appends, lines: Lines, records: Sequence[AuditRecord]) -> None:
    """In a thread."""
    file.append(b"".join(map(lines.line, records)))


def _journal(spec: settings.AuditSettings) -> Appends:
    assert spec.file is not None
    return Journal(Path(spec.file), spec.max_bytes if spec.rotate else None, spec.files)
