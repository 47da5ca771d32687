"""A handshake conversation over one two-way connection: stdio, or the event stream of 2024-11-05 with its POSTs.

One session, opened by the client's `initialize`; every message to the client goes into one send buffer. Reads and
writes no bytes of the connection itself.
"""

from __future__ import annotations

from collections.abc import Callable

from mcproxy.call.errors import McpError
from mcproxy.call.identity import ForwardedCredentials, Principal
from mcproxy.downstream.handshake.batches import check_batch, count_answered, encode_batch, receive_batch
from mcproxy.downstream.handshake.conversation import (
    answer_before_initialize,
    open_session,
    receive,
    send_error,
)
from mcproxy.downstream.handshake.session import Session
from mcproxy.downstream.handshake.session_store import SessionStore, latest_credentials
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.inbound import Batch, Incoming, is_initialize
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
"""Frames one encoded message or batch for this kind of connection."""


class HandshakePipe:
    """The session's client stream, and the outlet of all its requests."""

    def __init__(
        self,
        context: TransportContext,
        sessions: SessionStore,
        transport: str,
        principal: Principal,
        endpoint: str,
        frame: Frame,
    ) -> None:
        self.transport = transport
        self.principal = principal
        self.endpoint = endpoint
        self.send_buffer = context.send_buffer()
        self.session: Session | None = None
        self.credentials: ForwardedCredentials | None = None
        """As `Caller.credentials` of its session."""
        self._context = context
        self._sessions = sessions
        self._frame = frame
        self._initializing = False
        self._initialized = False
        self._input_ended = False

    @property
    def connected(self) -> bool:
        return not self.send_buffer.closed

    def send(self, message: Message) -> None:
        """As `Outlet.send`."""
        if isinstance(message, Request) and (self._input_ended or not self.connected):
            raise PeerGone("the connection ended")
        self.put(encode(message), droppable=isinstance(message, Notification))

    def put(self, message: bytes, *, droppable: bool) -> None:
        self.send_buffer.put(self._frame(message), droppable=droppable)

    def send_batch(self, answers: list[Response | ErrorResponse]) -> None:
        self.send_buffer.put(self._frame(encode_batch(answers)))

    def finish(self) -> None:
        return

    def notify_writer(self) -> None:
        self.send_buffer.notify_writer()

    def close(self) -> None:
        """Accepts no more messages; the connection ends once those in the send buffer are written."""
        self.send_buffer.close()

    def end_input(self) -> None:
        """Takes note that the client sends nothing more: no question of now or later is answered."""
        self._input_ended = True
        if self.session is not None:
            self.session.requests.fail_all(PeerGone("its input ended"))

    def refill(self) -> bool:
        """Puts pending changes into the send buffer, once the client has sent a message after `initialize`.

        Returns whether there may be more.
        """
        return self.session is not None and self._initialized and self.session.send_changes()

    def end(self) -> None:
        """Ends the session with its connection: its client never saw an id."""
        self.close()
        if self.session is not None:
            self._sessions.stream_closed(self.session)
            self._sessions.leave(self.session)

    def adopt(self, principal: Principal) -> None:
        """Takes other roles and scopes of the same principal, from now on."""
        self.principal = principal
        if self.session is not None:
            self._sessions.adopt(self.session, principal)

    def update_credentials(self, credentials: ForwardedCredentials | None) -> None:
        self.credentials = latest_credentials(self.credentials, credentials)
        if self.session is not None:
            self._sessions.update_credentials(self.session, credentials)

    async def receive(self, incoming: Incoming) -> None:
        """Takes a message or a batch; waits only for the answer to `initialize`. Errors are sent to the client."""
        match incoming:
            case list():
                self._receive_batch(incoming)
            case Request() if self.session is None:
                await self._receive_first(incoming)
            case _ if self.session is not None:
                self._initialized = True
                receive(self._context, self.session, incoming, self)
                # lifecycle: only now is the client known to be ready; changes since `initialize` are sent now.
                self.notify_writer()
            case _:
                return

    async def _receive_first(self, request: Request) -> None:
        if self._initializing or not is_initialize(request):
            self.send(answer_before_initialize(request))
            return
        self._initializing = True
        try:
            session, response = await open_session(
                self._context, self._sessions, request, self.transport, self.principal, self.endpoint, self.credentials
            )
        except McpError as refusal:
            send_error(request.id, refusal, self)
            return
        finally:
            self._initializing = False
        if self.send_buffer.closed:
            self._sessions.leave(session)
            return
        session.client_stream = self
        self._sessions.stream_opened(session)
        self.session = session
        self.send(response)

    def _receive_batch(self, batch: Batch) -> None:
        session = self.session
        try:
            check_batch(batch, session.caller.version if session else None, self._context.proxy.limits.max_batch)
        except McpError as refusal:
            send_error(None, refusal, self)
            return
        assert session is not None
        receive_batch(self._context, session, batch, _BatchOutlet(self, batch))


class _BatchOutlet:
    """The outlet of one batch: its answers go together once all are there (JSON-RPC 2.0, section 6)."""

    def __init__(self, pipe: HandshakePipe, batch: Batch) -> None:
        self._pipe = pipe
        self._missing = count_answered(batch)
        self._answers: list[Response | ErrorResponse] = []

    def send(self, message: Message) -> None:
        if isinstance(message, Response | ErrorResponse):
            self._answers.append(message)
        else:
            self._pipe.send(message)

    def finish(self) -> None:
        self._missing -= 1
        if self._missing == 0 and self._answers:
            self._pipe.send_batch(self._answers)
