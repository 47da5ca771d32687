"""The store in Redis or Valkey, by redis-py (the extra `mcproxy[redis]`): the only module that imports it.

Nothing is repeated: redis-py's own retries are off, because a command whose answer was lost may have taken effect. An
answer of another form than Redis gives (a proxy's, or another program's data under our keys) is a failure as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from mcproxy.cluster.store.protocol import (
    START,
    Argument,
    MalformedAnswer,
    ScriptResult,
    Store,
    StoreUnavailable,
    StreamEntry,
    StreamPosition,
)

PREFIX: Final = "mcproxy:"
"""Before every key."""
MOST_READ: Final = 1000
"""Entries of a stream that are read at once."""
CONNECT_TIMEOUT: Final = 1.0
"""Seconds that connecting may take at least, where nothing waits for the answer: TLS and a name's resolution are in
it."""
SCAN_TIMEOUT: Final = 10.0
"""Seconds that going through all keys may take."""
SENTINEL_PORT: Final = 26379
MAX_SHOWN: Final = 64
"""Bytes of a malformed answer that are told."""

_VALUE: Final = b"v"
"""The one field of an entry in a stream."""

_MISREAD: Final = (msgspec.ValidationError, AttributeError, LookupError, TypeError, ValueError)
"""What comes of an answer of another form: redis-py's parsers raise what they run into."""
_Streams = list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes] | None]]]]
"""What XREAD answers: entries by stream."""

_ANNOUNCE: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f ', now + tonumber(ARGV[3])) .. ARGV[2])
local found = {}
local held = redis.call('HGETALL', KEYS[1])
for i = 1, #held, 2 do
    local ends, told = string.match(held[i + 1], '^(%d+) (.*)$')
    if ends and tonumber(ends) > now then
        found[#found + 1] = held[i]
        found[#found + 1] = told
    else
        redis.call('HDEL', KEYS[1], held[i])
    end
end
return found
"""
"""Members of a group: a hash whose values begin with the time, by the server's own clock, at which they end.

What is none of ours is removed.
"""

_APPEND: Final = """
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local epoch, number
if #last > 0 then
    epoch, number = string.match(last[1][1], '(%d+)-(%d+)')
else
    local time = redis.call('TIME')
    epoch, number = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)), 0
end
local id = epoch .. '-' .. string.format('%.0f', number + 1)
return redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], id, 'v', ARGV[1])
"""
"""Entries are numbered one by one, so that a reader sees a gap; the first part is when the stream was begun."""

_REMOVE: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

_REPLACE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""


def _nothing() -> None:
    return


class RedisStore:
    """Implements `Store`. `reading` is another client of the same server: reads that wait must not delay the rest."""

    def __init__(
        self,
        client: Redis | RedisCluster,
        reading: Redis | RedisCluster,
        timeout: float,
        on_failure: Callable[[], None],
    ) -> None:
        """`timeout`: seconds that each method may take, beside those that a read waits.

        `on_failure` is called each time that one fails.
        """
        self._client = client
        self._reading = reading
        self._timeout = timeout
        self._on_failure = on_failure

    async def get(self, key: str, wait: float = 0) -> bytes | None:
        value: bytes | None = await self._bounded(self._client.get(PREFIX + key), bytes | None, wait)
        return value

    async def put(self, key: str, value: bytes, ttl: float) -> None:
        await self._bounded(self._client.set(PREFIX + key, value, px=_milliseconds(ttl)), bool)

    async def add(self, key: str, value: bytes, ttl: float) -> bool:
        setting = self._client.set(PREFIX + key, value, px=_milliseconds(ttl), nx=True)
        return bool(await self._bounded(setting, bool | None))

    async def take(self, key: str) -> bytes | None:
        value: bytes | None = await self._bounded(self._client.getdel(PREFIX + key), bytes | None)
        return value

    async def remove(self, key: str, expected: bytes | None = None) -> bool:
        if expected is None:
            return bool(await self._bounded(self._client.delete(PREFIX + key), int))
        return bool(await self._scripted(_REMOVE, [key], [expected], int))

    async def replace(self, key: str, value: bytes, ttl: float, expected: bytes | None) -> bool:
        if expected is None:
            return await self.add(key, value, ttl)
        return bool(await self._scripted(_REPLACE, [key], [expected, value, _milliseconds(ttl)], int))

    async def names(self, prefix: str) -> Sequence[str]:
        async def found() -> list[str]:
            keys = self._client.scan_iter(match=f"{PREFIX}{prefix}*", count=MOST_READ)
            return [_text(key).removeprefix(PREFIX) async for key in keys]

        # Each part of the answer is short; there may be many.
        names: list[str] = await self._bounded(found(), list[str], SCAN_TIMEOUT)
        return names

    async def announce(self, group: str, name: str, value: bytes, ttl: float) -> Mapping[str, bytes]:
        # A background task's: it may connect anew at leisure, and the connection then serves the others.
        arguments: list[Argument] = [name, value, _milliseconds(ttl)]
        found: list[bytes] = await self._scripted(_ANNOUNCE, [group], arguments, list[bytes], CONNECT_TIMEOUT)
        return {_text(member): held for member, held in zip(found[::2], found[1::2], strict=False)}

    async def withdraw(self, group: str, name: str) -> None:
        await self._bounded(self._client.hdel(PREFIX + group, name), int)

    async def append(self, stream: str, value: bytes, keep: int) -> StreamPosition:
        return _position(await self._scripted(_APPEND, [stream], [value, keep], bytes))

    async def end(self, stream: str) -> StreamPosition:
        ending = self._client.xrevrange(PREFIX + stream, count=1)
        last: list[tuple[bytes, object]] = await self._bounded(ending, list[tuple[bytes, object]])
        return _position(last[0][0]) if last else START

    async def read(self, stream: str, after: StreamPosition, wait: float) -> Sequence[StreamEntry]:
        # The lowest block is a millisecond: 0 would mean for ever.
        reading = self._reading.execute_command(
            "XREAD", "COUNT", MOST_READ, "BLOCK", _milliseconds(wait), "STREAMS", PREFIX + stream, _id(after)
        )
        found: _Streams = await self._bounded(reading, _Streams, wait)
        entries = [entry for _, stream in found for entry in stream]
        return [StreamEntry(_position(id), (fields or {}).get(_VALUE, b"")) for id, fields in entries]

    async def run(self, lua: str, keys: Sequence[str], arguments: Sequence[Argument]) -> ScriptResult:
        result: ScriptResult = await self._scripted(lua, keys, arguments, Any)
        return result

    async def close(self) -> None:
        for client in (self._client, self._reading):
            await client.aclose()

    async def _scripted(
        self, lua: str, keys: Sequence[str], arguments: Sequence[Argument], form: object, wait: float = 0
    ) -> Any:
        script = self._client.register_script(lua)
        return await self._bounded(script(keys=[PREFIX + key for key in keys], args=list(arguments)), form, wait)

    async def _bounded(self, command: Awaitable[object], form: Any, wait: float = 0) -> Any:
        """What a command returns, a value of the type `form`. Raises StoreUnavailable."""
        try:
            async with asyncio.timeout(self._timeout + wait):
                return msgspec.convert(await command, form)
        except (RedisError, OSError, *_MISREAD) as error:  # TimeoutError is an OSError
            self._on_failure()
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        if isinstance(error, TimeoutError):
            return StoreUnavailable(f"no answer within cluster.timeout ({self._timeout:g} s)")
        if isinstance(error, _MISREAD):
            return MalformedAnswer(str(error))
        return StoreUnavailable(f"{type(error).__name__}: {error}")


def store_at(url: str, timeout: float, on_failure: Callable[[], None] = _nothing) -> RedisStore:
    """As `opened_store`, to be closed by its caller. `on_failure` is called each time that something fails."""
    return RedisStore(_client(url, timeout), _client(url, timeout), timeout, on_failure)


@asynccontextmanager
async def opened_store(url: str, timeout: float) -> AsyncIterator[Store]:
    """The store at `url`, which is connected to when it is first used; `timeout` is in seconds."""
    store = store_at(url, timeout)
    try:
        yield store
    finally:
        await store.close()


def _client(url: str, timeout: float) -> Redis | RedisCluster:
    connecting = max(CONNECT_TIMEOUT, timeout)
    options: dict[str, Any] = {"socket_connect_timeout": connecting, "socket_timeout": None, "protocol": 2}
    scheme, _, kind = urlsplit(url).scheme.partition("+")
    plain = f"{scheme}{url[url.index('://') :]}"
    if kind == "cluster":
        return RedisCluster.from_url(plain, **options)
    options |= {"retry": Retry(NoBackoff(), 0), "health_check_interval": 0}
    if kind == "sentinel":
        return _master(plain, options)
    return Redis.from_url(plain, **options)


def _master(url: str, options: dict[str, Any]) -> Redis:
    """A client of the master that sentinels name: `redis://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]]/SERVICE[/DB]`."""
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    service, _, database = parts.path.strip("/").partition("/")
    named = [host.partition(":") for host in hosts.split(",")]
    sentinels = [(host, int(port or SENTINEL_PORT)) for host, _, port in named]
    known = {"username": user or None, "password": password or None, "db": int(database or 0)}
    make: Any = Sentinel  # comes without types
    found = make(sentinels, sentinel_kwargs=options, ssl=parts.scheme == "rediss", **known, **options)
    master: Redis = found.master_for(service)
    return master


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _id(position: StreamPosition) -> str:
    return f"{position.epoch}-{position.number}"


def _position(id: bytes) -> StreamPosition:
    """Raises StoreUnavailable."""
    epoch, _, number = id.partition(b"-")
    if not (epoch.isdigit() and number.isdigit()):
        raise MalformedAnswer(repr(id[:MAX_SHOWN]))
    return StreamPosition(int(epoch), int(number))


def _text(name: bytes) -> str:
    """A name in the store; one that is no text of ours names nothing."""
    return name.decode(errors="replace")
