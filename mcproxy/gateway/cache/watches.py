"""Resources that the cache itself watches upstream, so that their entries stay right without a TTL.

Bounded for each upstream: the least recently used watch is replaced. Decides alone; `read_cache` subscribes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NoReturn

import msgspec

from mcproxy.call.clients import Change, InputRequest
from mcproxy.call.errors import McpError
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import METHOD_NOT_FOUND

_CALLER = Caller(ANONYMOUS, LATEST)


class Watch:
    """One resource of one upstream, watched. A `Listener`, so that it counts among the clients that watch it too.

    It only keeps the subscription alive: the cache learns of reported changes as events, before any listener is
    signalled.
    """

    def __init__(self, upstream: str, uri: str) -> None:
        self.upstream = upstream
        self.uri = uri
        self.confirmed = False
        """Whether the upstream agreed to report changes; until then they may go unreported."""

    @property
    def caller(self) -> Caller:
        return _CALLER

    def set_log_level(self, level: str) -> None:
        return

    def signal(self, change: Change) -> None:
        return

    async def ask(self, request: InputRequest) -> NoReturn:
        raise McpError(METHOD_NOT_FOUND, "the gateway's cache watches this resource: there is no client to ask")


class WatchChanges(msgspec.Struct, frozen=True):
    """The watch to begin, if any, and those to end because it replaced them."""

    began: Watch | None = None
    ended: tuple[Watch, ...] = ()


class Watches:
    """The watches of one upstream."""

    def __init__(self, upstream: str, limit: int) -> None:
        self._upstream = upstream
        self._limit = limit
        self._by_uri: OrderedDict[str, Watch] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_uri)

    def touch(self, uri: str) -> None:
        """Marks `uri` as the most recently used."""
        if uri in self._by_uri:
            self._by_uri.move_to_end(uri)

    def want(self, uri: str) -> WatchChanges:
        """Begins a watch of `uri`, unless there is one."""
        if uri in self._by_uri:
            self._by_uri.move_to_end(uri)
            return WatchChanges()
        began = self._by_uri[uri] = Watch(self._upstream, uri)
        ended = [self._by_uri.popitem(last=False)[1] for _ in range(len(self._by_uri) - self._limit)]
        return WatchChanges(began, tuple(ended))

    def confirmed(self, uri: str) -> Watch | None:
        """The watch of `uri` to which the upstream agreed, if there is one."""
        watch = self._by_uri.get(uri)
        return watch if watch is not None and watch.confirmed else None

    def holds(self, watch: Watch) -> bool:
        """Whether `watch` is still in force, that is neither replaced nor ended."""
        return self._by_uri.get(watch.uri) is watch

    def clear(self) -> tuple[Watch, ...]:
        """Ends all watches: the link that they were made over is gone."""
        ended = tuple(self._by_uri.values())
        self._by_uri.clear()
        return ended
