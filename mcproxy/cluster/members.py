"""The members of the cluster: their addresses, which can be reached, and which one takes a key that has no home.

Each announces itself in the store HEARTBEATS times in `member_ttl`, and learns of the others by the same command. A
member is dead when ABSENCES announcements in a row did not return it and it does not answer directly either; one that
is only late lives. If it refuses a connection, it counts as dead until it answers. While the store is down, the last
known members count. There is no election.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

import anyio
import msgspec
import structlog
from cachetools import TTLCache
from msgspec.structs import replace

from mcproxy.cluster.store.protocol import Store, StoreUnavailable
from mcproxy.sealing import Sealer, Unsealable
from mcproxy.telemetry.metrics import Metrics

HEARTBEATS: Final = 5
"""Announcements in the time after which a member counts as dead."""
ABSENCES: Final = 3
"""Announcements in a row that did not return a member: a store that lost its data returns few at first."""
LOOK: Final = 0.1
"""Seconds between two checks by a replica that is about to end whether another one stays."""
MAX_STRANGERS: Final = 1000
"""Unknown labels that are remembered; each is looked up once in the time after which a member counts as dead."""
GROUP: Final = "members"

_COMPARED: Final = ("configuration", "lock", "version")
_PURPOSE: Final = "cluster member"

log = structlog.get_logger()


class Member(msgspec.Struct, frozen=True):
    """A replica's description of itself. `label` is that of its sealer, a new one after each start."""

    label: str
    address: str
    """The URL of its internal listener."""
    version: str
    configuration: str
    """A digest of its settings, without those that may differ between replicas."""
    lock: str
    """A digest of the approved definitions (`access.pins`)."""
    placed: tuple[str, ...] = ()
    """The upstreams that it would run for all replicas (`placement`)."""
    is_leaving: bool = False
    """Whether it shuts down: it ends what runs there, and accepts nothing new."""


def chosen(key: str, labels: Iterable[str]) -> str:
    """Rendezvous hashing: the label that takes a key. When a label comes or goes, only its own keys move."""
    return max(labels, key=lambda label: hashlib.blake2b(f"{label}\0{key}".encode(), digest_size=8).digest())


def disagreements(one: Member, other: Member) -> list[str]:
    """The respects in which two replicas differ that should agree."""
    return [what for what in _COMPARED if getattr(one, what) != getattr(other, what)]


class Members:
    """`describe` tells what this replica is now. `clock` is monotonic, in seconds.

    `on_return` is called with the label of a member that came, or comes again: what was adopted from it is its own. It
    is called with this replica's own label after it was frozen for so long that others may have taken it for dead.
    `on_gone` is called with a member that is dead or has left. `answers` asks a member itself whether it lives.
    """

    def __init__(
        self,
        store: Store,
        sealer: Sealer,
        describe: Callable[[], Member],
        ttl: float,
        metrics: Metrics,
        on_return: Callable[[str], None],
        on_gone: Callable[[Member], None],
        answers: Callable[[Member], Awaitable[bool]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._sealer = sealer
        self._describe = describe
        self._ttl = ttl
        self._metrics = metrics
        self._clock = clock
        self._on_return = on_return
        self._on_gone = on_gone
        self._answers = answers
        self._leaving = False
        self._attempted = clock()
        """When this replica last ran to announce itself, whether the store was up or not."""
        self._known: dict[str, Member] = {}
        self._announced: set[str] = set()
        """Labels that the store returned last."""
        self._absences: Counter[str] = Counter()
        """By label, announcements in a row that did not return a member; reset when it answers directly."""
        self._late: set[str] = set()
        """Labels of members that are not announced, and answer."""
        self._asked: set[str] = set()
        """Labels of members that are being asked whether they live."""
        self._strangers: TTLCache[str, None] = TTLCache(MAX_STRANGERS, ttl, clock)
        """Unknown labels that were looked up, and labels of members that are gone."""
        self._looking = anyio.Lock()
        self._unreachable: set[str] = set()
        """Labels of members that refused a connection, and have not answered since."""
        self._mismatches: frozenset[str] = frozenset()
        self._foreign: frozenset[str] = frozenset()
        """Names under which the store returned last what no replica with our secret wrote."""
        self._store_is_away = False
        self.are_known = False
        """Whether this replica has ever heard of the others; before that, it cannot tell which are dead."""

    @property
    def own(self) -> Member:
        """This replica's announcement of itself."""
        member = self._describe()
        return replace(member, is_leaving=True) if self._leaving else member

    def all(self) -> list[Member]:
        """All members that count now, this one first."""
        own = self.own
        return [own, *(member for label, member in sorted(self._known.items()) if label != own.label)]

    def find(self, label: str) -> Member | None:
        """Another replica that can be reached; None if it is dead, or never was a member."""
        member = self._known.get(label)
        return None if label in self._unreachable else member

    def owner(self, key: str, placed: str = "") -> Member | None:
        """The replica that takes a key without a home; None for this one, or if there is no other.

        With `placed`, one of those that would run this upstream: replicas differ during a rollout.
        """
        own = self.own
        found = {label: member for label in self._known if (member := self.find(label)) and not member.is_leaving}
        others = {label: member for label, member in found.items() if not placed or placed in member.placed}
        others.pop(own.label, None)
        candidates = others.keys() if self._leaving else {*others, own.label}
        return others.get(chosen(key, candidates)) if candidates else None

    async def look_for(self, label: str) -> None:
        """Looks for a member that joined since this replica last announced itself, so that `find` knows it."""
        if self._knows(label):
            return
        async with self._looking:
            if not self._knows(label):
                await self.announce(is_regular=False)
                if label not in self._known and not self._store_is_away:
                    self._strangers[label] = None

    def _knows(self, label: str) -> bool:
        """Whether the store could say nothing new about a label."""
        is_known = label in self._known or label == self.own.label or label in self._strangers
        return not label or is_known or self._store_is_away

    def lose(self, label: str) -> None:
        """Notes that a member refuses connections."""
        if label not in self._known:
            return
        self._unreachable.add(label)
        log.warning("a replica cannot be reached", replica=label)
        self._count()

    def is_announced(self, label: str) -> bool:
        """Whether the last announcement returned a member: it lives, and may be slow."""
        return label in self._known and not self._store_is_away and label not in self._absences

    def note_leaving(self, label: str) -> None:
        """Notes that a member shuts down, before that is announced here."""
        if label in self._known:
            self._known[label] = replace(self._known[label], is_leaving=True)

    async def run(self) -> None:
        """Announces this replica until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                await self.announce()
                tasks.start_soon(self.examine)
                await anyio.sleep(self._ttl / HEARTBEATS)

    async def announce(self, *, is_regular: bool = True) -> None:
        """Announces this replica once, and takes in the others; counts absences only if `is_regular`."""
        now = self._clock()
        if now - self._attempted > self._ttl:
            log.warning("this replica was frozen, and may have been taken for dead", seconds=now - self._attempted)
            self._on_return(self.own.label)
        self._attempted = now
        own = self.own
        sealed = self._sealer.seal(_PURPOSE, msgspec.json.encode(own)).encode()
        try:
            found = await self._store.announce(GROUP, own.label, sealed, self._ttl)
        except StoreUnavailable as error:
            if not self._store_is_away:
                log.warning("the shared store is away; the replicas known last count", why=str(error))
            self._store_is_away = True
            return
        if self._store_is_away:
            log.info("the shared store is back")
        self._store_is_away, self.are_known = False, True
        opened = {name: self._opened(sealed) for name, sealed in found.items()}
        self._ignore(frozenset(name for name, member in opened.items() if member is None))
        self._take([member for member in opened.values() if member is not None], is_regular)

    async def examine(self) -> None:
        """Asks members that are no longer announced, or refused a connection, whether they live.

        The former are dead if they do not answer; the latter are reachable again if they do.
        """
        doubtful = {label for label, absences in self._absences.items() if absences >= ABSENCES} | self._unreachable
        async with anyio.create_task_group() as tasks:
            for label in doubtful - self._asked:
                if label in self._known:
                    tasks.start_soon(self._ask, self._known[label])

    async def _ask(self, member: Member) -> None:
        self._asked.add(member.label)
        lives = False
        try:
            with anyio.move_on_after(self._ttl):
                lives = await self._answers(member)
        finally:
            self._asked.discard(member.label)
        if lives and member.label in self._unreachable:
            self._unreachable.discard(member.label)
            self._on_return(member.label)
        if self._absences[member.label] < ABSENCES:
            return
        if not lives:
            self._remove(member.label)
            self._count()
            return
        self._absences[member.label] = 0
        if member.label not in self._late:
            self._late.add(member.label)
            log.warning("a replica is not announced any more, but answers", replica=member.label)

    async def leave(self) -> None:
        """Announces that this replica shuts down."""
        self._leaving = True
        await self.announce()

    async def linger(self, seconds: float) -> None:
        """Returns once no other replica stays, or after so many seconds: by then all have heard of the shutdown."""
        with anyio.move_on_after(seconds):
            while any(not self._known[label].is_leaving for label in self._announced - {self.own.label}):
                await anyio.sleep(LOOK)
                await self.announce(is_regular=False)

    async def withdraw(self) -> None:
        """Announces that this replica is gone."""
        with suppress(StoreUnavailable):
            await self._store.withdraw(GROUP, self.own.label)

    def _opened(self, sealed: bytes) -> Member | None:
        """The member in an entry; None if no replica with our secret wrote it."""
        try:
            return msgspec.json.decode(self._sealer.open(_PURPOSE, sealed.decode()), type=Member)
        except (Unsealable, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def _ignore(self, foreign: frozenset[str]) -> None:
        """Says once of each entry that no replica with our secret wrote that it is ignored."""
        if foreign - self._foreign:
            log.warning("entries of replicas were not sealed with our secret and are ignored", count=len(foreign))
        self._foreign = foreign

    def _take(self, announced: list[Member], counts_absences: bool) -> None:
        own, before = self.own, set(self._known)
        for member in announced:
            self._known[member.label] = member
            self._absences.pop(member.label, None)
            self._late.discard(member.label)
            self._strangers.pop(member.label, None)
        self._announced = present = {member.label for member in announced}
        for label in before - present:
            if self._known[label].is_leaving:
                self._remove(label)
            elif counts_absences:
                self._absences[label] += 1
        for label in present - before - {own.label}:
            log.info("a replica came", replica=label, address=self._known[label].address)
            self._on_return(label)
        self._compare(own)
        self._count()

    def _remove(self, label: str) -> None:
        self._on_gone(self._known.pop(label))
        self._announced.discard(label)
        self._strangers[label] = None
        self._absences.pop(label, None)
        self._late.discard(label)
        self._unreachable.discard(label)
        log.info("a replica is gone", replica=label)

    def _compare(self, own: Member) -> None:
        """Warns if replicas differ: by mistake, or during a rollout, callers then see other tools at each."""
        others = [member for label, member in self._known.items() if label != own.label]
        counts = Counter(what for member in others for what in disagreements(own, member))
        for what in _COMPARED:
            count = counts[what]
            self._metrics.cluster_mismatches.labels(what).set(count)
        now = frozenset(counts)
        if now - self._mismatches:
            log.warning("replicas differ", what=sorted(now))
        self._mismatches = now

    def _count(self) -> None:
        others = [member for label, member in self._known.items() if label != self.own.label]
        states = Counter(self.state(member) for member in [self.own, *others])
        for state in ("live", "leaving", "unreachable"):
            self._metrics.cluster_members.labels(state).set(states[state])

    def state(self, member: Member) -> str:
        """`live`, `leaving` or `unreachable`."""
        if member.label in self._unreachable:
            return "unreachable"
        return "leaving" if member.is_leaving else "live"
