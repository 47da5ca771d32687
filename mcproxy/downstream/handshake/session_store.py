"""All live handshake sessions: opening, finding, expiring and ending them, and how many there may be.

Ids are signed, so an unknown id may belong to a session from before a restart, or to one that expired. Such a session
is opened again, unless it had subscriptions, which it would lack. A session that its client ended stays ended for as
long as this process remembers: until a restart, or until many others have ended.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import anyio
from cachetools import TTLCache

from mcproxy.call.calls import Call, Complete
from mcproxy.call.clients import ListChanged
from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import Caller, ForwardedCredentials, Principal
from mcproxy.downstream.handshake.client_requests import NoClient
from mcproxy.downstream.handshake.replay import ReplayPools, ReplayStreams
from mcproxy.downstream.handshake.session import Session
from mcproxy.downstream.handshake.session_ids import (
    KEY_BYTES,
    Handshake,
    SessionIdPayload,
    UnknownSession,
    sign,
    verify,
)
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.responses import shutting_down
from mcproxy.protocol.capabilities import tells_changes
from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import EMPTY_OBJECT, INTERNAL_ERROR, object_or_empty
from mcproxy.protocol.methods import DEFAULT_LOG_LEVEL, DISCOVER, METHODS, Kind
from mcproxy.settings import LimitSettings

SWEEPS: Final = 4
"""Sweeps for expired sessions within `session_idle`."""

_ERA: Final = Era.HANDSHAKE.value


class TooManySessions(McpError):
    """No more sessions may be opened, by all callers or by this principal."""

    def __init__(self, whose: str, most: int, setting: str) -> None:
        sentence = f"{whose} {most} sessions are in use ({setting}); end one, or try again later"
        super().__init__(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)


class _EndedSessions(TTLCache[str, int]):
    """The keys of sessions that ended and must not be opened again, each with the Unix time of its issue at the latest.

    Those for which there is no room are forgotten; all sessions as old as one of these count as ended.
    """

    forgotten_until: int = 0

    def popitem(self) -> tuple[str, int]:
        key, issued = super().popitem()
        self.forgotten_until = max(self.forgotten_until, issued)
        return key, issued


class SessionStore:
    """All live sessions. `clock` is monotonic, `wall` a Unix time, both in seconds."""

    def __init__(
        self,
        context: TransportContext,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        randomness: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._context = context
        self._clock = clock
        self._wall = wall
        self._randomness = randomness
        self._live: dict[str, Session] = {}
        self._by_id: dict[str, Session] = {}
        """The same sessions by id, so that each id is verified only once."""
        self._new_name = lambda: randomness(6).hex()
        self._of_account: Counter[str] = Counter()
        """Sessions by the account of the principal that opened them."""
        self._replays = ReplayPools(lambda: self._limits)
        self._ended = _EndedSessions(self._limits.max_sessions, self._limits.session_lifetime, clock)
        self._draining = False

    @property
    def _limits(self) -> LimitSettings:
        return self._context.proxy.limits

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, id: object) -> bool:
        """Whether the session with that id lives, whoever owns it."""
        return id in self._by_id

    def open(
        self,
        transport: str,
        principal: Principal,
        endpoint: str,
        handshake: Handshake,
        credentials: ForwardedCredentials | None = None,
    ) -> Session:
        """Raises TooManySessions, and McpError once the gateway drains."""
        if self._draining:
            raise shutting_down()
        payload = SessionIdPayload(self._randomness(KEY_BYTES).hex(), int(self._wall()), handshake)
        id = sign(self._context.sealer, principal, endpoint, payload)
        return self._enter(id, transport, principal, endpoint, payload, credentials)

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
        if session is None or not session.belongs_to(principal, endpoint):
            session = self._opened(id, transport, principal, endpoint, credentials)
        elif self._is_too_old(session.issued):
            raise UnknownSession
        if principal is not session.caller.principal:
            self.adopt(session, principal)
        if credentials is not session.caller.credentials:
            self.update_credentials(session, credentials)
        session.last_used = self._clock()
        return session

    def adopt(self, session: Session, principal: Principal) -> None:
        """Takes the roles and scopes of the principal's latest request, which other links may serve."""
        known = session.caller.principal
        session.authenticated_as(principal)
        if (principal.roles, principal.scopes) != (known.roles, known.scopes):
            self._context.audience.join(session)

    def update_credentials(self, session: Session, credentials: ForwardedCredentials | None) -> None:
        """Takes the credentials of the latest request (`latest_credentials`)."""
        known = session.caller.credentials
        latest = latest_credentials(known, credentials)
        if latest != known:
            session.use_credentials(latest)
            self._context.audience.join(session)

    def _opened(
        self, id: str, transport: str, principal: Principal, endpoint: str, credentials: ForwardedCredentials | None
    ) -> Session:
        """The session of a signed id, opened again. Raises UnknownSession and TooManySessions."""
        payload = verify(self._context.sealer, principal, endpoint, id)
        if self._is_too_old(payload.issued) or payload.key in self._ended:
            raise UnknownSession
        live = self._live.get(payload.key)
        if live is not None:
            return live
        if payload.issued <= self._ended.forgotten_until:
            raise UnknownSession
        if self._context.subscribers.is_lost(payload.key, payload.issued):
            raise UnknownSession
        session = self._enter(id, transport, principal, endpoint, payload, credentials)
        self._context.subscribers.reopened(payload.key, session)
        self._context.tasks.start_soon(self._tell_lists, session)
        return session

    async def _tell_lists(self, session: Session) -> None:
        """Tells the client of a session that was opened again to fetch the lists whose changes are announced (R21).

        They may have changed while there was no session to tell.
        """
        outcome = await self._context.handler(Call(METHODS[DISCOVER], {}, session.caller, NoClient(), session))
        if not isinstance(outcome, Complete):
            return
        capabilities = object_or_empty(outcome.result.get("capabilities", EMPTY_OBJECT))
        for kind in Kind:
            if tells_changes(capabilities, kind.capability):
                session.signal(ListChanged(kind))

    def _is_too_old(self, issued: int) -> bool:
        return self._wall() - issued > self._context.proxy.limits.session_lifetime

    def end(self, session: Session) -> None:
        """Ends a session because its client asked for it: its id is unknown from now on. Idempotent."""
        assert session.caller.session is not None
        self._ended[session.caller.session] = session.issued
        self._context.subscribers.end(session.caller.session)
        self.leave(session)

    def forget(self, key: str) -> None:
        """Ends the session with that key, which another process ended; it is not opened again. Idempotent."""
        self._ended[key] = int(self._wall())
        if (session := self._live.get(key)) is not None:
            self.leave(session)

    def leave(self, session: Session) -> None:
        """Ends a session without remembering that it ended: its id can open it again. Idempotent."""
        caller = session.caller
        if caller.session is None or self._live.pop(caller.session, None) is None:
            return
        del self._by_id[session.id]
        self._of_account[session.account] -= 1
        if not self._of_account[session.account]:
            del self._of_account[session.account]
            self._replays.forget(session.account)
        self._context.metrics.sessions.labels(session.transport, _ERA, caller.version).dec()
        session.end()
        self._context.audience.leave(session)

    def remembered(self) -> Iterator[tuple[str, Session | None]]:
        """Each live session by its key, and None for each ended one."""
        yield from self._live.items()
        yield from dict.fromkeys(self._ended).items()

    def live(self) -> list[Session]:
        """All live sessions."""
        return list(self._live.values())

    def leave_idle(self, session: Session) -> bool:
        """Leaves a session unless a call of it is in flight; returns whether it lives no more."""
        if self._live.get(session.caller.session or "") is not session:
            return True
        if not session.calls:
            self.leave(session)
        return not session.calls

    def expire(self) -> None:
        """Ends sessions that were unused for `session_idle`. Their ids stay good: a later request opens them again.

        But for those that subscribed: they would come back without, and no client would know.
        """
        horizon = self._clock() - self._limits.session_idle
        for session in [session for session in self._live.values() if not session.busy and session.last_used < horizon]:
            if session.subscribed:
                self.end(session)
            else:
                self.leave(session)

    async def sweep(self) -> None:
        """Expires unused sessions until cancelled."""
        while True:
            await anyio.sleep(self._limits.session_idle / SWEEPS)
            self.expire()

    def stream_opened(self, session: Session) -> None:
        """The session does not expire until the stream is closed."""
        session.open_streams += 1
        self._context.metrics.streams.labels(session.transport, _ERA, session.caller.version).inc()

    def stream_closed(self, session: Session) -> None:
        """Ends what `stream_opened` began."""
        session.open_streams -= 1
        session.last_used = self._clock()
        self._context.metrics.streams.labels(session.transport, _ERA, session.caller.version).dec()

    def drain(self) -> None:
        """Opens no new session, and drains the live ones. Idempotent."""
        if not self._draining:
            self._draining = True
            for session in self._live.values():
                session.drain()

    def cut_off(self) -> None:
        """Cuts off the calls of all sessions, which are draining."""
        for session in self._live.values():
            session.cut_off()

    def close(self) -> None:
        """Ends all sessions as `leave` does: their ids stay valid."""
        for session in list(self._live.values()):
            self.leave(session)

    def _enter(
        self,
        id: str,
        transport: str,
        principal: Principal,
        endpoint: str,
        payload: SessionIdPayload,
        credentials: ForwardedCredentials | None,
    ) -> Session:
        self._check_room(principal)
        handshake = payload.handshake
        caller = Caller(
            principal,
            handshake.version,
            handshake.capabilities,
            handshake.info,
            endpoint,
            session=payload.key,
            log_level=DEFAULT_LOG_LEVEL,
            credentials=credentials,
            transport=transport,
        )
        streams = ReplayStreams(self._limits, self._new_name, self._replays.of(principal))
        session = Session(id, payload.issued, caller, transport, streams, self._context, self._clock())
        self._live[payload.key] = session
        self._by_id[id] = session
        self._of_account[session.account] += 1
        self._context.metrics.sessions.labels(transport, _ERA, caller.version).inc()
        self._context.audience.join(session)
        if self._draining:
            session.drain()
        return session

    def _check_room(self, principal: Principal) -> None:
        if self._excess(principal) is not None:
            self.expire()
        refusal = self._excess(principal)
        if refusal is not None:
            raise refusal

    def _excess(self, principal: Principal) -> TooManySessions | None:
        limits = self._limits
        if len(self._live) >= limits.max_sessions:
            return TooManySessions("all", limits.max_sessions, "limits.max_sessions")
        if not principal.is_several and self._of_account[principal.account] >= limits.max_sessions_per_principal:
            return TooManySessions("all your", limits.max_sessions_per_principal, "limits.max_sessions_per_principal")
        return None


def latest_credentials(
    known: ForwardedCredentials | None, brought: ForwardedCredentials | None
) -> ForwardedCredentials | None:
    """The credentials of a session whose latest request `brought` these.

    Forwarded headers are in force until others come. The token is always that of the latest request, or none.
    """
    if known is None or not known.headers or (brought is not None and brought.headers):
        return brought
    return replace(known, inbound_token=None if brought is None else brought.inbound_token)
