"""`subscriptions/listen` (2026-07-28, subscriptions): one request, answered by a stream of changes until it ends.

The acknowledgement goes first and says what is honoured; nothing else is told that was not asked for. What the
client has still to be told is a set. Knows no transport.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import anyio
import msgspec
from msgspec import Raw

from mcproxy.call import (
    Call,
    Caller,
    Change,
    Complete,
    Failed,
    InputRequest,
    InputRequired,
    ListChanged,
    McpError,
    Notice,
    Outcome,
    Reason,
    ResourceUpdated,
)
from mcproxy.downstream.changes import Changes
from mcproxy.downstream.edge import Edge
from mcproxy.downstream.sessions import SHUTTING_DOWN
from mcproxy.downstream.stateless import Admitted, Answer, Send, answer
from mcproxy.protocol.envelope import with_meta
from mcproxy.protocol.eras import META_SUBSCRIPTION
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    ErrorResponse,
    InvalidMessage,
    Notification,
    Params,
    Response,
    parse_object,
    raw,
)
from mcproxy.protocol.methods import ACKNOWLEDGED, DISCOVER, SUBSCRIBE, Kind

AT_ONCE: Final = 16
"""How many resources of one stream are subscribed at the same time."""

_KINDS: Final[Mapping[str, frozenset[Kind]]] = {
    "toolsListChanged": frozenset({Kind.TOOLS}),
    "promptsListChanged": frozenset({Kind.PROMPTS}),
    "resourcesListChanged": frozenset({Kind.RESOURCES, Kind.TEMPLATES}),
}
"""The lists that each flag of a filter speaks of."""
_URIS: Final = "resourceSubscriptions"

_flag = msgspec.json.Decoder(bool)
_uris = msgspec.json.Decoder(list[str])


@dataclass(frozen=True, slots=True)
class Filter:
    """What a client wants to hear of, or is agreed to be told."""

    flags: frozenset[str] = frozenset()
    uris: tuple[str, ...] = ()

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset(kind for flag in self.flags for kind in _KINDS[flag])

    def admits(self, change: Change) -> bool:
        match change:
            case ListChanged(kind=kind):
                return kind in self.kinds
            case ResourceUpdated():
                return bool(self.uris)
            case Notice():
                # subscriptions, logging: what belongs to requests goes on the streams of requests.
                return False

    def members(self) -> dict[str, object]:
        return {**dict.fromkeys(sorted(self.flags), True), **({_URIS: self.uris} if self.uris else {})}


def read_filter(params: Params, most: int) -> Filter:
    """What a request asks for; `most` is how many resources it may name. Raises McpError."""
    try:
        members = parse_object(params.get("notifications", b""))
        flags = frozenset(name for name in _KINDS if name in members and _flag.decode(members[name]))
        uris = tuple(dict.fromkeys(_uris.decode(members[_URIS]))) if _URIS in members else ()
    except (InvalidMessage, msgspec.MsgspecError) as error:
        sentence = f'"notifications" must be an object of booleans, and {_URIS} in it a list of URIs: {error}'
        raise McpError(INVALID_PARAMS, sentence) from error
    if len(uris) > most:
        sentence = f"{len(uris)} resources in one subscription; at most {most} (limits.max_subscriptions_per_session)"
        raise McpError(INVALID_PARAMS, sentence)
    return Filter(flags, uris)


class Subscription:
    """One stream, as its client's listener (`call.Listener`). `wake` says that there is something to tell."""

    def __init__(self, edge: Edge, admitted: Admitted, send: Send, wake: Callable[[], None]) -> None:
        self.caller: Final = admitted.caller
        self.wanted: Final = read_filter(admitted.params, edge.proxy.limits.max_subscriptions_per_session)
        self._edge = edge
        self._admitted = admitted
        self._send = send
        self._wake = wake
        self._changes = Changes(edge.proxy.limits)
        self._honoured: Filter | None = None
        self._closed = anyio.Event()

    def set_log_level(self, level: str) -> None:
        """Nothing: log messages belong to requests."""

    def signal(self, change: Change) -> None:
        if self.wanted.admits(change):
            self._changes.note(change)
            self._wake()

    async def ask(self, request: InputRequest) -> Raw:
        raise McpError(INVALID_REQUEST, f"{request.method}: this client can be asked by an answer alone")

    def tell_changes(self) -> None:
        """Sends some of what the client has still to be told, once it has the acknowledgement."""
        if self._honoured is None or self._closed.is_set():
            return
        for notification in self._changes.take():
            self._send(Notification(notification.method, self._tagged(notification.params)))

    async def run(self) -> None:
        """Subscribes, acknowledges, and lasts until `close`; then the answer is sent. Cancelled, it says nothing."""
        self._edge.audience.join(self)
        try:
            await self._open()
        except McpError as refusal:
            self._send(ErrorResponse(self._admitted.id, refusal.error()))
        else:
            await self._closed.wait()
            self._send(self._farewell())
        finally:
            self._edge.audience.leave(self)

    def close(self) -> None:
        """Ends the stream with its closing result (subscriptions, "Graceful Closure")."""
        self._closed.set()

    async def _open(self) -> None:
        ...
