"""The whole of results that callers were shown in part: resources of the gateway, read whole or in pieces.

Kept results are bounded in bytes and expire. Each is sealed to the principal and the endpoint for which it was made,
and each read is checked against the rights that its caller has at that time. Results exist only in memory: after a
restart, or if a result was dropped to make room, the tool has to be called again.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from mcproxy import settings
from mcproxy.call.calls import Call, Complete
from mcproxy.call.errors import McpError
from mcproxy.call.identity import Caller, Rights
from mcproxy.catalog.uris import RESULT_SCHEME as SCHEME
from mcproxy.features.results.shortening import boundary
from mcproxy.protocol.eras import STATELESS_VERSIONS
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, RESOURCE_NOT_FOUND, Params, first_level, parse_text, size_of
from mcproxy.sealing import Sealer, Unsealable

_URI: Final = re.compile(SCHEME + r":(?P<token>[\w.-]+)(?:/(?P<start>\d{1,15})-(?P<end>\d{1,15}))?/?", re.ASCII)
_START: Final = f'"{SCHEME}:'.encode()


class Origin(msgspec.Struct, frozen=True):
    """The call that produced a result, in its upstream's own names."""

    caller: Caller
    upstream: str = ""
    tool: str = ""
    arguments: Params | None = None
    """What the upstream got, as far as a policy can judge it; None if unknown, as for a task."""

    @property
    def size(self) -> int:
        """Bytes of it that are kept with each result."""
        return size_of(self.arguments) if self.arguments else 0


class KeptOrigin(msgspec.Struct, frozen=True):
    """The facts that decide who may read a result."""

    rights: Rights
    upstream: str
    tool: str
    arguments: Params | None


MayRead = Callable[[Caller, KeptOrigin], bool]
"""Whether a caller may make such a call now."""


class _KeptResult(msgspec.Struct, frozen=True):
    data: bytes
    mime_type: str
    origin: KeptOrigin
    expires: float
    size: int


class _OfPrincipal(msgspec.Struct):
    """The results that one principal has kept."""

    ids: OrderedDict[str, None]
    """Oldest first."""
    size: int = 0


class KeptResults:
    """`clock` gives monotonic seconds."""

    def __init__(self, limits: settings.KeptResultLimits, sealer: Sealer, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._sealer = sealer
        self._clock = clock
        self._kept: OrderedDict[str, _KeptResult] = OrderedDict()
        """Oldest first."""
        self._of_principal: dict[str, _OfPrincipal] = {}
        self.size = 0
        """Bytes of all kept results."""

    def reconfigure(self, limits: settings.KeptResultLimits) -> None:
        """Applies new limits; drops the oldest results that no longer fit."""
        self._limits = limits
        self._make_room(0)

    def fits(self, size: int) -> bool:
        """Whether a result of `size` bytes can be kept for one caller."""
        return size <= min(self._limits.max_bytes_per_principal, self._limits.max_bytes)

    def keep(self, origin: Origin, data: bytes, mime_type: str) -> str:
        """Keeps a result and returns its URI for its caller. Drops the caller's oldest results to make room."""
        caller = origin.caller
        name = caller.principal.name
        of_call = KeptOrigin(caller.rights, origin.upstream, origin.tool, origin.arguments)
        kept = _KeptResult(data, mime_type, of_call, self._clock() + self._limits.lifetime, len(data) + origin.size)
        while (own := self._of_principal.get(name)) and own.size + kept.size > self._limits.max_bytes_per_principal:
            self._drop(next(iter(own.ids)))
        self._make_room(kept.size)
        id = secrets.token_urlsafe(12)
        self._kept[id] = kept
        own = self._of_principal.setdefault(name, _OfPrincipal(OrderedDict()))
        own.ids[id] = None
        own.size += kept.size
        self.size += kept.size
        return f"{SCHEME}:{self._sealer.seal_here(_purpose(caller), id.encode())}"

    def names(self, call: Call) -> bool:
        """Whether a call reads a kept result, judging by its URI."""
        if not call.row.cacheable or call.row.subject_key is None:
            return False
        return bytes(call.params.get(call.row.subject_key, b"")).startswith(_START)

    def read(self, call: Call, may_read: MayRead) -> Complete:
        """The result of `resources/read`. Raises McpError for a result that is not kept, or not for this caller."""
        assert call.row.subject_key is not None
        uri = parse_text(call.params[call.row.subject_key]) or ""
        found = _URI.fullmatch(uri)
        code = INVALID_PARAMS if call.caller.version in STATELESS_VERSIONS else RESOURCE_NOT_FOUND
        if found is None:
            sentence = f"Resource not found: a result's URI is {SCHEME}:ID, or {SCHEME}:ID/START-END for bytes of it"
            raise McpError(code, sentence, {"uri": uri})
        kept = self._opened(call.caller, found["token"])
        if kept is None or not call.caller.rights.cover(kept.origin.rights) or not may_read(call.caller, kept.origin):
            sentence = "Resource not found: this result is no longer kept, or is another caller's: call the tool again"
            raise McpError(code, sentence, {"uri": uri})
        data = kept.data
        if found["start"] is not None:
            data = data[boundary(data, int(found["start"])) : boundary(data, int(found["end"]))]
        contents = [{"uri": uri, "mimeType": kept.mime_type, "text": data.decode()}]
        hints = {"ttlMs": int(max(0.0, kept.expires - self._clock()) * 1000), "cacheScope": "private"}
        return Complete(first_level({"resultType": "complete", "contents": contents, **hints}))

    def _opened(self, caller: Caller, token: str) -> _KeptResult | None:
        try:
            id = self._sealer.open(_purpose(caller), token).decode()
        except Unsealable:
            return None
        kept = self._kept.get(id)
        return kept if kept is not None and kept.expires > self._clock() else None

    def _make_room(self, size: int) -> None:
        now = self._clock()
        while self._kept:
            id, kept = next(iter(self._kept.items()))
            if kept.expires > now and self.size + size <= self._limits.max_bytes:
                return
            self._drop(id)

    def _drop(self, id: str) -> None:
        kept = self._kept.pop(id)
        name = kept.origin.rights.principal.name
        own = self._of_principal[name]
        del own.ids[id]
        own.size -= kept.size
        if not own.ids:
            del self._of_principal[name]
        self.size -= kept.size


def _purpose(caller: Caller) -> str:
    return json.dumps(["result", caller.endpoint, caller.principal.name])
