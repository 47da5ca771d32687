"""Streamable HTTP of the handshake eras, 2025-03-26 to 2025-11-25: POST, GET and DELETE on one path.

A connection carries messages and decides nothing: calls go on without it, and what they send on a stream is kept to
be resumed (basic/transports, Streamable HTTP). A client that hangs up before its stream has begun has no event to
resume from: its call runs to the end, and its answer is lost. Knows nothing of the stateless era.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from mcproxy.call.errors import McpError
from mcproxy.call.identity import Principal
from mcproxy.concurrency.cancel_scope import TaskCancelScope
from mcproxy.downstream.handshake.batches import answered, check_batch, encode_batch, receive_batch, take_batch
from mcproxy.downstream.handshake.conversation import carry_out, greet, opens, take, taken
from mcproxy.downstream.handshake.replay import ReplayStream, UnknownEvent
from mcproxy.downstream.handshake.session import Session
from mcproxy.downstream.handshake.session_ids import UnknownSession
from mcproxy.downstream.handshake.session_store import SessionStore, TooManySessions
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.event_stream import EventStream
from mcproxy.downstream.io.forwarded_credentials import brought
from mcproxy.downstream.io.inbound import Batch, Incoming
from mcproxy.downstream.io.request_headers import SESSION_HEADER, RequestHeaders, request_headers
from mcproxy.downstream.io.responses import Accepted, Refusal, check_accept, failure, json
from mcproxy.downstream.io.send_buffer import SendBuffer
from mcproxy.downstream.io.stream_limits import StreamLimits
from mcproxy.http import server as http
from mcproxy.pending_requests import PeerGone
from mcproxy.protocol.eras import HANDSHAKE_VERSIONS, polls
from mcproxy.protocol.headers import VERSION
from mcproxy.protocol.jsonrpc import (
    INVALID_REQUEST,
    UNSUPPORTED_PROTOCOL_VERSION,
    ErrorResponse,
    Message,
    Request,
    Response,
    encode,
    encode_whole,
)
from mcproxy.protocol.sse import KEEP_ALIVE, encode_event

TRANSPORT: Final = "http"
RESUME_HEADER: Final = "Last-Event-ID"

_RESUME: Final = RESUME_HEADER.lower()


class StreamableHttp:
    """The handlers of one endpoint's methods, for all sessions of this transport."""

    def __init__(self, edge: TransportContext, sessions: SessionStore, streams: StreamLimits) -> None:
        self._edge = edge
        self._sessions = sessions
        self._streams = streams

    async def post(
        self, request: http.Request, head: RequestHeaders, incoming: Incoming, principal: Principal, endpoint: str
    ) -> http.Answered:
        accepted = head.accepted
        check_accept(accepted)
        if opens(incoming):
            assert isinstance(incoming, Request)
            return await self._open(request, incoming, accepted, principal, endpoint)
        session = self._session(request, head, principal, endpoint)
        if isinstance(incoming, list):
            return await self._post_batch(request, session, incoming, accepted)
        if not isinstance(incoming, Request):
            take(self._edge, session, incoming)
            return http.Response(202)
        exchange = HandshakePost(self._edge, self._sessions, session, request, accepted)
        exchange.begin()
        call = taken(session, incoming, exchange)
        if call is not None:
            with TaskCancelScope() as work:
                session.begin(incoming.id, work)
                await carry_out(self._edge, session, incoming.id, call, exchange)
        return exchange.whole() if exchange.events is None else await exchange.events.ended()

    async def get(self, request: http.Request, principal: Principal, endpoint: str) -> http.Answered:
        """Opens the session's listening stream, or resumes any stream of it. The newest connection wins."""
        head = request_headers(request.fields)
        if not head.accepted.events:
            raise Refusal(406, INVALID_REQUEST, "GET opens an event stream: accept text/event-stream")
        session = self._session(request, head, principal, endpoint)
        stream, after = _resumed(session, request.fields.get(_RESUME))
        self._streams.open(principal)
        outbox = SendBuffer(self._edge.proxy.limits)
        outbox.put(KEEP_ALIVE)
        stream.attach(outbox, after=after, primed=after is None and polls(session.caller.version))
        if session.draining:
            session.drain()
        over = partial(self._streams.close, principal)
        _written(self._edge, self._sessions, request, session, stream, outbox, over)
        return http.Streamed()

    async def delete(self, request: http.Request, principal: Principal, endpoint: str) -> http.Answered:
        self._sessions.end(self._session(request, request_headers(request.fields), principal, endpoint))
        return http.Response(204)

    async def _open(
        self, request: http.Request, initialize: Request, accepted: Accepted, principal: Principal, endpoint: str
    ) -> http.Answered:
        own = brought(self._edge, principal, request)
        try:
            session, response = await greet(self._edge, self._sessions, initialize, TRANSPORT, principal, endpoint, own)
        except McpError as refusal:
            return failure(refusal, initialize.id)
        headers = {SESSION_HEADER: session.id}
        if accepted.json:
            return json(encode(response), headers=headers)
        outbox = SendBuffer(self._edge.proxy.limits)
        outbox.put(encode_event(encode(response)))
        outbox.close()
        return await EventStream(request, self._edge, TRANSPORT, outbox, headers=headers).ended()

    async def _post_batch(
        self, request: http.Request, session: Session, batch: Batch, accepted: Accepted
    ) -> http.Answered:
        try:
            check_batch(batch, session.caller.version, self._edge.proxy.limits.max_batch)
        except McpError as refusal:
            raise Refusal(400, refusal.code, refusal.message) from refusal
        if not answered(batch):
            take_batch(self._edge, session, batch)
            return http.Response(202)
        exchange = HandshakePost(self._edge, self._sessions, session, request, accepted, batch, answered(batch))
        exchange.begin()
        try:
            receive_batch(self._edge, session, batch, exchange)
            await exchange.finished()
        finally:
            exchange.seal()
        return exchange.whole() if exchange.events is None else await exchange.events.ended()

    def _session(self, request: http.Request, head: RequestHeaders, principal: Principal, endpoint: str) -> Session:
        if not head.fits_sessions:
            raise _no_such_version(head.version)
        id = head.session
        if not id:
            sentence = f"the header {SESSION_HEADER} is missing: open a session with initialize, and send its id"
            raise Refusal(400, INVALID_REQUEST, sentence)
        own = brought(self._edge, principal, request) if self._edge.forwarded else None
        try:
            return self._sessions.find(id, TRANSPORT, principal, endpoint, own)
        except UnknownSession as error:
            raise Refusal(404, INVALID_REQUEST, "Session not found: open a new one with initialize") from error
        except TooManySessions as error:
            raise Refusal(503, error.code, error.message) from error


class HandshakePost(msgspec.Struct, eq=False):
    """The outlet of one POST, which decides late between JSON and events (requirements R55, R62).

    JSON where the answer comes first; a stream where something else does, or nothing for a while.
    """

    edge: TransportContext
    sessions: SessionStore
    session: Session
    request: http.Request
    accepted: Accepted
    batch: Batch | None = None
    """What is answered, where that is no single request."""
    owed: int = 1
    """How many answers are to come."""
    answers: list[Response | ErrorResponse] = []
    stream: ReplayStream | None = None
    events: EventStream | None = None
    """What it has become, where that is no JSON."""
    sealed: bool = False
    ended: asyncio.Event | None = None

    def begin(self) -> None:
        if self.accepted.events and not self.accepted.json:
            self._begin_stream()
        elif self.accepted.events:
            self.edge.patience.begin(self)
        self.request.when_gone = self.seal

    def send(self, message: Message) -> None:
        if self.stream is not None:
            self.stream.send(message)
        elif isinstance(message, (Response, ErrorResponse)):
            self.answers.append(message)
        elif self.accepted.events and not self.sealed:
            self._begin_stream().send(message)
        else:
            self._send_aside(message)

    def finish(self) -> None:
        self.owed -= 1
        if self.owed:
            return
        self.seal()
        if self.stream is not None:
            self.stream.finish()
        if self.ended is not None:
            self.ended.set()

    def seal(self) -> None:
        """The form is settled, or the client gone: no stream begins any more."""
        self.sealed = True
        self.edge.patience.end(self)

    def waited(self) -> None:
        self._begin_stream()

    async def finished(self) -> None:
        """Returns when all that is owed has come, or the client is gone."""
        self.ended = asyncio.Event()
        if self.owed:
            await self.ended.wait()

    def whole(self) -> http.Response:
        """What the client is answered that takes no stream, once nothing is owed."""
        if not self.answers:
            # cancellation: no response follows a cancelled request.
            return http.Response(202)
        return json(encode_batch(self.answers) if self.batch is not None else encode_whole(self.answers[0]))

    def _begin_stream(self) -> ReplayStream:
        self.stream = stream = self.session.streams.open()
        outbox = SendBuffer(self.edge.proxy.limits)
        stream.attach(outbox, primed=polls(self.session.caller.version))
        for answer in self.answers:
            stream.send(answer)
        self.events = _written(self.edge, self.sessions, self.request, self.session, stream, outbox)
        self.seal()
        return stream

    def _send_aside(self, message: Message) -> None:
        """For a client that takes JSON alone, or is gone: on the listening stream, if it has one."""
        line = self.session.line
        if line.connected:
            line.send(message)
        elif isinstance(message, Request):
            raise PeerGone("it takes no event stream, or it hung up")


def _written(
    edge: TransportContext,
    sessions: SessionStore,
    request: http.Request,
    session: Session,
    stream: ReplayStream,
    outbox: SendBuffer,
    over: Callable[[], None] = lambda: None,
) -> EventStream:
    """Begins to answer a request with a stream, attached to `outbox`. While it is open, the session is not idle."""
    if stream is session.streams.listening:
        outbox.refill = session.tell_changes
    sessions.stream_opened(session)
    closed = partial(_closed, sessions, session, stream, outbox, over)
    return EventStream(request, edge, TRANSPORT, outbox, over=closed)


def _closed(
    sessions: SessionStore, session: Session, stream: ReplayStream, outbox: SendBuffer, over: Callable[[], None]
) -> None:
    stream.detach(outbox)
    sessions.stream_closed(session)
    over()


def _no_such_version(version: str | None) -> Refusal:
    # transports, Protocol Version Header: "invalid or unsupported ... MUST respond with 400 Bad Request".
    sentence = f"the header {VERSION} names no version of a session; supported: {', '.join(HANDSHAKE_VERSIONS)}"
    # Headers may hold bytes that are no text.
    data = {"supported": HANDSHAKE_VERSIONS, "requested": (version or "").encode(errors="replace").decode()}
    return Refusal(400, UNSUPPORTED_PROTOCOL_VERSION, sentence, data=data)


def _resumed(session: Session, last_event_id: str | None) -> tuple[ReplayStream, int | None]:
    if not last_event_id:
        return session.streams.listening, None
    try:
        return session.streams.resume(last_event_id)
    except UnknownEvent as error:
        raise Refusal(400, INVALID_REQUEST, f"nothing is left to resume after this {RESUME_HEADER}") from error
