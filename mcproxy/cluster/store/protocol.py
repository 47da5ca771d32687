"""The protocol of what replicas share: keys with a time to live, groups of members, numbered streams, scripts.

Values are bytes: who writes them seals them, because the store is not trusted. Every method waits for a bounded time
and raises StoreUnavailable, after which it is unknown whether it took effect; none is repeated by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

Argument = str | int | float | bytes
ScriptResult = int | bytes | list["ScriptResult"] | None


class StoreUnavailable(Exception):
    """The store did not answer in time, refused, or is not there. Whether it did what was asked is unknown."""


class MalformedAnswer(StoreUnavailable):
    """The store answered in another form than Redis does; `why` says in which."""

    def __init__(self, why: str) -> None:
        super().__init__(f"an answer of another form than Redis gives: {why}")


class StreamPosition(NamedTuple):
    """Where an entry stands in a stream. A stream that is lost and begun again has another epoch."""

    epoch: int
    number: int


START: Final = StreamPosition(0, 0)
"""Before the first entry of a stream, and the end of one that has none."""


class StreamEntry(NamedTuple):
    """One entry of a stream: the bytes that were appended, and where they are."""

    position: StreamPosition
    value: bytes


def follows(before: StreamPosition, after: StreamPosition) -> bool:
    """Whether no entry is missing between two positions; if one may be, all that it told may be out of date."""
    if before == START or before.epoch == after.epoch:
        return after.number == before.number + 1
    return False


class Store(Protocol):
    """Implemented by `redis_store.RedisStore`. Times are seconds; keys are without the store's own prefix."""

    async def get(self, key: str, wait: float = 0) -> bytes | None:
        """The value of a key; None if it has none, or its time is over. `wait`: seconds that it may take beside."""

    async def put(self, key: str, value: bytes, ttl: float) -> None:
        """Sets a key for `ttl` seconds."""

    async def add(self, key: str, value: bytes, ttl: float) -> bool:
        """As `put`, unless the key has a value already; returns whether it was set."""

    async def take(self, key: str) -> bytes | None:
        """The value of a key, which is removed in the same step: of many that ask, one is given it."""

    async def remove(self, key: str, expected: bytes | None = None) -> bool:
        """Removes a key, with `expected` only while that is its value; returns whether it was removed."""

    async def replace(self, key: str, value: bytes, ttl: float, expected: bytes | None) -> bool:
        """As `put`, if `expected` is the key's value, or with None, if it has none; returns whether it was set."""

    async def names(self, prefix: str) -> Sequence[str]:
        """All keys that begin with a prefix. Goes through the whole store: for what is done rarely."""

    async def announce(self, group: str, name: str, value: bytes, ttl: float) -> Mapping[str, bytes]:
        """Enters a member into a group for `ttl` seconds; returns all that are in it now, by the store's clock."""

    async def withdraw(self, group: str, name: str) -> None:
        """Takes a member out of a group."""

    async def append(self, stream: str, value: bytes, keep: int) -> StreamPosition:
        """Appends to a stream, of which about `keep` entries are kept."""

    async def end(self, stream: str) -> StreamPosition:
        """The position of the last entry."""

    async def read(self, stream: str, after: StreamPosition, wait: float) -> Sequence[StreamEntry]:
        """The entries after a position, oldest first; waits up to `wait` seconds for the first of them."""

    async def run(self, lua: str, keys: Sequence[str], arguments: Sequence[Argument]) -> ScriptResult:
        """Runs a Lua script, which changes several keys in one step; returns what that returns.

        All keys must be in one slot of a Redis Cluster: give them one hash tag, such as `limit:{alice}:day`.
        """

    async def close(self) -> None:
        """Closes its connections."""
