"""Streamable HTTP of the handshake era, 2025-03-26 to 2025-11-25: POST, GET and DELETE on one path.

A call goes on when its connection is lost, and events on its stream are kept to be resumed (basic/transports,
Streamable HTTP). A client that hangs up before its stream has begun has no event to resume from: its call runs to the
end, and its answer is lost. Knows nothing of the stateless era.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from mcproxy.call.errors import McpError
from mcproxy.call.identity import Caller
from mcproxy.concurrency.cancel_scope import TaskCancelScope
from mcproxy.downstream.handshake.batches import (
    check_batch,
    count_answered,
    encode_batch,
    receive_batch,
    receive_unanswered_batch,
)
from mcproxy.downstream.handshake.conversation import (
    call_or_answer,
    open_session,
    receive_unanswered,
    run_call,
)
from mcproxy.downstream.handshake.replay import ReplayStream, UnknownEvent
from mcproxy.downstream.handshake.session import Session, SessionState
from mcproxy.downstream.handshake.session_ids import UnknownSession
from mcproxy.downstream.handshake.session_store import SessionStore, TooManySessions
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.event_stream import EventStream, LateReply
from mcproxy.downstream.io.inbound import Batch, Incoming, is_initialize
from mcproxy.downstream.io.open_streams import OpenStreams
from mcproxy.downstream.io.request_head import SESSION_FIELD, SESSION_HEADER, RequestHead
from mcproxy.downstream.io.responses import Accepted, Refusal, check_accept, failure, json
from mcproxy.downstream.io.send_buffer import SendBuffer
from mcproxy.http import server as http
from mcproxy.pending_requests import PeerGone
from mcproxy.protocol.envelope import SERVED_VERSIONS
from mcproxy.protocol.eras import polls
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
    """Handles POST, GET and DELETE, for all endpoints and sessions."""

    def __init__(self, context: TransportContext, sessions: SessionStore, streams: OpenStreams) -> None:
        self._context = context
        self._sessions = sessions
        self._streams = streams

    async def post(self, request: http.Request, head: RequestHead, incoming: Incoming) -> http.Answered:
        """Answers a POST as JSON or as an event stream (transports, Sending Messages to the Server). Raises Refusal."""
        accepted = head.headers.accepted
        check_accept(accepted)
        if is_initialize(incoming):
            assert isinstance(incoming, Request)
            return await self._open(request, head, incoming)
        session = self._session(request, head)
        if isinstance(incoming, list):
            return await self._post_batch(request, session, incoming, accepted)
        if not isinstance(incoming, Request):
            receive_unanswered(self._context, session, incoming)
            return http.Response(202)
        exchange = HandshakePost(self._sessions, session, context=self._context, request=request, accepted=accepted)
        exchange.begin()
        call = call_or_answer(self._context, session, incoming, exchange)
        if call is not None:
            with TaskCancelScope(self._context.loop) as work:
                session.begin(incoming.id, work)
                await run_call(self._context, session, incoming.id, call, exchange)
        return exchange.json_response() if exchange.events is None else await exchange.events.wait_ended()

    async def get(self, request: http.Request, head: RequestHead) -> http.Answered:
        """Opens the session's listening stream, or resumes any of its streams. The newest connection wins."""
        if not head.headers.accepted.events:
            raise Refusal(406, INVALID_REQUEST, "GET opens an event stream: accept text/event-stream")
        session = self._session(request, head)
        stream, after = _resumed(session, request.fields.get(_RESUME))
        send_buffer = self._context.send_buffer()
        adopt = partial(self._sessions.adopt, session)
        opened = self._streams.open(head.identified, head.identify_again(request), send_buffer.close, adopt)
        send_buffer.put(KEEP_ALIVE)
        stream.attach(send_buffer, after=after, primed=after is None and polls(session.caller.version))
        session.close_if_drained()
        _begin_events(self._context, self._sessions, request, session, stream, send_buffer, opened.close)
        return http.Streamed()

    async def delete(self, request: http.Request, head: RequestHead) -> http.Answered:
        """Ends the session for its client: 204 (transports, Session Management). Raises Refusal."""
        self._sessions.end(self._session(request, head))
        return http.Response(204)

    async def _open(self, request: http.Request, head: RequestHead, initialize: Request) -> http.Answered:
        try:
            session, response = await open_session(
                self._context, self._sessions, initialize, TRANSPORT, head.principal, head.endpoint, head.credentials
            )
        except McpError as refusal:
            return failure(refusal, initialize.id)
        headers = {SESSION_HEADER: session.id}
        if head.headers.accepted.json:
            return json(encode(response), headers=headers)
        send_buffer = self._context.send_buffer()
        send_buffer.put(encode_event(encode(response)))
        send_buffer.close()
        return await EventStream(request, self._context, TRANSPORT, send_buffer, headers=headers).wait_ended()

    async def _post_batch(
        self, request: http.Request, session: Session, batch: Batch, accepted: Accepted
    ) -> http.Answered:
        try:
            check_batch(batch, session.caller.version, self._context.proxy.limits.max_batch)
        except McpError as refusal:
            raise Refusal(400, refusal.code, refusal.message) from refusal
        if not count_answered(batch):
            receive_unanswered_batch(self._context, session, batch)
            return http.Response(202)
        exchange = HandshakePost(
            self._sessions,
            session,
            batch,
            count_answered(batch),
            context=self._context,
            request=request,
            accepted=accepted,
        )
        exchange.begin()
        try:
            receive_batch(self._context, session, batch, exchange)
            await exchange.wait_finished()
        finally:
            exchange.settle()
        return exchange.json_response() if exchange.events is None else await exchange.events.wait_ended()

    def _session(self, request: http.Request, head: RequestHead) -> Session:
        if not head.headers.fits_sessions:
            raise _no_such_version(head.headers.version)
        id = request.fields.get(SESSION_FIELD)
        if not id:
            sentence = f"the header {SESSION_HEADER} is missing: open a session with initialize, and send its id"
            raise Refusal(400, INVALID_REQUEST, sentence)
        try:
            return self._sessions.find(id, TRANSPORT, head.principal, head.endpoint, head.credentials)
        except UnknownSession as error:
            raise _no_such_session() from error
        except TooManySessions as error:
            raise Refusal(503, error.code, error.message) from error


class HandshakePost(LateReply, eq=False):
    """The outlet of one POST. Its stream belongs to the session, and can be resumed."""

    sessions: SessionStore
    session: Session
    batch: Batch | None = None
    """The batch to answer; None for a single request."""
    missing: int = 1
    """The number of answers that are still to come."""
    answers: list[Response | ErrorResponse] = msgspec.field(default_factory=list)
    stream: ReplayStream | None = None
    finished: asyncio.Event | None = None
    caller: Caller | None = None
    """The caller as of this request, by whose rights its stream is resumed."""

    def begin(self) -> None:
        self.caller = self.session.caller
        LateReply.begin(self)
        self.request.on_disconnect = self.settle

    def send(self, message: Message) -> None:
        if self.stream is None and isinstance(message, (Response, ErrorResponse)):
            self.answers.append(message)
            return
        if self.accepted.events:
            self.begin_stream()
        if self.stream is not None:
            self.stream.send(message)
        else:
            self._send_aside(message)

    def finish(self) -> None:
        self.missing -= 1
        if self.missing:
            return
        self.settle()
        if self.stream is not None:
            self.stream.finish()
        if self.finished is not None:
            self.finished.set()

    async def wait_finished(self) -> None:
        """Returns once every answer has come."""
        self.finished = asyncio.Event()
        if self.missing:
            await self.finished.wait()

    def json_response(self) -> http.Response:
        """The JSON response, if no stream began and no answer is missing. Raises Refusal where the session ended."""
        if not self.answers:
            if self.session.state is SessionState.ENDED:
                raise _no_such_session()
            # cancellation: no response follows a cancelled request.
            return http.Response(202)
        return json(encode_batch(self.answers) if self.batch is not None else encode_whole(self.answers[0]))

    def open_stream(self) -> EventStream:
        self.stream = stream = self.session.streams.open((self.caller or self.session.caller).rights)
        send_buffer = self.context.send_buffer()
        stream.attach(send_buffer, primed=polls(self.session.caller.version))
        for answer in self.answers:
            stream.send(answer)
        return _begin_events(self.context, self.sessions, self.request, self.session, stream, send_buffer)

    def _send_aside(self, message: Message) -> None:
        """Sends on the listening stream, if any, to a client that accepts only JSON or has hung up."""
        stream = self.session.client_stream
        if stream.connected:
            stream.send(message)
        elif isinstance(message, Request):
            raise PeerGone("it takes no event stream, or it hung up")


def _begin_events(
    context: TransportContext,
    sessions: SessionStore,
    request: http.Request,
    session: Session,
    stream: ReplayStream,
    send_buffer: SendBuffer,
    on_end: Callable[[], None] = lambda: None,
) -> EventStream:
    """Begins an SSE response fed by `send_buffer`. The session does not expire while it is open."""
    if stream is session.streams.listening:
        send_buffer.refill = session.send_changes
    sessions.stream_opened(session)
    ended = partial(_end_events, sessions, session, stream, send_buffer, on_end)
    return EventStream(request, context, TRANSPORT, send_buffer, on_end=ended)


def _end_events(
    sessions: SessionStore, session: Session, stream: ReplayStream, send_buffer: SendBuffer, on_end: Callable[[], None]
) -> None:
    stream.detach(send_buffer)
    sessions.stream_closed(session)
    on_end()


def _no_such_session() -> Refusal:
    # transports, Session Management: "MUST respond to requests containing that session ID with HTTP 404 Not Found".
    return Refusal(404, INVALID_REQUEST, "Session not found: open a new one with initialize")


def _no_such_version(version: str | None) -> Refusal:
    # transports, Protocol Version Header: "invalid or unsupported ... MUST respond with 400 Bad Request".
    sentence = f"the header {VERSION} names no version that is served; supported: {', '.join(SERVED_VERSIONS)}"
    # Headers may hold bytes that are no valid text.
    data = {"supported": SERVED_VERSIONS, "requested": (version or "").encode(errors="replace").decode()}
    return Refusal(400, UNSUPPORTED_PROTOCOL_VERSION, sentence, data=data)


def _resumed(session: Session, last_event_id: str | None) -> tuple[ReplayStream, int | None]:
    if not last_event_id:
        return session.streams.listening, None
    try:
        return session.streams.resume(last_event_id, session.caller.rights)
    except UnknownEvent as error:
        raise Refusal(400, INVALID_REQUEST, f"no event can be resumed after this {RESUME_HEADER}") from error
