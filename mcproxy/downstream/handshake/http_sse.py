"""The transport HTTP with SSE of 2024-11-05: one event stream to the client, and POSTs from it.

The stream is the session: its first event names the URL for POSTs, and its end ends the session (basic/transports,
HTTP with SSE).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from mcproxy.call.identity import Principal
from mcproxy.downstream.handshake.session_ids import KEY_BYTES
from mcproxy.downstream.handshake.session_store import SessionStore
from mcproxy.downstream.handshake.stdio import HandshakePipe
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.event_stream import EventStream
from mcproxy.downstream.io.inbound import Incoming
from mcproxy.downstream.io.open_streams import OpenStream, OpenStreams
from mcproxy.downstream.io.request_head import RequestHead
from mcproxy.downstream.io.responses import Refusal, shutting_down
from mcproxy.http import server as http
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST
from mcproxy.protocol.sse import encode_event

TRANSPORT: Final = "sse"


class HttpSse:
    """All open streams of this transport, by the `session_id` that their clients post with."""

    def __init__(
        self,
        context: TransportContext,
        sessions: SessionStore,
        streams: OpenStreams,
        randomness: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._streams = streams
        self._randomness = randomness
        self._pipes: dict[str, HandshakePipe] = {}
        self._draining = False

    async def get(self, request: http.Request, head: RequestHead) -> http.Answered:
        """Opens an event stream; its first event names the URL for POSTs (2024-11-05, HTTP with SSE).

        Raises Refusal.
        """
        principal = head.principal
        if not head.headers.accepted.events:
            raise Refusal(406, INVALID_REQUEST, "GET opens an event stream: accept text/event-stream")
        self._check_room(principal)
        pipe = HandshakePipe(self._context, self._sessions, TRANSPORT, principal, head.endpoint, _frame)
        opened = self._streams.open(head.identified, head.identify_again(request), pipe.close, pipe.adopt)
        token = self._context.sealer.labelled(self._randomness(KEY_BYTES).hex())
        pipe.update_credentials(head.credentials)
        self._pipes[token] = pipe
        below = _public_path(self._context.proxy.public_url, request.fields.get("host", ""))
        posts = f"{below}{self._context.proxy.paths.messages}?session_id={token}"
        pipe.send_buffer.refill = pipe.refill
        pipe.send_buffer.put(encode_event(posts.encode(), event="endpoint"))
        EventStream(request, self._context, TRANSPORT, pipe.send_buffer, on_end=partial(self._end, token, opened))
        return http.Streamed()

    async def post(self, request: http.Request, head: RequestHead, incoming: Incoming) -> http.Answered:
        """Takes a message for an open stream, on which its answer is sent. Raises Refusal: 404 if there is none."""
        pipe = self._pipes.get(request.query.get("session_id", ""))
        if pipe is None or pipe.principal.name != head.principal.name:
            raise Refusal(404, INVALID_REQUEST, "Session not found: open an event stream, and post to its URL")
        if head.principal != pipe.principal:
            pipe.adopt(head.principal)  # the same caller, with other roles or scopes
        pipe.update_credentials(head.credentials)
        await pipe.receive(incoming)
        return http.Response(202, b"Accepted", {"Content-Type": "text/plain; charset=utf-8"})

    def _end(self, token: str, opened: OpenStream) -> None:
        opened.close()
        self._pipes.pop(token).end()

    def drain(self) -> None:
        """Ends streams without a session; the others end with their calls."""
        self._draining = True
        for pipe in list(self._pipes.values()):
            if pipe.session is None:
                pipe.close()

    def _check_room(self, principal: Principal) -> None:
        limits = self._context.proxy.limits
        own = sum(pipe.principal.account == principal.account for pipe in self._pipes.values())
        if self._draining:
            raise Refusal(503, INTERNAL_ERROR, shutting_down().message)
        if len(self._pipes) >= limits.max_sessions:
            raise Refusal(503, INTERNAL_ERROR, "too many event streams are open (limits.max_sessions)")
        if not principal.is_several and own >= limits.max_sessions_per_principal:
            sentence = f"all your {own} event streams are in use (limits.max_sessions_per_principal); end one"
            raise Refusal(503, INTERNAL_ERROR, sentence)


def _public_path(public_url: str | None, host: str) -> str:
    """The path below which a client finds the gateway: that of the public URL, where its request was sent there.

    A reverse proxy passes the `host` on, maybe without its port; it has taken the path away.
    """
    public = urlsplit(public_url or "")
    return public.path if host.lower() in {public.netloc.lower(), public.hostname} else ""


def _frame(message: bytes) -> bytes:
    return encode_event(message, event="message")
