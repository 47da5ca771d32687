"""One handshake session: its states, its caller, its calls in flight and the changes to be sent to its client.

Knows no transport: each gives the session a stream to its client.

        OPEN --drain--> DRAINING --grace over--> CUT_OFF --end--> ENDED      (any of them may end at once)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from typing import Final, Protocol

from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.clients import Change, InputRequest, Notice
from mcproxy.call.errors import McpError
from mcproxy.call.identity import Caller, ForwardedCredentials, Principal
from mcproxy.downstream.handshake.client_requests import ask
from mcproxy.downstream.handshake.replay import ReplayStreams
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.pending_changes import BATCH, PendingChanges, encoded
from mcproxy.pending_requests import PeerGone, PendingRequests
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, Message
from mcproxy.protocol.methods import is_audible


class SessionState(Enum):
    """How far a session has come to its end; the values describe each state."""

    OPEN = "takes calls"
    DRAINING = "takes no more calls, waits for those in flight"
    CUT_OFF = "calls in flight were cancelled and are answered with an error"
    ENDED = "streams are closed, calls cancelled without an answer"


class SessionEvent(Enum):
    """An event in the life of a session; the values describe each."""

    DRAIN = "the gateway begins to shut down"
    GRACE_OVER = "the shutdown grace is over"
    END = "its client ended it, its connection is gone, or it expired"


_OPEN: Final = SessionState.OPEN

TRANSITIONS: Final[Mapping[SessionState, Mapping[SessionEvent, SessionState]]] = {
    SessionState.OPEN: {
        SessionEvent.DRAIN: SessionState.DRAINING,
        SessionEvent.END: SessionState.ENDED,
    },
    SessionState.DRAINING: {
        SessionEvent.GRACE_OVER: SessionState.CUT_OFF,
        SessionEvent.END: SessionState.ENDED,
    },
    SessionState.CUT_OFF: {
        SessionEvent.END: SessionState.ENDED,
    },
    SessionState.ENDED: {},
}


class ClientStream(Protocol):
    """The way to a client between its calls."""

    @property
    def connected(self) -> bool:
        """Whether a client reads the stream now; messages sent meanwhile may be kept for it."""

    def send(self, message: Message) -> None:
        """Never blocks."""

    def put(self, message: bytes, *, droppable: bool) -> None:
        """Sends an encoded message; a droppable one is dropped if there is no room."""

    def notify_writer(self) -> None:
        """Wakes the writer: the session has changes to send."""

    def close(self) -> None:
        """Ends its connection, if any. Idempotent."""


class Cancellable(Protocol):
    """A call in progress."""

    def cancel(self) -> None:
        """Cancels the call where it waits; its task gets a cancellation. Idempotent."""


class Session:
    """One handshake session, as its client's listener (`call.clients.Listener`) and as the owner of its calls."""

    __slots__ = (
        "_ask_timeout",
        "_idle",
        "_labelled",
        "_max_calls",
        "account",
        "caller",
        "calls",
        "changes",
        "client_stream",
        "id",
        "issued",
        "last_used",
        "open_streams",
        "requests",
        "state",
        "streams",
        "subscribed",
        "transport",
    )

    def __init__(
        self,
        id: str,
        issued: int,
        caller: Caller,
        transport: str,
        streams: ReplayStreams,
        context: TransportContext,
        now: float,
    ) -> None:
        """`issued` is when its id was made, a Unix time in seconds; `now` is by the clock of the store."""
        self.id = id
        self.issued = issued
        self.state = SessionState.OPEN
        self.caller = caller
        self.account = caller.principal.account
        """The account that the session counts for, wherever its client calls from later."""
        self.transport = transport
        self.streams = streams
        self.client_stream: ClientStream = streams.listening
        self.requests = PendingRequests()
        """Requests to the client that it has yet to answer."""
        self.changes = PendingChanges(context.proxy.limits)
        self.calls: dict[Hashable, Cancellable] = {}
        self.last_used = now
        self.subscribed = False
        """Whether it ever subscribed to a resource: then its id cannot open it again with its subscriptions."""
        self.open_streams = 0
        self._ask_timeout = context.proxy.ask_timeout
        # Two processes may serve one session, one after the other: an answer is for the process that asked.
        self._labelled = context.sealer.labelled if context.sealer.label else None
        self._max_calls = context.proxy.limits.max_calls_per_session
        self._idle: asyncio.Event | None = None
        """Set once no call is in flight; made by the first that waits for it."""

    @property
    def is_open(self) -> bool:
        """Whether it accepts calls."""
        return self.state is _OPEN

    @property
    def has_id(self) -> bool:
        """Whether its client knows its id: not over stdio, nor on a stream of 2024-11-05."""
        return self.client_stream is self.streams.listening

    @property
    def busy(self) -> bool:
        """Whether a call is in flight, or a stream open."""
        return bool(self.calls or self.open_streams)

    @property
    def full(self) -> bool:
        """Whether as many calls are in flight as allowed."""
        return len(self.calls) >= self._max_calls

    def belongs_to(self, principal: Principal, endpoint: str) -> bool:
        """Whether it was opened by that principal at that endpoint."""
        return principal.name == self.caller.principal.name and endpoint == self.caller.endpoint

    def authenticated_as(self, principal: Principal) -> None:
        """Takes the roles and scopes of the latest request of the same principal."""
        if principal != self.caller.principal:
            self._become(replace(self.caller, principal=principal))

    def use_credentials(self, credentials: ForwardedCredentials | None) -> None:
        """Uses these credentials at upstreams from the next call on."""
        self._become(replace(self.caller, credentials=credentials))

    def _become(self, caller: Caller) -> None:
        """Goes by the rights of the latest request. One with fewer is not told what waits for those before it."""
        if not caller.rights.cover(self.caller.rights):
            self.streams.forget_listening()
            self.changes.keep_lists_only()
        self.caller = caller

    def set_log_level(self, level: str) -> None:
        self.caller = replace(self.caller, log_level=level)

    def signal(self, change: Change) -> None:
        if isinstance(change, Notice) and change.level is not None and not self.wants_log(change.level):
            return
        self.changes.note(change)
        self.client_stream.notify_writer()

    def wants_log(self, level: str) -> bool:
        """Whether its client wants log messages of that level."""
        return is_audible(level, self.caller.log_level)

    def send_changes(self) -> bool:
        """Puts a batch of pending changes on the client's stream; returns whether there may be more."""
        changes = self.changes.take()
        for change in changes:
            self.client_stream.put(encoded(change), droppable=True)
        return len(changes) == BATCH

    async def ask(self, request: InputRequest) -> Raw:
        if not self.client_stream.connected:
            raise McpError(INVALID_REQUEST, f"the client has no stream open to be asked {request.method} on")
        return await self.ask_on(self.client_stream.send, request)

    async def ask_on(self, send: Callable[[Message], None], request: InputRequest) -> Raw:
        """As `ask`, on the stream of a call. Also raises McpError if too many questions are unanswered."""
        if len(self.requests) >= self._max_calls:
            raise McpError(INTERNAL_ERROR, "the client has too many questions to answer already")
        id = None if self._labelled is None else self._labelled(str(self.requests.mint()))
        return await ask(self.requests, self.caller, request, send, self._ask_timeout, id)

    def begin(self, key: Hashable, call: Cancellable) -> None:
        """Registers a running call. `key` is its request's id, or a fresh object for a notification."""
        self.calls[key] = call

    def finish(self, key: Hashable) -> None:
        """Removes a call that is over. Raises KeyError for one that was not registered."""
        del self.calls[key]
        if not self.calls:
            if self._idle is not None:
                self._idle.set()
                self._idle = None
            self.close_if_drained()

    async def wait_idle(self) -> None:
        """Returns once no call is in flight."""
        while self.calls:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    def close_if_drained(self) -> None:
        """Closes the client's stream if no call is in flight and none is accepted any more."""
        if not self.calls and not self.is_open:
            self.client_stream.close()

    def drain(self) -> None:
        """Accepts no more calls, and closes its stream once none is in flight (requirement R9)."""
        self._advance(SessionEvent.DRAIN)
        self.close_if_drained()

    def cut_off(self) -> None:
        """Cancels the calls that outlast the gateway's grace; each is answered with an error."""
        self._advance(SessionEvent.GRACE_OVER)
        self._cancel_calls()

    def end(self) -> None:
        """Cancels all calls without an answer and ends all streams. Called once."""
        self._advance(SessionEvent.END)
        self._cancel_calls()
        self.requests.fail_all(PeerGone("the session ended"))
        self.streams.close()
        self.client_stream.close()

    def _advance(self, event: SessionEvent) -> None:
        self.state = TRANSITIONS[self.state][event]

    def _cancel_calls(self) -> None:
        for call in self.calls.values():
            call.cancel()
