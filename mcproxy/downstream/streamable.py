"""Streamable HTTP of the handshake eras, 2025-03-26 to 2025-11-25: POST, GET and DELETE on one path.

A connection carries messages and decides nothing: calls go on without it, and what they send on a stream is kept to
be resumed (basic/transports, Streamable HTTP). A client that hangs up before its stream has begun has no event to
resume from: its call runs to the end, and its answer is lost. Knows nothing of the stateless era.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from mcproxy.call import McpError, Principal
from mcproxy.channel import PeerGone
from mcproxy.downstream.batches import answered, check_batch, encode_batch, receive_batch
from mcproxy.downstream.edge import Edge
from mcproxy.downstream.forwarding import brought
from mcproxy.downstream.handshake import greet, opens, receive
from mcproxy.downstream.open_streams import OpenStreams
from mcproxy.downstream.opening import Batch, Incoming
from mcproxy.downstream.outbox import Outbox
from mcproxy.downstream.responses import Accepted, Refusal, check_accept, failure, json, read_accept, send_events
from mcproxy.downstream.session_ids import UnknownSession
from mcproxy.downstream.sessions import Session, Sessions, TooManySessions
from mcproxy.downstream.streams import Stream, UnknownEvent
from mcproxy.protocol.eras import HANDSHAKE_VERSIONS, polls
from mcproxy.protocol.jsonrpc import (
    INVALID_REQUEST,
    UNSUPPORTED_PROTOCOL_VERSION,
    ErrorResponse,
    Message,
    Request,
    Response,
    encode,
)
from mcproxy.protocol.sse import KEEP_ALIVE, encode_event

TRANSPORT: Final = "http"
SESSION_HEADER: Final = "Mcp-Session-Id"
VERSION_HEADER: Final = "MCP-Protocol-Version"
RESUME_HEADER: Final = "Last-Event-ID"


class Streamable:
    """The handlers of one endpoint's methods, for all sessions of this transport."""

    def __init__(self, edge: Edge, sessions: Sessions, streams: OpenStreams) -> None:
        self._edge = edge
        self._sessions = sessions
        self._streams = streams

    async def post(
        self, request: web.Request, incoming: Incoming, principal: Principal, endpoint: str
    ) -> web.StreamResponse:
        accepted = check_accept(request)
        if not isinstance(incoming, list) and opens(incoming):
            assert isinstance(incoming, Request)
            return await self._open(request, incoming, accepted, principal, endpoint)
        session = self._session(request, principal, endpoint)
        if isinstance(incoming, list):
            return await self._post_batch(request, session, incoming, accepted)
        exchange = Exchange(self._edge, session, accepted, 1)
        receive(self._edge, session, incoming, exchange)
        if not isinstance(incoming, Request):
            return web.Response(status=202)
        return await self._answer(request, session, exchange, batch=False)

    async def get(self, request: web.Request, principal: Principal, endpoint: str) -> web.StreamResponse:
        """Opens the session's listening stream, or resumes any stream of it. The newest connection wins."""
        if not read_accept(request.headers.get("Accept")).events:
            raise Refusal(406, INVALID_REQUEST, "GET opens an event stream: accept text/event-stream")
        session = self._session(request, principal, endpoint)
        with self._streams.one(principal):
            stream, after = _resumed(session, request.headers.get(RESUME_HEADER))
            outbox = Outbox(self._edge.proxy.limits)
            outbox.put(KEEP_ALIVE)
            stream.attach(outbox, after=after, primed=after is None and polls(session.caller.version))
            if session.draining:
                session.drain()
            return await self._stream(request, session, stream, outbox)

    async def delete(self, request: web.Request, principal: Principal, endpoint: str) -> web.StreamResponse:
        self._sessions.end(self._session(request, principal, endpoint))
        return web.Response(status=204)

    async def _open(
        self, request: web.Request, initialize: Request, accepted: Accepted, principal: Principal, endpoint: str
    ) -> web.StreamResponse:
        own = brought(self._edge, principal, request)
        try:
            session, response = await greet(self._edge, self._sessions, initialize, TRANSPORT, principal, endpoint, own)
        except McpError as refusal:
            return failure(refusal, initialize.id)
        headers = {SESSION_HEADER: session.id}
        if accepted.json:
            return json(encode(response), headers=headers)
        outbox = Outbox(self._edge.proxy.limits)
        outbox.put(encode_event(encode(response)))
        outbox.close()
        return await send_events(request, self._edge, TRANSPORT, outbox, headers=headers)

    async def _post_batch(
        self, request: web.Request, session: Session, batch: Batch, accepted: Accepted
    ) -> web.StreamResponse:
        try:
            check_batch(batch, session.caller.version, self._edge.proxy.limits.max_batch)
        except McpError as refusal:
            raise Refusal(400, refusal.code, refusal.message) from refusal
        exchange = Exchange(self._edge, session, accepted, answered(batch))
        receive_batch(self._edge, session, batch, exchange)
        if not answered(batch):
            return web.Response(status=202)
        return await self._answer(request, session, exchange, batch=True)

    async def _answer(
        self, request: web.Request, session: Session, exchange: Exchange, *, batch: bool
    ) -> web.StreamResponse:
        try:
            await exchange.decide(self._edge.proxy.stream_after)
        finally:
            exchange.seal()
        if exchange.stream is not None:
            return await self._stream(request, session, exchange.stream, exchange.outbox)
        if not exchange.answers:
            # cancellation: no response follows a cancelled request.
            return web.Response(status=202)
        return json(encode_batch(exchange.answers) if batch else encode(exchange.answers[0]))

    async def _stream(
        self, request: web.Request, session: Session, stream: Stream, outbox: Outbox
    ) -> web.StreamResponse:
        refill = session.tell_changes if stream is session.streams.listening else None
        try:
            with self._sessions.streaming(session):
                return await send_events(request, self._edge, TRANSPORT, outbox, refill=refill)
        finally:
            stream.detach(outbox)

    def _session(self, request: web.Request, principal: Principal, endpoint: str) -> Session:
        _check_version(request.headers.get(VERSION_HEADER))
        id = request.headers.get(SESSION_HEADER)
        if not id:
            sentence = f"the header {SESSION_HEADER} is missing: open a session with initialize, and send its id"
            raise Refusal(400, INVALID_REQUEST, sentence)
        try:
            return self._sessions.find(id, TRANSPORT, principal, endpoint, brought(self._edge, principal, request))
        except UnknownSession as error:
            raise Refusal(404, INVALID_REQUEST, "Session not found: open a new one with initialize") from error
        except TooManySessions as error:
            raise Refusal(503, error.code, error.message) from error


class Exchange:
    """The outlet of one POST, which decides late between JSON and events (requirements R55, R62).

    JSON where the answer comes first; a stream where something else does, or nothing for a while.
    """

    def __init__(self, edge: Edge, session: Session, accepted: Accepted, owed: int) -> None:
        self.answers: list[Response | ErrorResponse] = []
        self.stream: Stream | None = None
        self.outbox = Outbox(edge.proxy.limits)
        self._session = session
        self._accepted = accepted
        self._owed = owed
        self._decided = asyncio.Event()
        self._sealed = False

    def send(self, message: Message) -> None:
        if self.stream is not None:
            self.stream.send(message)
        elif isinstance(message, Response | ErrorResponse):
            self.answers.append(message)
        elif self._accepted.events and not self._sealed:
            self._open_stream().send(message)
        else:
            self._send_aside(message)

    def finish(self) -> None:
        self._owed -= 1
        if self._owed:
            return
        self._decided.set()
        if self.stream is not None:
            self.stream.finish()

    async def decide(self, patience: float) -> None:
        """Returns when the form of the response is settled. Waits for the answer as long as JSON alone will do."""
        if self._accepted.events:
            late = asyncio.get_running_loop().call_later(patience if self._accepted.json else 0, self._decided.set)
            try:
                await self._decided.wait()
            finally:
                late.cancel()
            if self.stream is None and (self._owed or not self._accepted.json):
                self._open_stream()
        else:
            await self._decided.wait()

    def seal(self) -> None:
        """The form is settled, or the client gone: no stream begins any more."""
        self._sealed = True

    def _open_stream(self) -> Stream:
        self.stream = stream = self._session.streams.open()
        stream.attach(self.outbox, primed=polls(self._session.caller.version))
        for answer in self.answers:
            stream.send(answer)
        if not self._owed:
            stream.finish()
        self._decided.set()
        return stream

    def _send_aside(self, message: Message) -> None:
        """For a client that takes JSON alone, or is gone: on the listening stream, if it has one."""
        line = self._session.line
        if line.connected:
            line.send(message)
        elif isinstance(message, Request):
            raise PeerGone("it takes no event stream, or it hung up")


def _check_version(version: str | None) -> None:
    # transports, Protocol Version Header: "invalid or unsupported ... MUST respond with 400 Bad Request".
    if version is not None and version not in HANDSHAKE_VERSIONS:
        supported = ", ".join(HANDSHAKE_VERSIONS)
        sentence = f"the header {VERSION_HEADER} names no version of a session; supported: {supported}"
        # Headers may hold bytes that are no text.
        data = {"supported": HANDSHAKE_VERSIONS, "requested": version.encode(errors="replace").decode()}
        raise Refusal(400, UNSUPPORTED_PROTOCOL_VERSION, sentence, data=data)


def _resumed(session: Session, last_event_id: str | None) -> tuple[Stream, int | None]:
    if not last_event_id:
        return session.streams.listening, None
    try:
        return session.streams.resume(last_event_id)
    except UnknownEvent as error:
        raise Refusal(400, INVALID_REQUEST, f"nothing is left to resume after this {RESUME_HEADER}") from error
