"""Sums up the audit log for the status page: in a thread, one reading at a time, and for a limited time.

The reading is that of `mcproxy usage`. It runs in a thread that gives way after each slice of lines, so that it holds
up no call; operators who look at the same figures together share one reading.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from mcproxy.access.audit.usage import UsageReport, read_usage

WINDOWS: Final[Mapping[str, float | None]] = {"1d": 86_400.0, "7d": 7 * 86_400.0, "30d": 30 * 86_400.0, "all": None}
"""The times that a page can be about: seconds until now, by name; None for the whole log."""
MAX_ROWS: Final = 10_000
"""Rows that are kept apart; further ones share one."""
TIME_LIMIT: Final = 20.0
"""Seconds that a reading may take."""
FRESH: Final = 5.0
"""Seconds for which a reading is shown again."""
GIVE_WAY: Final = 0.001
"""Seconds that a reading pauses after each slice."""


class NoUsage(msgspec.Struct, frozen=True):
    """There are no figures; `why` is a sentence for operators."""

    why: str


class _OutOfTime(Exception):
    """The reading is stopped: it took too long, or its reader is gone."""


class UsageReader:
    """Reads the audit log that `file` returns: the one that is written now; None where there is none."""

    def __init__(
        self,
        file: Callable[[], str | None],
        clock: Callable[[], float] = time.time,
        time_limit: float = TIME_LIMIT,
    ) -> None:
        self._file = file
        self._clock = clock
        self._time_limit = time_limit
        self._reading = anyio.Lock()
        self._latest: tuple[tuple[object, ...], float, UsageReport] | None = None

    async def read(self, by: tuple[str, ...], window: str) -> UsageReport | NoUsage:
        """The usage by `by`, names of COLUMNS, in one of WINDOWS."""
        file = self._file()
        if file is None:
            return NoUsage("There is no audit log: set access.audit.file.")
        async with self._reading:
            wanted = (file, by, window)
            if self._latest is not None and self._latest[0] == wanted and self._clock() - self._latest[1] < FRESH:
                return self._latest[2]
            self._latest = None
            found = await self._summed(Path(file), by, WINDOWS[window])
            if isinstance(found, UsageReport):
                self._latest = wanted, self._clock(), found
            return found

    async def _summed(self, file: Path, by: tuple[str, ...], seconds: float | None) -> UsageReport | NoUsage:
        end, left = time.monotonic() + self._time_limit, threading.Event()

        def give_way() -> None:
            if left.is_set() or time.monotonic() > end:
                raise _OutOfTime
            time.sleep(GIVE_WAY)

        def read() -> UsageReport:
            since = None if seconds is None else self._clock() - seconds
            return read_usage(file, by, since, max_rows=MAX_ROWS, after_slice=give_way)

        try:
            return await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
        except _OutOfTime:
            return NoUsage(f"The audit log cannot be summed up in {self._time_limit:g} s: run mcproxy usage.")
        except OSError as error:
            return NoUsage(f"The audit log cannot be read: {error.strerror or type(error).__name__}.")
        finally:
            left.set()
