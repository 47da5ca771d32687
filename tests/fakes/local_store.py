"""The store that replicas share, in memory, for replicas in one process. In place of scripts it runs their twins."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import MappingProxyType

import anyio

from mcproxy.cluster.ledger import RESERVE
from mcproxy.cluster.store.protocol import START, Argument, ScriptResult, StreamEntry, StreamPosition
from mcproxy.concurrency.wakeup import Wakeup

Memory = MutableMapping[str, bytes]
"""The keys of a store."""

Twin = Callable[[Memory, Sequence[str], Sequence[Argument], float], ScriptResult]
"""Is given the keys of the store, those of this run, its arguments, and the Unix time in seconds."""

PER_KEY = 9
"""Arguments of `ledger.RESERVE` for each key."""


def reserve(held: Memory, keys: Sequence[str], arguments: Sequence[Argument], now: float) -> ScriptResult:
    """What `ledger.RESERVE` does; a count is a JSON object."""
    members = int(arguments[0])
    live, rest = arguments[1 : 1 + members], arguments[1 + members :]
    answers: list[ScriptResult] = []
    for index, key in enumerate(keys):
        measure, id, *numbers = rest[index * PER_KEY : (index + 1) * PER_KEY]
        used, granted, needed, wanted, limit, rate, over = (float(number) for number in numbers)
        count = json.loads(held.get(key, b"{}"))
        parts: dict[str, float] = count.setdefault("parts", {})
        interval, full, others = 0.0, 0.0, 0.0
        if measure == "at_once":
            mine = 0.0
            others = sum(part for name, part in parts.items() if name != id and name.partition(":")[0] in live)
            left = limit - others
        else:
            mine = parts.get(str(id), granted)
            total = count.get("total", 0) + (0 if id in parts else granted)
            left = limit - total
            if measure == "rate":
                interval, full = 1 / rate, max(now, count.get("full", now))
                left = math.floor(limit - (full - now) / interval + 1e-6)
        fresh = _share(mine, left, used, needed, wanted, members)
        if measure == "daily":
            count["total"], others = total + fresh - mine, total - mine
        elif measure == "rate":
            count["full"] = full = full + (fresh - mine) * interval
        parts[str(id)] = fresh
        if over:
            del parts[str(id)]
        held[key] = json.dumps(count).encode()
        wait = max(0.0, full - now - (limit - 1) * interval) if measure == "rate" else 0.0
        answers.append([int(fresh), int(others), math.ceil(wait * 1000)])
    return answers


def _share(mine: float, left: float, used: float, needed: float, wanted: float, members: int) -> float:
    """The most that one replica may have in all, if it has `mine` and `left` are unreserved."""
    if wanted <= mine:
        return max(used, wanted)
    required = max(mine, min(needed, mine + max(left, 0)))
    rest = left - (required - mine)
    return max(used, required + max(0.0, min(wanted - required, max(min(rest, 1.0), rest // members))))


class _Keys(MutableMapping[str, bytes]):
    """Keys with a time to live; one that is over has no value. A script's keys live for ever."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[str, tuple[bytes, float]] = {}

    def put(self, key: str, value: bytes, ttl: float) -> None:
        self._held[key] = (value, self._clock() + ttl)

    def __getitem__(self, key: str) -> bytes:
        value, until = self._held[key]
        if until <= self._clock():
            del self._held[key]
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: bytes) -> None:
        self._held[key] = (value, float("inf"))

    def __delitem__(self, key: str) -> None:
        del self._held[key]

    def __iter__(self) -> Iterator[str]:
        return (key for key in list(self._held) if key in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key) is not None


class LocalStore:
    """Implements `Store`. `clock` is a Unix time in seconds; `twins` are the scripts that it can run."""

    def __init__(
        self, clock: Callable[[], float] = time.time, twins: Mapping[str, Twin] = MappingProxyType({RESERVE: reserve})
    ) -> None:
        self._clock = clock
        self._twins = twins
        self._keys = _Keys(clock)
        self._groups: dict[str, _Keys] = {}
        self._streams: dict[str, list[StreamEntry]] = {}
        self._appended = Wakeup()

    async def get(self, key: str, wait: float = 0) -> bytes | None:
        return self._keys.get(key)

    async def put(self, key: str, value: bytes, ttl: float) -> None:
        self._keys.put(key, value, ttl)

    async def add(self, key: str, value: bytes, ttl: float) -> bool:
        if key in self._keys:
            return False
        self._keys.put(key, value, ttl)
        return True

    async def take(self, key: str) -> bytes | None:
        return self._keys.pop(key, None)

    async def remove(self, key: str, expected: bytes | None = None) -> bool:
        held = self._keys.get(key)
        if held is None or expected not in {None, held}:
            return False
        del self._keys[key]
        return True

    async def replace(self, key: str, value: bytes, ttl: float, expected: bytes | None) -> bool:
        if self._keys.get(key) != expected:
            return False
        self._keys.put(key, value, ttl)
        return True

    async def names(self, prefix: str) -> Sequence[str]:
        return [key for key in self._keys if key.startswith(prefix)]

    async def announce(self, group: str, name: str, value: bytes, ttl: float) -> Mapping[str, bytes]:
        members = self._groups.setdefault(group, _Keys(self._clock))
        members.put(name, value, ttl)
        # One whose time is over between two looks is gone.
        return {member: told for member in members if (told := members.get(member)) is not None}

    async def withdraw(self, group: str, name: str) -> None:
        self._groups.get(group, _Keys(self._clock)).pop(name, None)

    async def append(self, stream: str, value: bytes, keep: int) -> StreamPosition:
        entries = self._streams.setdefault(stream, [])
        last = entries[-1].position if entries else StreamPosition(int(self._clock() * 1000), 0)
        position = StreamPosition(last.epoch, last.number + 1)
        entries.append(StreamEntry(position, value))
        del entries[:-keep]
        self._appended.notify_all()
        return position

    async def end(self, stream: str) -> StreamPosition:
        entries = self._streams.get(stream)
        return entries[-1].position if entries else START

    async def read(self, stream: str, after: StreamPosition, wait: float) -> Sequence[StreamEntry]:
        with anyio.move_on_after(wait):
            while not (found := [entry for entry in self._streams.get(stream, ()) if entry.position > after]):
                await self._appended.wait()
            return found
        return []

    async def run(self, lua: str, keys: Sequence[str], arguments: Sequence[Argument]) -> ScriptResult:
        return self._twins[lua](self._keys, keys, arguments, self._clock())

    async def close(self) -> None:
        return
