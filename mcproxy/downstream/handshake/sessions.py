"""Handshake sessions: how many there may be, how long they last, and what one consists of.

A session knows no transport: whoever carries it gives it a line to its client. Ids are sealed, so an unknown one may
be that of a session from before a restart, or one that idled away; it is opened again, and lacks its subscriptions.
What a client ended stays ended as long as this process remembers: a restart forgets it, and so do many later endings.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final, Protocol

import anyio
from cachetools import TTLCache
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.clients import Change, InputRequest, Notice
from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import Caller, ForwardedCredentials, Principal
from mcproxy.downstream.handshake.client_requests import ask
from mcproxy.downstream.handshake.replay import ReplayStreams
from mcproxy.downstream.handshake.session_ids import KEY_BYTES, Opening, Remembered, UnknownSession, seal, unseal
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.pending_changes import AT_ONCE, PendingChanges, encoded
from mcproxy.downstream.io.shutdown import SHUTTING_DOWN
from mcproxy.pending_requests import PeerGone, PendingRequests
from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, Message
from mcproxy.protocol.methods import DEFAULT_LOG_LEVEL, is_audible
from mcproxy.settings import LimitSettings

SWEEPS: Final = 4
"""How often, in the time that a session may idle, idle ones are looked for."""

_ERA: Final = Era.HANDSHAKE.value


class TooManySessions(McpError):
    """A newcomer that there is no room for."""

    def __init__(self, whose: str, most: int, setting: str) -> None:
        sentence = f"{whose} {most} sessions are in use ({setting}); end one, or try again later"
        super().__init__(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)


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


class Sessions:
    """All live sessions. `clock` counts seconds from anywhere, `wall` from 1970."""

    def __init__(
        self,
        edge: TransportContext,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        randomness: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._edge = edge
        self._clock = clock
        self._wall = wall
        self._randomness = randomness
        self._live: dict[str, Session] = {}
        self._by_id: dict[str, Session] = {}
        """Those that live, as well: an id is opened but once."""
        self._new_name = lambda: randomness(6).hex()
        self._of_principal: Counter[str] = Counter()
        # As long as ids last, and no more of them than may live: what its owner ended must not come back.
        self._ended: TTLCache[str, None] = TTLCache(self._limits.max_sessions, self._limits.session_lifetime, clock)
        self._draining = False

    @property
    def _limits(self) -> LimitSettings:
        return self._edge.proxy.limits

    def __len__(self) -> int:
        return len(self._live)

    def open(
        self,
        transport: str,
        principal: Principal,
        endpoint: str,
        opening: Opening,
        credentials: ForwardedCredentials | None = None,
    ) -> Session:
        """Raises TooManySessions, and McpError once the gateway drains."""
        if self._draining:
            raise McpError(INTERNAL_ERROR, SHUTTING_DOWN, reason=Reason.UNAVAILABLE)
        remembered = Remembered(self._randomness(KEY_BYTES).hex(), int(self._wall()), opening)
        id = seal(self._edge.sealer, principal, endpoint, remembered)
        return self._enter(id, transport, principal, endpoint, remembered, credentials)

    def find(
        self,
        id: str,
        transport: str,
        principal: Principal,
        endpoint: str,
        credentials: ForwardedCredentials | None = None,
    ) -> Session:
        """The session with that id, opened again if need be. Raises UnknownSession and TooManySessions."""
        session = self._by_id.get(id)
        if session is None or not session.is_of(principal, endpoint):
            session = self._opened(id, transport, principal, endpoint, credentials)
        elif self._is_too_old(session.issued):
            raise UnknownSession
        if principal is not session.caller.principal:
            session.authenticated_as(principal)
        if credentials is not None:
            self.bring(session, credentials)
        session.used = self._clock()
        return session

    def bring(self, session: Session, credentials: ForwardedCredentials | None) -> None:
        """Takes over what the latest request brought; one that brings nothing changes nothing."""
        known = session.caller.credentials
        if credentials is not None and credentials is not known and credentials != known:
            session.brings(credentials)
            self._edge.audience.join(session)

    def _opened(
        self, id: str, transport: str, principal: Principal, endpoint: str, credentials: ForwardedCredentials | None
    ) -> Session:
        """The session that an id speaks of, opened again. Raises UnknownSession and TooManySessions."""
        remembered = unseal(self._edge.sealer, principal, endpoint, id)
        if self._is_too_old(remembered.issued) or remembered.key in self._ended:
            raise UnknownSession
        live = self._live.get(remembered.key)
        return live or self._enter(id, transport, principal, endpoint, remembered, credentials)

    def _is_too_old(self, issued: int) -> bool:
        return self._wall() - issued > self._edge.proxy.limits.session_lifetime

    def end(self, session: Session) -> None:
        """Ends a session for good, whose client knows its id: it is unknown from now on. Idempotent."""
        assert session.caller.session is not None
        self._ended[session.caller.session] = None
        self.leave(session)

    def leave(self, session: Session) -> None:
        """Lets go of a session, and remembers nothing of it. Idempotent."""
        caller = session.caller
        if caller.session is None or self._live.pop(caller.session, None) is None:
            return
        del self._by_id[session.id]
        name = caller.principal.name
        self._of_principal[name] -= 1
        if not self._of_principal[name]:
            del self._of_principal[name]
        self._edge.metrics.sessions.labels(session.transport, _ERA, caller.version).dec()
        session.close()
        self._edge.audience.leave(session)

    def expire(self) -> None:
        """Lets go of what nobody has used for long. Its ids stay good: who comes back finds it opened again."""
        horizon = self._clock() - self._limits.session_idle
        for session in [session for session in self._live.values() if not session.busy and session.used < horizon]:
            self.leave(session)

    async def sweep(self) -> None:
        """Expires idle sessions, for ever."""
        while True:
            await anyio.sleep(self._limits.session_idle / SWEEPS)
            self.expire()

    def stream_opened(self, session: Session) -> None:
        """Until it is closed, the session is not idle."""
        session.open_streams += 1
        self._edge.metrics.streams.labels(session.transport, _ERA, session.caller.version).inc()

    def stream_closed(self, session: Session) -> None:
        session.open_streams -= 1
        session.used = self._clock()
        self._edge.metrics.streams.labels(session.transport, _ERA, session.caller.version).dec()

    def drain(self) -> None:
        self._draining = True
        for session in self._live.values():
            session.drain()

    def abandon(self) -> None:
        for session in self._live.values():
            session.abandon()

    def close(self) -> None:
        for session in list(self._live.values()):
            self.leave(session)

    def _enter(
        self,
        id: str,
        transport: str,
        principal: Principal,
        endpoint: str,
        remembered: Remembered,
        credentials: ForwardedCredentials | None,
    ) -> Session:
        self._check_room(principal)
        opening = remembered.opening
        caller = Caller(
            principal,
            opening.version,
            opening.capabilities,
            opening.info,
            endpoint,
            session=remembered.key,
            log_level=DEFAULT_LOG_LEVEL,
            credentials=credentials,
            transport=transport,
        )
        streams = ReplayStreams(self._limits, self._new_name)
        session = Session(id, remembered.issued, caller, transport, streams, self._edge, self._clock())
        self._live[remembered.key] = session
        self._by_id[id] = session
        self._of_principal[principal.name] += 1
        self._edge.metrics.sessions.labels(transport, _ERA, caller.version).inc()
        self._edge.audience.join(session)
        if self._draining:
            session.drain()
        return session

    def _check_room(self, principal: Principal) -> None:
        if self._crowded(principal) is not None:
            self.expire()
        refusal = self._crowded(principal)
        if refusal is not None:
            raise refusal

    def _crowded(self, principal: Principal) -> TooManySessions | None:
        limits = self._limits
        if len(self._live) >= limits.max_sessions:
            return TooManySessions("all", limits.max_sessions, "limits.max_sessions")
        if self._of_principal[principal.name] >= limits.max_sessions_per_principal:
            return TooManySessions("all your", limits.max_sessions_per_principal, "limits.max_sessions_per_principal")
        return None
