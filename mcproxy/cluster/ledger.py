"""The counts of limits that replicas share, in the store; replicas reserve parts of them outside calls' way.

One task requests all that is wanted, in one script and once every few milliseconds. While the store is down nothing
waits for it: `is_away` says so, and limits use each replica's own counts. Usage is reported later.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib import resources
from typing import Final

import anyio
import msgspec
import structlog

from mcproxy.cluster.store.protocol import (
    Argument,
    MalformedAnswer,
    ScriptResult,
    Store,
    StoreUnavailable,
)
from mcproxy.concurrency.clock import Clock
from mcproxy.concurrency.wakeup import Wakeup
from mcproxy.features.limits.reservations import RETRY, CounterKey, Measure, Reservation

PACE: Final = 0.01
"""Seconds between two requests, so that many calls make one request; a call that waits is served at once."""
BATCH: Final = 100
"""Counts in one request."""
AWAY: Final = 0.5
"""Seconds until a store that did not answer is tried again."""
CLOSE_TIMEOUT: Final = 1.0
"""Seconds for giving back unused reservations at the end."""
MAX_WANTED: Final = 100_000
"""Reservations that may wait to be requested; beyond that, unused ones are not given back."""

log = structlog.get_logger()


class SharedLedger:
    """Implements `access.reservations.Ledger`.

    `own` is this replica's name; `live` returns those of all live replicas.
    """

    def __init__(
        self,
        store: Store,
        own: str,
        live: Callable[[], Collection[str]],
        clock: Clock = time.monotonic,
        close_timeout: float = CLOSE_TIMEOUT,
    ) -> None:
        self._store = store
        self._own = own
        self._live = live
        self._clock = clock
        self._close_timeout = close_timeout
        self._numbers = itertools.count()
        self._wanted: dict[Reservation, anyio.Event | None] = {}
        """Wanted reservations; each with an event that is set upon the store's answer if a call waits for it."""
        self._known: dict[str, Reservation] = {}
        """The reservations that the store knows."""
        self._asked = Wakeup()
        self._urgent = Wakeup()
        self._is_requesting = False
        self.is_away = False

    @property
    def is_asking(self) -> bool:
        """Whether something is wanted that the store has not answered yet, and may be asked for now."""
        now = self._clock()
        return self._is_requesting or any(wanted.is_due(now) for wanted in self._wanted)

    @property
    def members(self) -> int:
        """The number of replicas that share the limits, this one included."""
        return len({self._own, *self._live()})

    def name(self) -> str:
        return f"{self._own}:{next(self._numbers)}"

    def ask(self, reservation: Reservation) -> None:
        if reservation in self._wanted:
            return
        if reservation.is_over and (not reservation.granted or len(self._wanted) >= MAX_WANTED):
            self._known.pop(reservation.id, None)
            return
        self._wanted[reservation] = None
        self._asked.notify_all()
        if reservation.is_urgent:
            self._urgent.notify_all()

    async def reserve(self, reservation: Reservation) -> None:
        if self.is_away or reservation.granted >= reservation.needed or self._clock() < reservation.retry_at:
            return
        self.ask(reservation)
        answered = self._wanted[reservation] or anyio.Event()
        self._wanted[reservation] = answered
        await answered.wait()

    async def run(self) -> None:
        """Requests what is wanted until cancelled, then gives back what was not used."""
        try:
            while True:
                await self._round()
        finally:
            with anyio.move_on_after(self._close_timeout, shield=True):
                await self._close()

    async def _round(self) -> None:
        now = self._clock()
        due = list(itertools.islice((wanted for wanted in self._wanted if wanted.is_due(now)), BATCH))
        if not due:
            earliest = min((wanted.retry_at for wanted in self._wanted), default=math.inf)
            with anyio.move_on_after(earliest - now):
                await self._asked.wait()
            return
        answered = [event for event in map(self._wanted.pop, due) if event is not None]
        self._is_requesting = True
        try:
            await self._ask_for(due)
        except StoreUnavailable as error:
            self._lost(due, error)
        finally:
            self._is_requesting = False
            for event in answered:
                event.set()
        if self.is_away:
            await anyio.sleep(AWAY)
        elif not any(wanted.is_urgent and wanted.is_due(now) for wanted in self._wanted):
            with anyio.move_on_after(PACE):
                await self._urgent.wait()

    async def _ask_for(self, due: Sequence[Reservation]) -> None:
        """Raises StoreUnavailable."""
        live = sorted({self._own, *self._live()})
        arguments: list[Argument] = [len(live), *live]
        wanted = [reservation.wanted for reservation in due]
        for reservation in due:
            arguments += _arguments(reservation)
        keys = [_key(reservation) for reservation in due]
        answers = _numbers(await self._store.run(RESERVE, keys, arguments), len(due))
        now = self._clock()
        for reservation, asked, (granted, others, wait) in zip(due, wanted, answers, strict=True):
            reservation.settle(granted, asked, others, _wait(reservation.measure, wait / 1000), now)
            if reservation.is_over:
                self._known.pop(reservation.id, None)
            else:
                self._known[reservation.id] = reservation
        if self.is_away:
            self.is_away = False
            log.info("limits are counted over all replicas again")

    def _lost(self, due: Iterable[Reservation], error: StoreUnavailable) -> None:
        for reservation in due:
            self._wanted.setdefault(reservation, None)
        if not self.is_away:
            self.is_away = True
            log.warning("limits are counted by each replica for itself: the shared counts are away", why=str(error))

    async def _close(self) -> None:
        for reservation in self._known.values():
            reservation.is_over = True
            self._wanted.setdefault(reservation, None)
        try:
            while self._wanted:
                due = list(itertools.islice(self._wanted, BATCH))
                for reservation in due:
                    del self._wanted[reservation]
                await self._ask_for(due)
        except StoreUnavailable as error:
            log.info("what was reserved of limits could not be given back", why=str(error))


def _key(reservation: Reservation) -> str:
    """All keys are in one slot of a Redis Cluster, so that one script can change many."""
    return f"{{limits}}:{reservation.measure.value}:{_digest(reservation.key)}:{reservation.window:.0f}"


def _digest(key: CounterKey) -> str:
    """A digest for keys, which may hold no caller's name."""
    return hashlib.blake2b(json.dumps(key).encode(), digest_size=16).hexdigest()


def _arguments(reservation: Reservation) -> list[Argument]:
    r = reservation
    return [r.measure.value, r.id, r.used, r.granted, r.needed, r.wanted, r.limit, r.rate, int(r.is_over)]


def _numbers(answers: ScriptResult, count: int) -> list[tuple[int, int, int]]:
    """What the script returns for each of `count` keys. Raises StoreUnavailable."""
    try:
        numbers = msgspec.convert(answers, list[tuple[int, int, int]])
    except msgspec.ValidationError as error:
        raise MalformedAnswer(str(error)) from error
    if len(numbers) != count:
        raise MalformedAnswer(f"{len(numbers)} counts in place of {count}")
    return numbers


def _wait(measure: Measure, wait: float) -> float:
    """Seconds until there will be more, if nothing is left."""
    match measure:
        case Measure.RATE:
            return wait
        case Measure.DAILY:
            return math.inf
        case Measure.AT_ONCE:
            return RETRY


RESERVE: Final = (resources.files(__package__) / "reserve.lua").read_text()
"""The script by which replicas reserve parts of counts; its own comments say what it takes and returns."""
