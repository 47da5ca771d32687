"""Answers `*/list`, page by page, and `server/discover`, from the caller's view of the catalogue."""

from __future__ import annotations

import json
import time
from typing import Final

from msgspec import Raw

from mcproxy import __version__
from mcproxy.call.calls import Call, Complete, Outcome
from mcproxy.call.errors import McpError
from mcproxy.call.identity import Caller
from mcproxy.call.upstreams import GATEWAY_CAPABILITY
from mcproxy.catalog.freshness import hints_of
from mcproxy.catalog.views.offers import agreed_extensions
from mcproxy.catalog.views.view import Shown
from mcproxy.concurrency.clock import Clock
from mcproxy.gateway.listings.fetcher import ListFetcher
from mcproxy.gateway.listings.listeners import Listeners
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.protocol.eras import META_SERVER_INFO, STATELESS_VERSIONS
from mcproxy.protocol.jsonrpc import EMPTY_OBJECT, INVALID_PARAMS, Params, first_level, parse_object, parse_text, raw
from mcproxy.protocol.methods import Kind
from mcproxy.sealing import Sealer, Unsealable
from mcproxy.settings import Proxy

_COMPLETE: Final = raw("complete")
_PUBLIC: Final = raw("public")
_PRIVATE: Final = raw("private")


class Lists:
    """Pages through views. A cursor holds a position and the last key before it, signed for one caller and one list."""

    def __init__(
        self,
        catalogue: Catalogue,
        fetcher: ListFetcher,
        listeners: Listeners,
        proxy: Proxy,
        sealer: Sealer,
        gateway_id: str | None,
        now: Clock = time.monotonic,
    ) -> None:
        self._catalogue = catalogue
        self._fetcher = fetcher
        self._listeners = listeners
        self._proxy = proxy
        self._sealer = sealer
        self._now = now
        self._listed: set[Kind] = set()
        """The lists that a host over stdio has asked for."""
        self._mark: Params = {GATEWAY_CAPABILITY + gateway_id: EMPTY_OBJECT} if gateway_id else {}

    async def list(self, call: Call) -> Outcome:
        """One page with its caching hints. Only the first page waits for upstreams that are still connecting."""
        kind = call.row.lists
        assert kind is not None
        cursor = cursor_of(call)
        if cursor is None:
            await self._fetcher.fresh(call.caller, kind, self._wait(kind, call.caller.transport))
        view, size = self._catalogue.view(call.caller), self._proxy.naming.page_size
        entries = view.lists[kind]
        if cursor is None and call.listener is not None:
            self._listeners.note_fetched(call.listener, kind, view)
        start = 0 if cursor is None else self._start(kind, call.caller, cursor, entries)
        end = start + size
        result = {"resultType": _COMPLETE, kind.member: view.page(kind, start, size), **self._hints(call.caller, kind)}
        if end < len(entries):
            result["nextCursor"] = raw(self._cursor(kind, call.caller, end, entries[end - 1].key))
        return Complete(result)

    def _wait(self, kind: Kind, transport: str) -> float:
        """Seconds for which a list waits: longer for the first over stdio, since such a host asks once."""
        if transport != "stdio" or kind in self._listed:
            return self._proxy.list_wait
        self._listed.add(kind)
        return max(self._proxy.list_wait, self._proxy.list_wait_first)

    async def discover(self, call: Call) -> Outcome:
        """The endpoint's capabilities and instructions (2026-07-28, server/discover). Waits for no upstream (R1)."""
        view = self._catalogue.view(call.caller)
        info = {"name": self._proxy.name, "version": __version__}
        members: dict[str, object] = {
            "supportedVersions": STATELESS_VERSIONS,
            "capabilities": self._marked(agreed_extensions(view.capabilities, call.caller)),
            "serverInfo": info,
            "_meta": {META_SERVER_INFO: info},
        }
        if view.instructions is not None:
            members["instructions"] = view.instructions
        return Complete(first_level(members))

    def _hints(self, caller: Caller, kind: Kind) -> Params:
        hints = hints_of(self._catalogue.parts(caller, kind), self._now())
        public = hints.public and self._catalogue.same_for_all(caller.endpoint)
        return {"ttlMs": raw(int((hints.ttl or 0.0) * 1000)), "cacheScope": _PUBLIC if public else _PRIVATE}

    def _marked(self, capabilities: Params) -> Params:
        """`capabilities` with this gateway's id, by which the gateway recognises itself as its own upstream (R15)."""
        experimental = parse_object(capabilities.get("experimental", EMPTY_OBJECT))
        return {**capabilities, "experimental": raw({**experimental, **self._mark})} if self._mark else capabilities

    def _cursor(self, kind: Kind, caller: Caller, position: int, last: str) -> str:
        return self._sealer.sign(_purpose(kind, caller), json.dumps([position, last]).encode())

    def _start(self, kind: Kind, caller: Caller, cursor: Raw, entries: tuple[Shown, ...]) -> int:
        """The index at which a page begins: after the last entry of the previous page, wherever that entry is now."""
        position, last = self._opened(kind, caller, cursor)
        if 0 < position <= len(entries) and entries[position - 1].key == last:
            return position
        return next((index + 1 for index, shown in enumerate(entries) if shown.key == last), position)

    def _opened(self, kind: Kind, caller: Caller, cursor: Raw) -> tuple[int, str]:
        try:
            position, last = json.loads(self._sealer.open_signed(_purpose(kind, caller), parse_text(cursor) or ""))
        except Unsealable as error:
            # pagination, Error Handling: "Invalid cursors SHOULD result in an error with code -32602".
            raise McpError(INVALID_PARAMS, "unknown cursor: list again from the start") from error
        return position, last


def cursor_of(call: Call) -> Raw | None:
    """The cursor of a list request; null, which some clients send, counts as no cursor."""
    cursor = call.params.get("cursor")
    return None if cursor == Raw(b"null") else cursor


def _purpose(kind: Kind, caller: Caller) -> str:
    return json.dumps(["cursor", kind.value, caller.endpoint, caller.principal.name])
