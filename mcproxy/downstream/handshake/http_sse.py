"""HTTP with SSE, 2024-11-05: one event stream that carries everything, and posts beside it.

The stream is the session: it opens with where to post to, and its end ends all (basic/transports, HTTP with SSE).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Final

from mcproxy.call.identity import Principal
from mcproxy.downstream.handshake.session_ids import KEY_BYTES
from mcproxy.downstream.handshake.session_store import SessionStore
from mcproxy.downstream.handshake.stdio import HandshakePipe
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.event_stream import EventStream
from mcproxy.downstream.io.forwarded_credentials import brought
from mcproxy.downstream.io.inbound import Incoming
from mcproxy.downstream.io.request_headers import request_headers
from mcproxy.downstream.io.responses import Refusal
from mcproxy.downstream.io.shutdown import SHUTTING_DOWN
from mcproxy.downstream.io.stream_limits import StreamLimits
from mcproxy.http import server as http
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST
from mcproxy.protocol.sse import encode_event

TRANSPORT: Final = "sse"


class HttpSse:
    """All open streams of this transport, by the `session_id` that their clients post with."""

    def __init__(
        self,
        edge: TransportContext,
        sessions: SessionStore,
        streams: StreamLimits,
        randomness: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._edge = edge
        self._sessions = sessions
        self._streams = streams
        self._randomness = randomness
        self._pipes: dict[str, HandshakePipe] = {}
        self._draining = False

    async def get(self, request: http.Request, principal: Principal, endpoint: str) -> http.Answered:
        if not request_headers(request.fields).accepted.events:
            raise Refusal(406, INVALID_REQUEST, "GET opens an event stream: accept text/event-stream")
        self._check_room(principal)
        own = brought(self._edge, principal, request)
        self._streams.open(principal)
        token = self._randomness(KEY_BYTES).hex()
        pipe = HandshakePipe(self._edge, self._sessions, TRANSPORT, principal, endpoint, _frame)
        pipe.bring(own)
        self._pipes[token] = pipe
        where = f"{self._edge.proxy.paths.messages}?session_id={token}"
        pipe.outbox.refill = pipe.refill
        pipe.outbox.put(encode_event(where.encode(), event="endpoint"))
        EventStream(request, self._edge, TRANSPORT, pipe.outbox, over=partial(self._end, token))
        return http.Streamed()

    async def post(self, request: http.Request, incoming: Incoming, principal: Principal) -> http.Answered:
        pipe = self._pipes.get(request.query.get("session_id", ""))
        if pipe is None or pipe.principal.name != principal.name:
            raise Refusal(404, INVALID_REQUEST, "Session not found: open an event stream, and post where it says")
        pipe.bring(brought(self._edge, principal, request))
        await pipe.receive(incoming)
        return http.Response(202, b"Accepted", {"Content-Type": "text/plain; charset=utf-8"})

    def _end(self, token: str) -> None:
        pipe = self._pipes.pop(token)
        self._streams.close(pipe.principal)
        pipe.end()

    def drain(self) -> None:
        """Ends the streams that no session was opened on; the others end with their calls."""
        self._draining = True
        for pipe in list(self._pipes.values()):
            if pipe.session is None:
                pipe.close()

    def _check_room(self, principal: Principal) -> None:
        limits = self._edge.proxy.limits
        own = sum(pipe.principal.name == principal.name for pipe in self._pipes.values())
        if self._draining:
            raise Refusal(503, INTERNAL_ERROR, SHUTTING_DOWN)
        if len(self._pipes) >= limits.max_sessions or own >= limits.max_sessions_per_principal:
            raise Refusal(503, INTERNAL_ERROR, "too many event streams are open (limits.max_sessions)")


def _frame(message: bytes) -> bytes:
    return encode_event(message, event="message")
