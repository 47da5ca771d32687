"""All live handshake sessions: opening, finding, expiring and ending them, and how many there may be.

Ids are sealed, so an unknown one may be that of a session from before a restart, or of one that expired; it is opened
again, and lacks its subscriptions. What a client ended stays ended as long as this process remembers: a restart forgets
it, and so do many later endings.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import anyio
from cachetools import TTLCache

from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import Caller, ForwardedCredentials, Principal
from mcproxy.downstream.handshake.replay import ReplayStreams
from mcproxy.downstream.handshake.session import Session
from mcproxy.downstream.handshake.session_ids import KEY_BYTES, Opening, Remembered, UnknownSession, seal, unseal
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.shutdown import SHUTTING_DOWN
from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR
from mcproxy.protocol.methods import DEFAULT_LOG_LEVEL
from mcproxy.settings import LimitSettings

SWEEPS: Final = 4
"""How often, in the time that a session may idle, idle ones are looked for."""

_ERA: Final = Era.HANDSHAKE.value


class TooManySessions(McpError):
    """A newcomer that there is no room for."""

    def __init__(self, whose: str, most: int, setting: str) -> None:
        sentence = f"{whose} {most} sessions are in use ({setting}); end one, or try again later"
        super().__init__(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)


class SessionStore:
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
