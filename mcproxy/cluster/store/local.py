"""The store in memory, for tests: replicas in one process share it. Keeps nothing between runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence

import anyio

from mcproxy.cluster.store.protocol import START, Argument, Script, ScriptResult, StreamEntry, StreamPosition
from mcproxy.concurrency.wakeup import Wakeup


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
    """Implements `Store`. `clock` is a Unix time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._keys = _Keys(clock)
        self._groups: dict[str, _Keys] = {}
        self._streams: dict[str, list[StreamEntry]] = {}
        self._appended = Wakeup()

    async def get(self, key: str) -> bytes | None:
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

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> ScriptResult:
        return script.python(self._keys, keys, arguments, self._clock())

    async def close(self) -> None:
        return
