"""One conversation with a server, of any era and over any transport: calls go out, answers and notifications come in.

A `Dialect` says how its era opens, words a request, cancels, subscribes and reads an answer. A `Transport` moves
messages and knows no era. Sends nothing twice; `reconnecting` decides on retries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, assert_never

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from msgspec.structs import replace

from mcproxy.call.calls import Call, Outcome
from mcproxy.call.clients import Change, ListChanged, ResourceUpdated, TaskChanged
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.pending_requests import CANCEL_TIMEOUT, PeerGone, PendingRequests, RequestTimeout, Timeouts
from mcproxy.protocol.json.malformed import reads_as_call
from mcproxy.protocol.jsonrpc import (
    PARSE_ERROR,
    ErrorResponse,
    InvalidMessage,
    Message,
    Notification,
    Params,
    Request,
    RequestId,
    Resemblance,
    Response,
    parse_id,
    parse_message,
    parse_text,
)
from mcproxy.protocol.methods import CHANGED, RESOURCE_UPDATED, Subject
from mcproxy.protocol.tasks import TASK, TASK_ID
from mcproxy.upstream.answers import AnonymousErrors, complete_result, read_batch, read_message
from mcproxy.upstream.attribution import CallsInFlight
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.link import BOM, NotAccepted, Rejected, task_group, unanswered, unless_gone
from mcproxy.upstream.oddities import Oddities

_TASK: Final = Subject.TASK

MESSAGES_PER_TURN: Final = 10
"""Messages of a batch that are taken before other tasks get a turn."""

Answering = Callable[[Call], Coroutine[Any, Any, Outcome]]
"""Answers a call without a request of its method."""

OnNotification = Callable[[Notification, RequestId | None], bool]
"""Takes a notification, and the request on whose response stream it came. Returns False if it makes no sense here."""


class Transport(Protocol):
    """One connection, or one URL to post to. Knows no era."""

    carries_exchanges: bool
    """Whether `send` carries a request's whole exchange, which then ends if `send` is cancelled."""

    def attach(self, conversation: Conversation) -> None:
        """Gives it the conversation that takes what arrives. Called once, before anything else."""

    def send(self, message: Message) -> Awaitable[None]:
        """Raises NotAccepted, PeerGone or Rejected."""

    async def receive(self) -> str | None:
        """Passes on what arrives outside of any `send`, until the connection ends; returns how it ended.

        Returns None if nothing more arrives so, and the connection lasts.
        """

    def check(self, error: ErrorResponse) -> None:
        """Judges an error without the request's id in the response to that request.

        Raises NotAccepted if it says that the server executed nothing.
        """

    def note_unanswered(self) -> None:
        """Notes that a call was given up without its answer: the server may hang."""

    async def close(self, *, politely: bool) -> None:
        """Ends the connection; `politely` if the server still takes part in it. Raises nothing."""


class Dialect(Protocol):
    """One era, as one conversation speaks it."""

    reads_batches: bool
    """Whether several messages may come as one."""
    cancels_by_closing: bool
    """Whether a request is cancelled by closing its response, if it has one of its own; else always by a message."""
    answers_anywhere: bool
    """Whether the answer to a request may come in the response to another one."""
    question: tuple[str, Params]
    """A request that every server answers."""
    answered_here: Mapping[str, Answering]
    """Methods that are answered without sending a request of the same method."""
    notifications: Mapping[str, OnNotification]
    """Notifications that have a meaning of their own in this era."""

    def attach(self, conversation: Conversation) -> None:
        """Gives it the conversation that it speaks in. Called once, before anything else."""

    async def identify(self) -> ServerIdentity:
        """Finds out whom the conversation is with. Raises Unreachable or Rejected."""

    async def start(self) -> None:
        """Says what follows that, before any call. Raises Unreachable or Rejected."""

    def begin(self, id: RequestId, call: Call) -> None:
        """Notes a call that is about to be sent as request `id`."""

    def params(self, call: Call, id: RequestId) -> Params:
        """The params of the request for a call."""

    def outcome(self, call: Call, answer: Response | ErrorResponse) -> Outcome:
        """What an answer means for the call. Raises NotAccepted."""

    def notify(self, call: Call) -> Coroutine[Any, Any, Outcome]:
        """Passes on a notification of the client's. Raises NotAccepted or PeerGone."""

    def note_task(self, id: RequestId | None, call: Call, answer: Response | ErrorResponse) -> None:
        """Notes an answer to a call that wanted to be a task, or is about one."""

    async def take_back(self, id: RequestId) -> None:
        """Takes back what the server asked for a call that was given up."""

    def other_notification(self, notification: Notification, cause: RequestId | None) -> bool:
        """As `OnNotification`, for a method that is not among `notifications`."""

    def asked(self, request: Request, cause: RequestId | None) -> None:
        """Takes a request of the server."""

    def asked_badly(self, request: InvalidMessage) -> None:
        """Takes a request of the server that cannot be read."""

    def may_be_silent(self) -> bool:
        """Whether the server may say nothing for long though calls are in flight."""

    def closing(self, reason: str) -> None:
        """Ends all waits and requests of its own: the conversation takes no more calls."""


@asynccontextmanager
async def conversing(context: LinkContext, dialect: Dialect, transport: Transport) -> AsyncIterator[Conversation]:
    """An open conversation. Raises Unreachable or Rejected."""
    async with task_group() as tasks:
        conversation = Conversation(context, tasks, dialect, transport)
        tasks.start_soon(conversation.receive_all)
        try:
            await conversation.open()
            yield conversation
        finally:
            await conversation.close()


class Conversation:
    """Implements `link.Link`."""

    def __init__(self, context: LinkContext, tasks: TaskGroup, dialect: Dialect, transport: Transport) -> None:
        self.context: Final = context
        self.tasks: Final = tasks
        self.requests: Final = PendingRequests()
        self._anonymous = AnonymousErrors()
        self.calls: Final = CallsInFlight()
        self.settled: Final = self.requests.settled
        self.send: Final = transport.send
        self.is_closed = False
        """Whether it takes no more calls."""
        self._dialect = dialect
        self._transport = transport
        self._identity: ServerIdentity | None = None
        self.opened = anyio.Event()
        self._all_answered = anyio.Event()
        """Set once it takes no more calls and waits for no answer, or is lost."""
        self._closing = anyio.Event()
        self._is_lost = False
        self._close_reason = ""
        self._send_cancel = unless_gone(transport.send)
        closes = dialect.cancels_by_closing and transport.carries_exchanges
        self.send_cancel: Final = None if closes else self._send_cancel
        """Sends a `notifications/cancelled`; None if closing the response says the same."""
        self._give_up = None if closes else self._cancel
        dialect.attach(self)
        transport.attach(self)
        self._answers_anywhere = dialect.answers_anywhere
        self.reads_batches: Final = dialect.reads_batches
        self._answered_here = dialect.answered_here
        self._on = dialect.notifications
        self._other = dialect.other_notification
        self._begin = dialect.begin
        self._params = dialect.params
        self._outcome = dialect.outcome

    @property
    def identity(self) -> ServerIdentity:
        assert self._identity is not None, "the conversation is not open"
        return self._identity

    @property
    def version(self) -> str | None:
        """The version that both speak; None before the conversation is open."""
        return None if self._identity is None else self._identity.version

    # From its beginning to its end.

    async def open(self) -> None:
        """Opens the conversation. Raises Unreachable or Rejected."""
        self._identity = await self._dialect.identify()
        await self._dialect.start()
        self.opened.set()

    async def receive_all(self) -> None:
        """Takes what arrives outside of requests, until the connection ends."""
        reason = await self._transport.receive()
        if reason is not None:
            self.disconnect(reason)

    async def close(self) -> None:
        """Ends the conversation: it is wanted no more."""
        politely = not self.is_closed
        self.disconnect("the link was closed")
        await self._transport.close(politely=politely)

    async def wait_closed(self) -> str:
        """As `Link.wait_closed`; if the connection lasts, calls in flight get a moment for their own answers."""
        await self._closing.wait()
        if len(self.requests):
            with anyio.move_on_after(CANCEL_TIMEOUT):
                await self._all_answered.wait()
        return self._close_reason

    def drain(self, reason: str) -> None:
        """Takes no more calls: later ones are NotAccepted. Those in flight may still be answered."""
        if not self.is_closed:
            self.is_closed, self._close_reason = True, reason
            self._closing.set()
            self._dialect.closing(reason)

    def disconnect(self, reason: str) -> None:
        """Closes the link: calls in flight fail with PeerGone, later ones with NotAccepted."""
        self.drain(reason)
        if not self._is_lost:
            self._is_lost = True
            self._all_answered.set()
            self.requests.fail_all(PeerGone(self._close_reason))

    def is_answered(self, id: RequestId) -> bool:
        """Whether request `id` is answered and the link still open, so that its connection may be reused."""
        return self.settled(id) and not self.is_closed

    # Calls.

    async def __call__(self, call: Call) -> Outcome:
        if self.is_closed:
            raise NotAccepted(self._close_reason)
        row = call.row
        if row.notification or row.name in self._answered_here:
            return await self._answered_here.get(row.name, self._dialect.notify)(call)
        id = self.requests.mint()
        self._begin(id, call)
        try:
            answer = await self.requests.exchange(
                row.name,
                self._params(call, id),
                self.send,
                self.context.timeouts[row.name],
                notify=call.client.notify if row.may_ask else None,
                send_cancel=self._give_up,
                id=id,
            )
            if isinstance(answer, Response):
                result = complete_result(row, call.params, answer.result, self.context.oddities)
                if result is not answer.result:
                    answer = Response(answer.id, result)
            return self._outcome(call, answer)
        except NotAccepted as error:
            self.drain(str(error))
            raise
        except (RequestTimeout, Rejected) as error:
            return unanswered(self.context, call, error)
        finally:
            self.calls.end(id)
            if self.is_closed and not len(self.requests):
                self._all_answered.set()

    async def _cancel(self, cancelled: Message) -> None:
        """Tells the server that a call is given up, and, heard or not, takes back from its client what it asked."""
        assert isinstance(cancelled, Notification)
        self._transport.note_unanswered()
        try:
            await self._send_cancel(cancelled)
        finally:
            id = parse_id(cancelled.params["requestId"])
            if id is not None:
                await self._dialect.take_back(id)

    async def ask(self, timeouts: Timeouts) -> None:
        """Returns once the server answers a question, in whichever way.

        Raises RequestTimeout, and what sending raises.
        """
        method, params = self._dialect.question
        await self.requests.exchange(method, params, self.send, timeouts)

    async def still_answers(self) -> bool:
        """Whether the server still answers a question; one that takes long may."""
        try:
            await self.ask(self.context.timeouts[self._dialect.question[0]])
        except RequestTimeout:
            return True
        except (NotAccepted, PeerGone, Rejected):
            return False
        return True

    def may_be_silent(self) -> bool:
        """Whether the server may say nothing for long though calls are in flight."""
        return self._dialect.may_be_silent()

    async def send_in_time(self, message: Message) -> None:
        """Sends a message that has no answer. Raises PeerGone if it is not taken within `idle` seconds."""
        timeout = self.context.spec.timeouts.idle
        with anyio.move_on_after(timeout) as scope:
            await self.send(message)
        if scope.cancelled_caught:
            raise PeerGone(f"the server did not take a message in {timeout:g} s")

    async def send_unless_lost(self, message: Message) -> None:
        """Raises PeerGone where the link is lost: an answer would be heard no more."""
        if self._is_lost:
            raise PeerGone(self._close_reason)
        await self.send(message)

    def fail(self, id: RequestId, error: NotAccepted | PeerGone | Rejected) -> None:
        """Ends the wait for one answer, without a `notifications/cancelled`."""
        self.requests.fail(id, error)

    # What arrives.

    def receive(self, data: bytes, cause: RequestId | None = None) -> Awaitable[None] | None:
        """Takes a message as bytes (a `link.Receive`). `cause` is the request on whose own response stream it came.

        Raises NotAccepted as `Transport.check` does, if there is a cause.
        """
        if data[:1] == b"{" and not self._is_lost:  # Nearly always: it need not be a batch.
            try:
                message: Message | InvalidMessage = parse_message(data)
            except InvalidMessage:
                message = _read_odd(data, cause, self.context.oddities)
            self.take(message, cause)
            return None
        if self._is_lost or not data or data.isspace():
            return None
        found = messages(data, cause, batches=self.reads_batches, oddities=self.context.oddities)
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
                self._on_answer(message, cause)
            case Notification():
                if not self._on.get(message.method, self._other)(message, cause):
                    self.context.count_junk()
            case ErrorResponse():
                self._on_answer(message, cause)
            case Request():
                self._dialect.asked(message, cause)
            case InvalidMessage():
                self._on_malformed(message, cause)
            case _:
                assert_never(message)

    def _on_answer(self, answer: Response | ErrorResponse, cause: RequestId | None) -> None:
        if cause is not None and answer.id != cause:
            if isinstance(answer, ErrorResponse):
                self._transport.check(answer)
            if answer.id is None:
                answer = replace(answer, id=cause)
            elif not self._answers_anywhere:
                self.context.count_junk()
                return
        elif answer.id is None and isinstance(answer, ErrorResponse):
            answer = self._attributed(answer)
        id = self.requests.settle(answer)
        if self._anonymous.waiting:
            self._settle_anonymous()
        call = self.calls.answered(id)
        # Here, not by whoever waits for the answer: progress of the task may come with it.
        if call is not None and (TASK in call.params or call.row.subject is _TASK):
            self._dialect.note_task(id, call, answer)

    def _attributed(self, error: ErrorResponse) -> ErrorResponse:
        """An error without an id, with that of the request that it belongs to, if that is certain."""
        self.context.oddities.note("error_without_id", "answers with errors that name no request; accepted")
        id = self._anonymous.take(error.error, self.requests.in_flight())
        return error if id is None else replace(error, id=id)

    def _settle_anonymous(self) -> None:
        for id, error in self._anonymous.answered(self.requests.in_flight()):
            self._on_answer(ErrorResponse(id, error), None)

    def _on_malformed(self, message: InvalidMessage, cause: RequestId | None) -> None:
        """Ends the request that a malformed message answers, or tells the server what is wrong with its own (R60)."""
        self.context.count_junk()
        if message.id is None:
            return
        if message.may_be_answer:
            if self._answers_anywhere or cause in (None, message.id):
                self.requests.fail(message.id, Rejected(f"the answer is malformed: {message.reason}"))
        elif message.like is Resemblance.REQUEST:
            self._dialect.asked_badly(message)


def messages(
    data: bytes, cause: RequestId | None = None, *, batches: bool, oddities: Oddities | None = None
) -> Sequence[Message | InvalidMessage]:
    """The messages in a body: one, or the members of a batch (2025-03-26).

    Broken JSON without a readable id counts as the answer to request `cause`, in whose response it came.
    """
    data, oddities = data.removeprefix(BOM), oddities or Oddities()
    if data[:1] == b"{":
        return (_read_odd(data, cause, oddities),)
    try:
        batch = read_batch(data, oddities, several=batches)
    except InvalidMessage as invalid:
        return (_placed(invalid, data, cause),)
    return (_read_odd(data, cause, oddities),) if batch is None else batch


def _read_odd(data: bytes, cause: RequestId | None, oddities: Oddities) -> Message | InvalidMessage:
    try:
        return read_message(data, oddities)
    except InvalidMessage as invalid:
        return _placed(invalid, data, cause)


def _placed(invalid: InvalidMessage, data: bytes, cause: RequestId | None) -> InvalidMessage:
    """`invalid`, as the answer to request `cause` if it may be that: broken JSON that does not begin like a call."""
    if cause is None or invalid.id is not None or invalid.code != PARSE_ERROR or reads_as_call(data):
        return invalid
    return InvalidMessage(invalid.code, invalid.reason, cause, Resemblance.ANSWER)


def has_answer(found: Sequence[Message | InvalidMessage], id: RequestId) -> bool:
    """Whether one of the messages is the answer to request `id`, valid or not."""
    return any(_answered(message) == id for message in found)


def _answered(message: Message | InvalidMessage) -> RequestId | None:
    """The id of the request that a message answers; None if it answers none, or does not say which."""
    match message:
        case Response(id=id) | ErrorResponse(id=id):
            return id
        case InvalidMessage() if message.may_be_answer:
            return message.id
        case _:
            return None


def changes(notification: Notification, params: Params, task_status: str) -> Sequence[Change]:
    """The changes that a notification announces; none if it announces none, or does not say of what.

    `params` are those to pass on; `task_status` is the method by which the era tells of a task.
    """
    if notification.method == RESOURCE_UPDATED:
        uri = parse_text(params.get("uri", b""))
        return () if uri is None else (ResourceUpdated(uri, params),)
    if notification.method == task_status:
        id = parse_text(params.get(TASK_ID, b""))
        return () if id is None else (TaskChanged(id, task_status, params),)
    return [ListChanged(kind) for kind in CHANGED.get(notification.method, ())]
