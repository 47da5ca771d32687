"""The client side of the handshake era (2024-11-05 to 2025-11-25), over any transport: from `initialize` on.

Sends calls, and takes the server's responses, notifications and requests. Opens no connection: the transport provides
`send`, and passes in each message that arrives. Sends nothing twice; `reconnecting` decides on retries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, assert_never

import anyio
from anyio.abc import TaskGroup

from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.clients import ListChanged, Notice, ResourceUpdated, TaskChanged
from mcproxy.call.errors import McpError, Party
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.pending_requests import (
    CANCEL_TIMEOUT,
    PeerGone,
    PendingRequests,
    RequestTimeout,
    Send,
    Timeouts,
    with_progress_token,
)
from mcproxy.protocol.envelope import untyped
from mcproxy.protocol.jsonrpc import (
    ErrorResponse,
    InvalidMessage,
    Message,
    Notification,
    Request,
    RequestId,
    Resemblance,
    Response,
    parse_id,
    parse_text,
)
from mcproxy.protocol.methods import (
    CANCELLED,
    CHANGED,
    ELICITATION_COMPLETE,
    INITIALIZED,
    LOG_MESSAGE,
    PROGRESS,
    RESOURCE_UPDATED,
    Method,
    Subject,
)
from mcproxy.protocol.tasks import TASK, TASK_ID, TASK_STATUS, related_task
from mcproxy.telemetry.metrics import UNKNOWN
from mcproxy.upstream.attribution import (
    Ambiguous,
    Attributed,
    Attribution,
    CallsInFlight,
    SharedByPrincipals,
    Unsolicited,
)
from mcproxy.upstream.child.liveness import Liveness
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.handshake.bodies import messages
from mcproxy.upstream.handshake.initialization import Initialization
from mcproxy.upstream.handshake.server_requests import ServerRequests
from mcproxy.upstream.handshake.task_clients import TaskClients
from mcproxy.upstream.handshake.url_elicitations import UrlElicitations
from mcproxy.upstream.link import (
    CutOff,
    Duplex,
    Echoed,
    Link,
    NotAccepted,
    Rejected,
    Unreachable,
    supported_versions,
    task_group,
    unanswered,
    unless_gone,
)

_TASK: Final = Subject.TASK

MESSAGES_PER_TURN: Final = 10
"""Messages of a batch that are taken before other tasks get a turn."""


@asynccontextmanager
async def handshake_over_pipe(
    pipe: Duplex, context: LinkContext, give_up: anyio.Event | None = None
) -> AsyncIterator[Link]:
    """A link over a pipe on which all messages arrive in one stream. Raises Unreachable or Rejected.

    `give_up` ends an unfinished handshake.
    """
    async with task_group() as tasks:
        conversation = HandshakeConversation(context, tasks, pipe.send, lambda: liveness.doubt())
        with Liveness(
            pipe,
            lambda: context.spec.timeouts,
            tasks,
            conversation.ping,
            conversation.may_be_silent,
            conversation.disconnect,
        ) as liveness:
            tasks.start_soon(_read_messages, pipe, conversation)
            if give_up is not None:
                tasks.start_soon(_give_up_handshake, give_up, conversation)
            await conversation.open()
            try:
                yield conversation
            finally:
                conversation.disconnect("the link was closed")


async def _read_messages(pipe: Duplex, conversation: HandshakeConversation) -> None:
    conversation.disconnect(await pipe.read(conversation.receive))


async def _give_up_handshake(give_up: anyio.Event, conversation: HandshakeConversation) -> None:
    await give_up.wait()
    if conversation.version is None:
        conversation.disconnect("the server answered in another era")


class HandshakeConversation:
    """Implements `link.Link`. `send` may return at once, or carry a request's exchange until it is settled.

    `given_up` is called when a call ends without its answer.
    """

    def __init__(
        self, context: LinkContext, tasks: TaskGroup, send: Send, given_up: Callable[[], object] | None = None
    ) -> None:
        self._context = context
        self._tasks = tasks
        self._send = send
        self._send_cancel = unless_gone(send)
        self._given_up = given_up
        self._requests = PendingRequests()
        self._calls = CallsInFlight()
        self._url_elicitations = UrlElicitations(context.spec.max_in_flight)
        self._task_clients = TaskClients(context.spec.max_in_flight)
        self._questions = ServerRequests(
            context, tasks, self._requests, self._send_in_time, self._url_elicitations, lambda: self.version
        )
        self._initialization = Initialization(context, self._requests, self._send_unless_lost)
        self._identity: ServerIdentity | None = None
        self.is_closed = False
        self.settled: Final = self._requests.settled
        self._drain_reason: str | None = None
        self._all_answered = anyio.Event()
        self._ended = anyio.Event()
        self._is_lost = False
        self._close_reason = ""
        self._on: dict[str, Callable[[Notification, RequestId | None], None]] = {
            PROGRESS: self._on_progress,
            TASK_STATUS: self._on_task_status,
            CANCELLED: self._on_cancelled,
            LOG_MESSAGE: self._on_log_message,
            ELICITATION_COMPLETE: self._on_elicitation_complete,
            RESOURCE_UPDATED: self._on_resource_updated,
        }

    @property
    def identity(self) -> ServerIdentity:
        assert self._identity is not None, "the handshake is not done"
        return self._identity

    async def wait_closed(self) -> str:
        await self._ended.wait()
        return self._close_reason

    def is_answered(self, id: RequestId) -> bool:
        """Whether request `id` is answered and the link still open, so that its connection may be reused."""
        return self.settled(id) and not self.is_closed

    def disconnect(self, reason: str) -> None:
        """Closes the link: calls in flight fail with PeerGone, later ones with NotAccepted."""
        if not self._is_lost:
            self.is_closed, self._is_lost, self._close_reason = True, True, reason
            self._ended.set()
            self._requests.fail_all(PeerGone(reason))

    def drain(self, reason: str) -> None:
        """Takes no more calls, and closes the link once those in flight are answered, or shortly after."""
        if not self.is_closed:
            self.is_closed, self._drain_reason = True, reason
            self._tasks.start_soon(self._finish_draining, reason)

    async def _finish_draining(self, reason: str) -> None:
        with anyio.move_on_after(CANCEL_TIMEOUT):
            if len(self._requests):
                await self._all_answered.wait()
        self.disconnect(reason)

    async def open(self) -> None:
        """Does the handshake (lifecycle, Initialization). Raises Unreachable or Rejected."""
        self._context.awaited = "initialize"
        try:
            self._identity = await self._initialization.identity()
            await self._send(Notification(INITIALIZED, {}))
        except (NotAccepted, PeerGone) as error:
            raise CutOff(f"initialize: {error}") from error
        except RequestTimeout as error:
            raise Unreachable(f"initialize: {error}") from error

    async def _send_unless_lost(self, message: Message) -> None:
        """Raises PeerGone where the link is lost: an answer would be heard no more."""
        if self._is_lost:
            raise PeerGone(self._close_reason)
        await self._send(message)

    def __call__(self, call: Call) -> Coroutine[Any, Any, Outcome]:
        if self.is_closed:
            raise NotAccepted(self._drain_reason or self._close_reason)
        row = call.row
        return self._notify(call) if row.notification else self._exchange(row, call)

    async def _notify(self, call: Call) -> Outcome:
        try:
            await self._send_in_time(Notification(call.method, call.params))
        except NotAccepted as error:
            self.drain(str(error))
            raise
        except Rejected as error:
            return unanswered(self._context, call, error)
        return Complete({})

    async def _exchange(self, row: Method, call: Call) -> Outcome:
        id = self._requests.mint()
        self._calls.begin(id, call)
        try:
            answer = await self._requests.exchange(
                row.name,
                with_progress_token(call.params, id) if row.may_ask else call.params,
                self._send,
                self._context.timeouts[row.name],
                notify=call.client.notify if row.may_ask else None,
                send_cancel=self._give_up,
                id=id,
            )
            return self._outcome(call, answer)
        except NotAccepted as error:
            self.drain(str(error))
            raise
        except (RequestTimeout, Rejected) as error:
            return unanswered(self._context, call, error)
        finally:
            self._calls.end(id)
            if self.is_closed and not len(self._requests):
                self._all_answered.set()

    async def answers_ping(self) -> bool:
        """Whether the server still answers this session (ping); one that takes long may."""
        try:
            await self.ping(self._context.timeouts["ping"])
        except RequestTimeout:
            return True
        except (NotAccepted, PeerGone, Rejected):
            return False
        return True

    async def ping(self, timeouts: Timeouts) -> None:
        """Returns once the server answers a ping, in whichever way. Raises RequestTimeout, and what sending raises."""
        await self._requests.exchange("ping", {}, self._send, timeouts)

    def may_be_silent(self) -> bool:
        """Whether the server waits for an answer of a client, or a call waits for the result of a task."""
        return self._requests.is_any_held() or self._calls.is_any_waiting()

    async def _give_up(self, cancelled: Message) -> None:
        """Tells the server that a call is given up, and, heard or not, takes back from its client what it asked."""
        assert isinstance(cancelled, Notification)
        if self._given_up is not None:
            self._given_up()
        try:
            await self._send_cancel(cancelled)
        finally:
            id = parse_id(cancelled.params["requestId"])
            if id is not None:
                await self._questions.take_back(id)

    async def _send_in_time(self, message: Message) -> None:
        """Sends a message that has no answer. Raises PeerGone if it is not taken within `idle` seconds."""
        timeout = self._context.spec.timeouts.idle
        with anyio.move_on_after(timeout) as scope:
            await self._send(message)
        if scope.cancelled_caught:
            raise PeerGone(f"the server did not take a message in {timeout:g} s")

    @property
    def version(self) -> str | None:
        """The negotiated version; not known before the handshake."""
        return None if self._identity is None else self._identity.version

    def fail(self, id: RequestId, error: NotAccepted | PeerGone | Rejected) -> None:
        """Ends the wait for one answer, without a `notifications/cancelled`."""
        self._requests.fail(id, error)

    def receive(self, data: bytes, cause: RequestId | None = None) -> Awaitable[None] | None:
        """Takes a message as bytes (a `link.Receive`). `cause` is the request on whose own response stream it came."""
        if self._is_lost or not data or data.isspace():
            return None
        found = messages(data, cause)
        if len(found) > 1:
            return self.take_batch(found, cause)
        self.take(found[0], cause)
        return None

    async def take_batch(self, found: Sequence[Message | InvalidMessage], cause: RequestId | None) -> None:
        """Takes the messages of a batch, a few at a time: each may be one that hundreds of clients are told of."""
        for count, message in enumerate(found, 1):
            if not self._is_lost:
                self.take(message, cause)
            if count % MESSAGES_PER_TURN == 0:
                await anyio.lowlevel.checkpoint()

    def take(self, message: Message | InvalidMessage, cause: RequestId | None = None) -> None:
        """As `receive`, for a message that was parsed already, or could not be."""
        match message:  # Most frequent first: each class that does not match takes time.
            case Response():
                self._on_answer(message)
            case Notification():
                self._on.get(message.method, self._on_change)(message, cause)
            case ErrorResponse():
                self._on_answer(message)
            case Request():
                self._take_request(message, cause)
            case InvalidMessage():
                self._take_malformed(message)
            case _:
                assert_never(message)

    def _take_request(self, request: Request, cause: RequestId | None) -> None:
        if self._identity is None and self._initialization.is_echo(request):
            # Not refused as an unknown method: the refusal would come back too, and pass for the answer.
            self._requests.fail(request.id, Echoed())
            return
        self._questions.take(request, self._attribute(request, cause), own_stream=cause is not None)

    def _take_malformed(self, message: InvalidMessage) -> None:
        """Ends the request that it answers, or tells the server what is wrong with its own (R60)."""
        self._context.count_junk()
        if message.id is None:
            return
        if message.may_be_answer:
            self._requests.fail(message.id, Rejected(f"the answer is malformed: {message.reason}"))
        elif message.like is Resemblance.REQUEST:
            self._questions.refuse(message.id, McpError(message.code, message.reason))

    def _on_answer(self, answer: Response | ErrorResponse) -> None:
        id = self._requests.settle(answer)
        call = self._calls.answered(id)
        # Here, not by whoever waits for the answer: progress of the task may come with it.
        if call is not None and (TASK in call.params or call.row.subject is _TASK):
            self._task_clients.answered(id, call, answer)

    def _attribute(self, message: Request | Notification, cause: RequestId | None) -> Attribution:
        task = related_task(message.params)
        if task is not None:
            # tasks, Input Required Status: it may come "on any SSE stream", even on that of another client's call.
            return self._calls.of_task(task)
        attribution = self._calls.on_shared_stream(self._requests.is_held) if cause is None else self._calls.of(cause)
        if isinstance(attribution, Ambiguous) and self._context.session is not None:
            return Unsolicited()  # On a link with an owner it is for the owner, whichever call caused it.
        return attribution

    def _on_progress(self, notification: Notification, _: RequestId | None) -> None:
        if not self._requests.progress(notification.params):
            self._task_clients.progress(notification.params)

    def _on_cancelled(self, notification: Notification, _: RequestId | None) -> None:
        self._questions.cancel(notification.params)

    def _on_log_message(self, notification: Notification, cause: RequestId | None) -> None:
        level = parse_text(notification.params.get("level", b"")) or "info"
        self._pass_on(notification, Notice(notification.method, notification.params, level), cause)

    def _on_elicitation_complete(self, notification: Notification, _: RequestId | None) -> None:
        """Reports it only "to the client that initiated the elicitation request" (elicitation)."""
        notice = Notice(notification.method, notification.params)
        listener = self._url_elicitations.complete(notification.params)
        if listener is not None:
            listener.signal(notice)
        elif self._context.session is not None:
            self._context.publish(notice)
        else:
            self._count_unattributed(notification.method)

    def _pass_on(self, notification: Notification, notice: Notice, cause: RequestId | None) -> None:
        """Notifies the client whose call caused the message; all clients only if no call can have caused it."""
        attribution = self._attribute(notification, cause)
        match attribution:
            case Attributed(call=call):
                call.client.notify(notice.method, notice.params)
            case Unsolicited():
                # It may be about an earlier call, and so is only for the one principal that has called.
                self._context.publish(replace(notice, principal=self._calls.principal))
            case Ambiguous() | SharedByPrincipals():
                client = self._task_clients.find(related_task(notification.params))
                if client is None:
                    self._count_unattributed(notice.method)
                else:
                    client.notify(notice.method, notice.params)
            case _:
                assert_never(attribution)

    def _count_unattributed(self, method: str) -> None:
        label = method if method in self._on else UNKNOWN
        self._context.metrics.unattributed.labels(self._context.spec.name, label).inc()

    def _on_resource_updated(self, notification: Notification, _: RequestId | None) -> None:
        uri = parse_text(notification.params.get("uri", b""))
        if uri is None:
            self._context.count_junk()
            return
        self._context.publish(ResourceUpdated(uri, notification.params))

    def _on_task_status(self, notification: Notification, _: RequestId | None) -> None:
        id = parse_text(notification.params.get(TASK_ID, b""))
        if id is None:
            self._context.count_junk()
            return
        self._task_clients.changed(id, notification.params)
        self._context.publish(TaskChanged(id, notification.method, notification.params))

    def _on_change(self, notification: Notification, cause: RequestId | None) -> None:
        kinds = CHANGED.get(notification.method)
        if kinds is None:
            self._pass_on(notification, Notice(notification.method, notification.params), cause)
            return
        for kind in kinds:
            self._context.publish(ListChanged(kind))

    def _outcome(self, call: Call, answer: Response | ErrorResponse) -> Outcome:
        if isinstance(answer, Response):
            return Complete(untyped(answer.result))
        supported = supported_versions(answer.error)
        if supported is not None and self.version not in supported:
            raise NotAccepted(f"it no longer speaks {self.version}: {answer.error.message}")
        self._url_elicitations.note_required(answer.error, call.listener)
        return Failed(self._context.redacted(answer.error), Party.UPSTREAM)
