"""Publishes changes to the other replicas, and receives theirs, over a stream in the shared store.

Entries are numbered without gaps twice: by the store, and by their sender, sealed with the events. So whoever can
write into the store can neither renumber nor replay them. A replica that missed some, or finds the stream lost, drops
everything that it remembers. It ignores its own entries. When the store was down and is back, reading and writing
resume where they stopped; events wait until then, and too many of them are published as a gap.
"""

from __future__ import annotations

import secrets
from enum import Enum
from typing import Final, Literal, Protocol

import anyio
import msgspec
import structlog
from cachetools import LRUCache

from mcproxy.call.clients import ListChanged, ResourceUpdated
from mcproxy.call.upstreams import UpstreamChanged, UpstreamEvent
from mcproxy.cluster.store.protocol import START, Store, StoreUnavailable, StreamEntry, StreamPosition, follows
from mcproxy.concurrency.wakeup import Wakeup
from mcproxy.protocol.methods import Kind
from mcproxy.sealing import Sealer, Unsealable
from mcproxy.telemetry.metrics import Metrics

STREAM: Final = "events"
KEPT: Final = 10_000
"""Entries of the stream that the store keeps."""
MAX_PENDING: Final = 1000
"""Events that may wait to be published; beyond that, other replicas are told that all they remember is stale."""
READ_WAIT: Final = 5.0
"""Seconds that one read waits for the next entry."""
PACE: Final = 0.005
"""Seconds between two entries of this replica, so that many events are one."""
AWAY: Final = 0.5
"""Seconds until a store that failed is tried again."""

MAX_SENDERS: Final = 4096
"""Senders of events that are remembered: replicas, and commands, each of which is another sender."""

_PURPOSE: Final = "cluster events"

log = structlog.get_logger()


class StaleResource(msgspec.Struct, frozen=True, tag=True):
    """An upstream reported that a resource changed."""

    upstream: str
    uri: str


class StaleList(msgspec.Struct, frozen=True, tag=True):
    """An upstream reported that a list changed."""

    upstream: str
    kind: str


class StaleReads(msgspec.Struct, frozen=True, tag=True):
    """A call may have changed any resource of an upstream."""

    upstream: str


class StaleAccess(msgspec.Struct, frozen=True, tag=True):
    """A replica put another configuration in force: access rules or approved definitions may have changed."""


class StaleAll(msgspec.Struct, frozen=True, tag=True):
    """Events were lost before they could be published."""


class SessionEnded(msgspec.Struct, frozen=True, tag=True):
    """A client ended its session; `key` is the session's."""

    key: str


class GrantChanged(msgspec.Struct, frozen=True, tag=True):
    """A login, a refresh or a revocation changed the grant of a principal at an upstream."""

    upstream: str
    principal: str


ClusterEvent = StaleResource | StaleList | StaleReads | StaleAccess | StaleAll | SessionEnded | GrantChanged


_Doing = Literal["reading", "writing"]


class _Told(msgspec.Struct, frozen=True, array_like=True):
    origin: str
    """The label of the replica that publishes it."""
    events: list[ClusterEvent]
    sender: str = ""
    """Identifies the process that publishes it, among those before and after it; empty if it is of an older version."""
    number: int = 0
    """Its number among the entries of its sender, from 1."""


class Hearer(Protocol):
    """Reacts to other replicas' events."""

    def on_cluster_event(self, event: ClusterEvent) -> None:
        """Never blocks."""

    def on_gap(self) -> None:
        """Events were missed: everything that is remembered may be stale. Never blocks."""


_decoder: Final = msgspec.json.Decoder(_Told)


class Senders:
    """How far the entries of each sender were read; of at most MAX_SENDERS, those heard of last."""

    def __init__(self) -> None:
        self._numbers: LRUCache[str, int] = LRUCache(MAX_SENDERS)

    def arrival(self, sender: str, number: int) -> Arrival:
        """How an entry follows those before it of the same sender."""
        before = self._numbers.get(sender, 0)
        if not sender or number < 1:
            return Arrival.AFTER_GAP
        if number <= before:
            return Arrival.AGAIN
        self._numbers[sender] = number
        return Arrival.NEXT if number == before + 1 else Arrival.AFTER_GAP


class Arrival(Enum):
    """How an entry follows those before it."""

    NEXT = "nothing is missing"
    AFTER_GAP = "entries before it are missing, or it is not known whether any are"
    AGAIN = "it was read before"


class ClusterEvents:
    """Publishes events to other replicas, and passes theirs to `hearer`."""

    def __init__(self, store: Store, sealer: Sealer, hearer: Hearer, metrics: Metrics) -> None:
        self._store = store
        self._sealer = sealer
        self._hearer = hearer
        self._metrics = metrics
        self._pending: dict[ClusterEvent, None] = {}
        self._told = Wakeup()
        self._sender = secrets.token_hex(8)
        self._number = 0
        self._senders = Senders()
        self._position: StreamPosition | None = None
        """The position of the last entry that was read; None before the first read."""
        self._failing: set[_Doing] = set()
        """What the store refuses, or does not answer, as it was last asked."""

    def on_event(self, event: UpstreamEvent) -> None:
        """Publishes what an upstream announced over a shared link: other replicas may not have heard it."""
        if isinstance(event, UpstreamChanged) and event.owner is None:
            match event.change:
                case ResourceUpdated(uri=uri):
                    self.tell(StaleResource(event.upstream, uri))
                case ListChanged(kind=kind):
                    self.tell(StaleList(event.upstream, kind.value))
                case _:
                    pass

    def tell(self, event: ClusterEvent) -> None:
        """Publishes an event. Never blocks. Equal events that still wait are published once."""
        if len(self._pending) >= MAX_PENDING and event not in self._pending:
            self._pending, event = {}, StaleAll()
        self._pending[event] = None
        self._told.notify_all()

    async def run(self) -> None:
        """Publishes and receives until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._write)
            tasks.start_soon(self._read)

    async def _write(self) -> None:
        while True:
            while not self._pending:
                await self._told.wait()
            events, self._pending = list(self._pending), {}
            self._number += 1
            await self._append(_Told(self._sealer.label, events, self._sender, self._number))
            self._metrics.cluster_events.labels("told").inc(len(events))
            await anyio.sleep(PACE)

    async def _append(self, told: _Told) -> None:
        """Appends an entry as often as needed. One that is there twice is read once: it has the same number."""
        while True:
            try:
                await _append(self._store, self._sealer, told)
            except StoreUnavailable as error:
                self._fails("writing", error)
                await anyio.sleep(AWAY)
            else:
                self._works("writing")
                return

    async def _read(self) -> None:
        while True:
            try:
                await self._resume()
                while True:
                    assert self._position is not None
                    entries = await self._store.read(STREAM, self._position, READ_WAIT)
                    self._works("reading")
                    for entry in entries:
                        self._take(entry)
            except StoreUnavailable as error:
                self._fails("reading", error)
                await anyio.sleep(AWAY)

    def _fails(self, doing: _Doing, error: StoreUnavailable) -> None:
        if doing not in self._failing:
            self._failing.add(doing)
            log.warning(
                "changes do not go round among the replicas: cached reads may be out of date",
                doing=doing,
                why=str(error),
            )

    def _works(self, doing: _Doing) -> None:
        if doing in self._failing:
            self._failing.discard(doing)
            log.info("changes go round among the replicas again", doing=doing)

    async def _resume(self) -> None:
        """Goes on after the last entry that was read; of a stream that took that one's place all is read."""
        end = await self._store.end(STREAM)
        if self._position is None:
            self._position = end
        elif end == START or end.epoch != self._position.epoch:
            self._miss()
            self._position = StreamPosition(end.epoch, 0)
        elif end.number < self._position.number:
            self._miss()
            self._position = end

    def _take(self, entry: StreamEntry) -> None:
        assert self._position is not None
        if not follows(self._position, entry.position):
            self._miss()
        self._position = entry.position
        try:
            told = _decoder.decode(self._sealer.open(_PURPOSE, entry.value.decode()))
        except (Unsealable, msgspec.MsgspecError, UnicodeDecodeError):
            log.warning("a cluster event was not sealed with our secret: counted as a gap")
            self._miss()
            return
        if told.origin == self._sealer.label:
            return
        match self._senders.arrival(told.sender, told.number):
            case Arrival.AGAIN:
                return
            case Arrival.AFTER_GAP:
                self._miss()
            case Arrival.NEXT:
                pass
        self._metrics.cluster_events.labels("heard").inc(len(told.events))
        for event in told.events:
            if isinstance(event, StaleAll):
                self._miss()
            else:
                self._hearer.on_cluster_event(event)

    def _miss(self) -> None:
        self._metrics.cluster_events.labels("gap").inc()
        self._hearer.on_gap()


async def append(store: Store, sealer: Sealer, events: list[ClusterEvent]) -> None:
    """Publishes events of a process that publishes no others, to all replicas. Raises StoreUnavailable."""
    await _append(store, sealer, _Told(sealer.label, events, secrets.token_hex(8), 1))


async def _append(store: Store, sealer: Sealer, told: _Told) -> None:
    await store.append(STREAM, sealer.seal(_PURPOSE, msgspec.json.encode(told)).encode(), KEPT)


def upstream_change(event: StaleResource | StaleList) -> UpstreamChanged:
    """Another replica's event as this replica's own upstream event."""
    if isinstance(event, StaleResource):
        return UpstreamChanged(event.upstream, None, ResourceUpdated(event.uri))
    return UpstreamChanged(event.upstream, None, ListChanged(Kind(event.kind)))
