"""The replicas: who they are, which of them can be reached, and which of them takes a key that has no home.

Each announces itself in the store HEARTBEATS times in `member_ttl`, and learns of the others by the same command. A
member is dead when ABSENCES announcements in a row did not return it and it does not answer by itself either: one that
is only late lives. Where it refuses a connection it counts as dead until it answers. While the store is away, the
members that were known last count. Elects nobody.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
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
"""Seconds between two looks of a replica that is about to end at whether any other stays."""
MAX_STRANGERS: Final = 1000
"""Labels that no member has; each is looked for once in the time after which a member counts as dead."""
GROUP: Final = "members"

_COMPARED: Final = ("configuration", "lock", "version")
_PURPOSE: Final = "cluster member"

log = structlog.get_logger()


class Member(msgspec.Struct, frozen=True):
    """What a replica says of itself. `label` is that of its sealer, another one after each start."""

    label: str
    address: str
    """The URL of its internal listener."""
    version: str
    configuration: str
    """A digest of its settings, without those that differ from replica to replica."""
    lock: str
    """A digest of what `access.pins` has approved."""
    is_leaving: bool = False
    """Whether it shuts down: it ends what runs there, and takes nothing new."""


def chosen(key: str, labels: Iterable[str]) -> str:
    """Rendezvous hashing: the label that takes a key. Where one comes or goes, only its own keys move."""
    return max(labels, key=lambda label: hashlib.blake2b(f"{label}\0{key}".encode(), digest_size=8).digest())


def disagreements(one: Member, other: Member) -> list[str]:
    """In what two replicas differ that should agree."""
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
        """When this replica was last awake to announce itself, whether the store was there or not."""
        self._known: dict[str, Member] = {}
        self._announced: set[str] = set()
        """Labels of those that the store returned last, of which none is unknown."""
        self._absences: Counter[str] = Counter()
        """Announcements in a row that did not return a member, by label; none since it answered by itself."""
        self._late: set[str] = set()
        """Labels of those that are not announced, and answer."""
        self._asked: set[str] = set()
        """Labels of those that are being asked whether they live."""
        self._strangers: TTLCache[str, None] = TTLCache(MAX_STRANGERS, ttl, clock)
        """Labels that were looked for, and those of members that are gone."""
        self._looking = anyio.Lock()
        self._unreachable: set[str] = set()
        """Labels of those that refused a connection, and have not answered since."""
        self._mismatches: frozenset[str] = frozenset()
        self._store_is_away = False
        self.are_known = False
        """Whether this replica has ever heard who the others are; before, it cannot tell who is dead."""

    @property
    def own(self) -> Member:
        """This replica, as it announces itself."""
        member = self._describe()
        return replace(member, is_leaving=True) if self._leaving else member

    def all(self) -> list[Member]:
        """All that count now, this one first."""
        own = self.own
        return [own, *(member for label, member in sorted(self._known.items()) if label != own.label)]

    def find(self, label: str) -> Member | None:
        """Another replica that can be reached; None where it is dead, or never was."""
        member = self._known.get(label)
        return None if label in self._unreachable else member

    def owner(self, key: str) -> Member | None:
        """The replica that takes a key without a home; None if that is this one, or no other is there."""
        own = self.own
        others = {label: member for label in self._known if (member := self.find(label)) and not member.is_leaving}
        others.pop(own.label, None)
        candidates = others.keys() if self._leaving else {*others, own.label}
        return others.get(chosen(key, candidates)) if candidates else None

    async def look_for(self, label: str) -> None:
        """Has `find` know a member that came since this replica last announced itself."""
        if self._knows(label):
            return
        async with self._looking:
            if not self._knows(label):
                await self.announce(is_regular=False)
                if label not in self._known and not self._store_is_away:
                    self._strangers[label] = None

    def _knows(self, label: str) -> bool:
        """Whether the store could tell nothing more of who has a label."""
        is_known = label in self._known or label == self.own.label or label in self._strangers
        return not label or is_known or self._store_is_away

    def lose(self, label: str) -> None:
        """Takes note that a member refuses connections."""
        if label not in self._known:
            return
        self._unreachable.add(label)
        log.warning("a replica cannot be reached", replica=label)
        self._count()

    def is_announced(self, label: str) -> bool:
        """Whether the store returned a member at the last announcement: it lives, and may be slow."""
        return label in self._known and not self._store_is_away and label not in self._absences

    def note_leaving(self, label: str) -> None:
        """Takes note that a member shuts down, before it is announced here."""
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
        """Announces this replica once, and takes note of the others; of who is absent only if `is_regular`."""
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
            self._metrics.cluster_store_failures.inc()
            if not self._store_is_away:
                log.warning("the shared store is away; the replicas known last count", why=str(error))
            self._store_is_away = True
            return
        if self._store_is_away:
            log.info("the shared store is back")
        self._store_is_away, self.are_known = False, True
        self._take(list(filter(None, map(self._opened, found.values()))), is_regular)

    async def examine(self) -> None:
        """Asks the members that are not announced any more, or refused a connection, whether they live.

        Of the former those that do not answer are dead; of the latter those that do can be reached again.
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
        """Returns once no other replica is there that stays, or after so many seconds: until then all have heard."""
        with anyio.move_on_after(seconds):
            while any(not self._known[label].is_leaving for label in self._announced - {self.own.label}):
                await anyio.sleep(LOOK)
                await self.announce(is_regular=False)

    async def withdraw(self) -> None:
        """Announces that this replica is gone."""
        try:
            await self._store.withdraw(GROUP, self.own.label)
        except StoreUnavailable:
            self._metrics.cluster_store_failures.inc()

    def _opened(self, sealed: bytes) -> Member | None:
        """None for what no replica with our secret wrote."""
        try:
            return msgspec.json.decode(self._sealer.open(_PURPOSE, sealed.decode()), type=Member)
        except (Unsealable, msgspec.MsgspecError, UnicodeDecodeError):
            log.warning("an entry among the replicas was not sealed with our secret and is ignored")
            return None

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
        """An operator's mistake, or the middle of a rollout: callers see other tools at each replica."""
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
