"""A handshake conversation over one duplex: stdio, or the event stream of 2024-11-05 with its posts.

One session, opened by the client's `initialize`; everything for the client goes into one outbox. Reads and writes
no bytes of the connection itself.
"""

from __future__ import annotations

from collections.abc import Callable

from mcproxy.call.errors import McpError
from mcproxy.call.identity import ForwardedCredentials, Principal
from mcproxy.downstream.handshake.batches import answered, check_batch, encode_batch, receive_batch
from mcproxy.downstream.handshake.conversation import answer_early, greet, opens, receive, refuse
from mcproxy.downstream.handshake.session import Session
from mcproxy.downstream.handshake.session_store import SessionStore
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.inbound import Batch, Incoming
from mcproxy.downstream.io.send_buffer import SendBuffer
from mcproxy.pending_requests import PeerGone
from mcproxy.protocol.jsonrpc import (
    ErrorResponse,
    Message,
    Notification,
    Request,
    Response,
    encode,
)

Frame = Callable[[bytes], bytes]
"""How one message, or one batch of them, is set off from the next on this kind of connection."""


class HandshakePipe:
    """`frame` is given encoded messages. The pipe is the session's line, and the outlet of all its requests."""

    def __init__(
        self,
        edge: TransportContext,
        sessions: SessionStore,
        transport: str,
        principal: Principal,
        endpoint: str,
        frame: Frame,
    ) -> None:
        self.transport = transport
        self.principal = principal
        self.endpoint = endpoint
        self.outbox = SendBuffer(edge.proxy.limits)
        self.session: Session | None = None
        self.credentials: ForwardedCredentials | None = None
        """What was brought for upstreams last."""
        self._edge = edge
        self._sessions = sessions
        self._frame = frame
        self._opening = False
        self._spoken_to = False

    @property
    def connected(self) -> bool:
        return not self.outbox.closed

    def send(self, message: Message) -> None:
        if isinstance(message, Request) and not self.connected:
            raise PeerGone("the connection ended")
        self.put(encode(message), may_miss=isinstance(message, Notification))

    def put(self, message: bytes, *, may_miss: bool) -> None:
        self.outbox.put(self._frame(message), may_miss=may_miss)

    def send_batch(self, answers: list[Response | ErrorResponse]) -> None:
        self.outbox.put(self._frame(encode_batch(answers)))

    def finish(self) -> None:
        return

    def wake(self) -> None:
        self.outbox.wake()

    def close(self) -> None:
        self.outbox.close()

    def refill(self) -> bool:
        """Puts changes into the outbox, once the client has shown that it is ready for them.

        Whether there may be more.
        """
        return self.session is not None and self._spoken_to and self.session.tell_changes()

    def end(self) -> None:
        """The connection is gone, and the session with it, whose id its client never saw."""
        self.close()
        if self.session is not None:
            self._sessions.stream_closed(self.session)
            self._sessions.leave(self.session)

    def bring(self, credentials: ForwardedCredentials | None) -> None:
        self.credentials = credentials or self.credentials
        if self.session is not None:
            self._sessions.bring(self.session, credentials)

    async def receive(self, incoming: Incoming) -> None:
        match incoming:
            case list():
                self._receive_batch(incoming)
            case Request() if self.session is None:
                await self._receive_first(incoming)
            case _ if self.session is not None:
                self._spoken_to = True
                receive(self._edge, self.session, incoming, self)
                # lifecycle: until now the client had not said that it is ready; what changed meanwhile goes now.
                self.wake()
            case _:
                return

    async def _receive_first(self, request: Request) -> None:
        if self._opening or not opens(request):
            self.send(answer_early(request))
            return
        self._opening = True
        try:
            session, response = await greet(
                self._edge, self._sessions, request, self.transport, self.principal, self.endpoint, self.credentials
            )
        except McpError as refusal:
            refuse(request.id, refusal, self)
            return
        finally:
            self._opening = False
        if self.outbox.closed:
            self._sessions.leave(session)
            return
        session.line = self
        self._sessions.stream_opened(session)
        self.session = session
        self.send(response)

    def _receive_batch(self, batch: Batch) -> None:
        session = self.session
        try:
            check_batch(batch, session.caller.version if session else None, self._edge.proxy.limits.max_batch)
        except McpError as refusal:
            refuse(None, refusal, self)
            return
        assert session is not None
        receive_batch(self._edge, session, batch, _Gathered(self, batch))


class _Gathered:
    """The outlet of one batch: its answers go together once all are there (JSON-RPC 2.0, section 6)."""

    def __init__(self, pipe: HandshakePipe, batch: Batch) -> None:
        self._pipe = pipe
        self._owed = answered(batch)
        self._answers: list[Response | ErrorResponse] = []

    def send(self, message: Message) -> None:
        if isinstance(message, Response | ErrorResponse):
            self._answers.append(message)
        else:
            self._pipe.send(message)

    def finish(self) -> None:
        self._owed -= 1
        if self._owed == 0 and self._answers:
            self._pipe.send_batch(self._answers)
