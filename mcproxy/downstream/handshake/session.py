"""One handshake session: its caller, its calls, what its client has still to be told, and the states of its life.

A session knows no transport: whoever carries it gives it a stream to its client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Protocol

from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.clients import Change, InputRequest, Notice
from mcproxy.call.errors import McpError
from mcproxy.call.identity import Caller, ForwardedCredentials, Principal
from mcproxy.downstream.handshake.client_requests import ask
from mcproxy.downstream.handshake.replay import ReplayStreams
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.pending_changes import AT_ONCE, PendingChanges, encoded
from mcproxy.pending_requests import PeerGone, PendingRequests
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, Message
from mcproxy.protocol.methods import is_audible


class ClientStream(Protocol):
    """The way to a client between its calls."""

    @property
    def connected(self) -> bool: ...

    def send(self, message: Message) -> None:
        """Never blocks."""

    def put(self, message: bytes, *, may_miss: bool) -> None:
        """Sends what is encoded already; what may be missed is dropped where there is no room."""

    def wake(self) -> None:
        """Says that the session has changes to tell."""

    def close(self) -> None: ...


class Cancellable(Protocol):
    """A call that is carried out."""

    def cancel(self) -> None: ...


class Session:
    """One handshake session, as its client's listener (`call.clients.Listener`) and as the owner of its calls."""

    __slots__ = (
        "_abandoned",
        "_ask_timeout",
        "_idle",
        "_most_at_once",
        "caller",
        "calls",
        "changes",
        "draining",
        "id",
        "issued",
        "line",
        "open_streams",
        "requests",
        "streams",
        "transport",
        "used",
    )

    def __init__(
        self,
        id: str,
        issued: int,
        caller: Caller,
        transport: str,
        streams: ReplayStreams,
        edge: TransportContext,
        now: float,
    ) -> None:
        self.id = id
        self.transport = transport
        self.streams = streams
        self.requests = PendingRequests()
        self.changes = PendingChanges(edge.proxy.limits)
        self.calls: dict[Hashable, Cancellable] = {}
        self.line: ClientStream = streams.listening
        self.used = now
        self.open_streams = 0
        self.issued = issued
        """When its id was sealed: a Unix time in seconds."""
        self.caller = caller
        self._ask_timeout = edge.proxy.ask_timeout
        self._most_at_once = edge.proxy.limits.max_calls_per_session
        self._idle: asyncio.Event | None = None
        """Made by who waits for it."""
        self.draining = False
        """Whether it admits no more calls."""
        self._abandoned = False

    @property
    def abandoned(self) -> bool:
        """Whether calls were cut off, and their client has still to be told."""
        return self._abandoned

    @property
    def busy(self) -> bool:
        return bool(self.calls or self.open_streams)

    @property
    def full(self) -> bool:
        """Whether as many calls are in flight as may be."""
        return len(self.calls) >= self._most_at_once

    def is_of(self, principal: Principal, endpoint: str) -> bool:
        """Whether it was opened by that principal at that endpoint."""
        return principal.name == self.caller.principal.name and endpoint == self.caller.endpoint

    def authenticated_as(self, principal: Principal) -> None:
        """Takes over what the latest request said of the same principal: roles and scopes may have changed."""
        if principal != self.caller.principal:
            self.caller = replace(self.caller, principal=principal)

    def brings(self, credentials: ForwardedCredentials) -> None:
        """Goes by other credentials for upstreams from the next call on."""
        self.caller = replace(self.caller, credentials=credentials)

    def set_log_level(self, level: str) -> None:
        self.caller = replace(self.caller, log_level=level)

    def signal(self, change: Change) -> None:
        if isinstance(change, Notice) and change.level is not None and not self.hears(change.level):
            return
        self.changes.note(change)
        self.line.wake()

    def hears(self, level: str) -> bool:
        return is_audible(level, self.caller.log_level)

    def tell_changes(self) -> bool:
        """Puts some of what the client has still to be told on its line; whether there may be more."""
        changes = self.changes.take()
        for change in changes:
            self.line.put(encoded(change), may_miss=True)
        return len(changes) == AT_ONCE

    async def ask(self, request: InputRequest) -> Raw:
        if not self.line.connected:
            raise McpError(INVALID_REQUEST, f"the client has no stream open to be asked {request.method} on")
        return await self.ask_on(self.line.send, request)

    async def ask_on(self, send: Callable[[Message], None], request: InputRequest) -> Raw:
        if len(self.requests) >= self._most_at_once:
            raise McpError(INTERNAL_ERROR, "the client has too many questions to answer already")
        return await ask(self.requests, self.caller, request, send, self._ask_timeout)

    def begin(self, key: Hashable, call: Cancellable) -> None:
        """Enters a call that is carried out. `key` is its request's id, or anything for a notification."""
        self.calls[key] = call

    def finish(self, key: Hashable) -> None:
        del self.calls[key]
        if not self.calls:
            if self._idle is not None:
                self._idle.set()
                self._idle = None
            if self.draining:
                self.line.close()

    async def idle(self) -> None:
        """Returns once no call is in flight."""
        while self.calls:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    def drain(self) -> None:
        """Admits no more calls, and hangs up as soon as none is in flight (requirement R9)."""
        self.draining = True
        if not self.calls:
            self.line.close()

    def abandon(self) -> None:
        """Cuts off the calls that outlast the gateway's grace; each is answered an error."""
        self._abandoned = True
        self._cancel_calls()

    def close(self) -> None:
        self._cancel_calls()
        self.requests.fail_all(PeerGone("the session ended"))
        self.streams.close()
        self.line.close()

    def _cancel_calls(self) -> None:
        for call in self.calls.values():
            call.cancel()
