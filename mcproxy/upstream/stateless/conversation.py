"""The client side of the stateless era (2026-07-28), over any transport: each request stands alone.

Puts calls into envelopes, reads results, and answers itself the methods that this era has no request for. Asks no
client: a server's request for input is an outcome of the call. Sends nothing twice; `reconnecting` decides on retries.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final

import anyio
from msgspec.structs import replace

from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.errors import Party, Reason
from mcproxy.call.identity import Caller
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.pending_requests import CANCEL_TIMEOUT, PeerGone, PendingRequests, RequestTimeout, Send, Timeouts
from mcproxy.protocol.capabilities import is_of_extension, unknown_extensions
from mcproxy.protocol.envelope import LONGEST_REMEMBERED, Envelope, put_on, without_hop_meta, wrap, written
from mcproxy.protocol.eras import LATEST, STATELESS_VERSIONS, Era
from mcproxy.protocol.jsonrpc import (
    UNSUPPORTED_PROTOCOL_VERSION,
    ErrorResponse,
    InvalidMessage,
    Message,
    Notification,
    Params,
    Request,
    RequestId,
    Response,
    json_of,
    parse_id,
    parse_message,
    parse_object,
)
from mcproxy.protocol.memo import remember_short
from mcproxy.protocol.methods import (
    CANCELLED,
    DISCOVER,
    LISTEN,
    LOG_MESSAGE,
    PROGRESS,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Method,
)
from mcproxy.protocol.tasks import DECLARED, extensions, offer, shared_tasks
from mcproxy.upstream.attribution import Attributed, CallsInFlight
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.link import (
    BOM,
    NotAccepted,
    Rejected,
    is_nearly_json,
    task_group,
    unanswered,
    unless_gone,
)
from mcproxy.upstream.stateless import probe as probing
from mcproxy.upstream.stateless import results
from mcproxy.upstream.stateless.listen_filter import announced
from mcproxy.upstream.stateless.subscriptions import ListenStream

_HANDSHAKE: Final = Era.HANDSHAKE
FOREVER: Final = Timeouts(math.inf, math.inf)
"""The timeout of the listen stream once it is acknowledged: it lasts as long as its link."""

FIRST_LISTEN_TIMEOUT: Final = 1.0
"""Seconds that a new link waits for its listen stream; if it opens later, all lists count as changed."""


@asynccontextmanager
async def listening(conversation: StatelessConversation) -> AsyncIterator[None]:
    """Runs the listen stream of a conversation; closes the conversation on leaving."""
    async with task_group() as tasks:
        tasks.start_soon(conversation.subscriptions.run)
        try:
            await conversation.subscriptions.begin(FIRST_LISTEN_TIMEOUT)
            # In a task, which first runs once the link is published: earlier reports would be about no link.
            tasks.start_soon(conversation.subscriptions.report)
            yield
        finally:
            conversation.disconnect("the link was closed")


class StatelessConversation:
    """Implements `link.Link`. `send` may return at once, or carry a request's exchange until it is settled.

    `sends_cancelled`: a request is cancelled by a message; otherwise by cancelling its `send` (cancellation).
    `given_up` is called when a call that is cancelled by a message ends without its answer.
    """

    def __init__(
        self,
        context: LinkContext,
        identity: ServerIdentity,
        send: Send,
        *,
        sends_cancelled: bool,
        given_up: Callable[[], object] | None = None,
    ) -> None:
        self.identity: Final = identity
        self._context = context
        self._send = send
        self._send_cancel: Send | None = unless_gone(send) if sends_cancelled else None
        self._give_up: Send | None = self._send_cancel if given_up is None else self._cancel_and_note
        self._given_up = given_up
        self._requests = PendingRequests()
        self._calls = CallsInFlight()
        self.subscriptions: Final = ListenStream(context, announced(identity.capabilities), self._listen)
        self.is_closed = False
        self.settled: Final = self._requests.settled
        self._extensions = extensions(identity.capabilities)
        self._has_unknown_extensions = bool(unknown_extensions(identity.capabilities))
        self._in_flight = 0
        self._answered = anyio.Event()
        # tasks extension, Protocol Errors: a client that names tasks in a filter must have declared the extension.
        has_tasks = offer(identity.version, identity.capabilities) is not None
        self._listen_envelope = Envelope(LATEST, DECLARED, probing.OURSELVES.info) if has_tasks else probing.OURSELVES
        self._draining = anyio.Event()
        self._close_reason = ""
        self._answers: dict[str, Callable[[Call], Awaitable[Outcome]]] = {
            SUBSCRIBE: self.subscriptions.subscribe,
            UNSUBSCRIBE: self.subscriptions.unsubscribe,
            LISTEN: self.subscriptions.listen,
        }
        self._on: dict[str, Callable[[Notification, RequestId | None], bool]] = {
            PROGRESS: self._on_progress,
            LOG_MESSAGE: self._on_log_message,
            CANCELLED: self._on_cancelled,
        }

    async def wait_closed(self) -> str:
        """As `Link.wait_closed`; calls in flight get a moment for their own answers."""
        await self._draining.wait()
        with anyio.move_on_after(CANCEL_TIMEOUT):
            while self._in_flight:
                self._answered = anyio.Event()
                await self._answered.wait()
        return self._close_reason

    def drain(self, reason: str) -> None:
        """Accepts no more calls: later ones are NotAccepted."""
        if not self.is_closed:
            self.is_closed, self._close_reason = True, reason
            self._draining.set()
            self.subscriptions.close(reason)

    def is_answered(self, id: RequestId) -> bool:
        """Whether request `id` is answered and the link still open, so that its connection may be reused."""
        return self.settled(id) and not self.is_closed

    def disconnect(self, reason: str) -> None:
        """Closes the link: calls in flight fail with PeerGone, later ones with NotAccepted."""
        self.drain(reason)
        self._requests.fail_all(PeerGone(reason))

    async def __call__(self, call: Call) -> Outcome:
        if self.is_closed:
            raise NotAccepted(self._close_reason)
        row = call.row
        if row.era is _HANDSHAKE or row.notification or row.name in self._answers:
            return await self._answers.get(row.name, _answer_empty)(call)
        id = self._requests.mint()
        may_be_told = call.caller.log_level is not None or self._has_unknown_extensions
        if may_be_told:
            self._calls.begin(id, call)
        elif self._send_cancel is not None:
            self._calls.note_principal(call)  # On a pipe, log messages do not name their request.
        self._in_flight += 1
        try:
            answer = await self._requests.exchange(
                row.name,
                _enveloped(call, id if row.may_ask else None),
                self._send,
                self._context.timeouts[row.name],
                notify=call.client.notify if row.may_ask else None,
                send_cancel=self._give_up,
                id=id,
            )
            return self._outcome(row, call, answer)
        except NotAccepted as error:
            self.drain(str(error))
            raise
        except results.Malformed as malformed:
            return self._context.failed(call, str(malformed), Reason.PROTOCOL_ERROR)
        except (RequestTimeout, Rejected) as error:
            return unanswered(self._context, call, error)
        finally:
            if may_be_told:
                self._calls.end(id)
            self._in_flight -= 1
            if self.is_closed:
                self._answered.set()

    async def _cancel_and_note(self, cancelled: Message) -> None:
        """Tells the server that a call is given up, and whoever `given_up` is."""
        assert self._given_up is not None
        assert self._send_cancel is not None
        self._given_up()
        await self._send_cancel(cancelled)

    async def ask(self, timeouts: Timeouts) -> None:
        """Returns once the server answers, in whichever way. Raises RequestTimeout, and what sending raises."""
        await self._requests.exchange(DISCOVER, probing.QUESTION.params, self._send, timeouts)

    def _outcome(self, row: Method, call: Call, answer: Response | ErrorResponse) -> Outcome:
        if isinstance(answer, Response):
            if not self._extensions:
                return results.outcome(answer.result, row)
            asks = self._has_unknown_extensions and bool(unknown_extensions(call.caller.capabilities))
            return results.outcome(answer.result, row, self._shared_extensions(call.caller), asks_more=asks)
        if answer.error.code == UNSUPPORTED_PROTOCOL_VERSION:
            # Not executed, and the server was replaced: the next link finds out which versions it speaks now.
            raise NotAccepted(f"it no longer speaks {self.identity.version}: {answer.error.message}")
        return Failed(self._context.redacted(answer.error), Party.UPSTREAM)

    def _shared_extensions(self, caller: Caller) -> Collection[str]:
        """Extensions whose result types the client knows; handshake revisions have no result types."""
        if caller.version not in STATELESS_VERSIONS:
            return ()
        return extensions(caller.capabilities).keys() & self._extensions.keys()

    async def _listen(self, params: Params, begun: Callable[[RequestId], None]) -> Response | ErrorResponse:
        async def send(message: Message) -> None:
            assert isinstance(message, Request)
            begun(message.id)
            await self._send(message)

        try:
            return await self._requests.exchange(
                LISTEN, wrap(params, self._listen_envelope), send, FOREVER, send_cancel=self._send_cancel
            )
        except NotAccepted as error:
            self.drain(str(error))
            raise

    def receive(self, data: bytes, cause: RequestId | None = None) -> None:
        """Takes a message as bytes. `cause` is the request on whose own response it came."""
        if not data or data.isspace():
            return
        try:
            self.take(parse_message(data), cause)
        except InvalidMessage as invalid:
            if data.startswith(BOM):
                self.receive(data.removeprefix(BOM), cause)
                return
            self._context.count_junk()
            # In the response to a request, broken JSON without a readable id counts as its answer.
            id = invalid.id if invalid.may_be_answer else None
            if invalid.id is None and is_nearly_json(invalid, data):
                id = cause
            if id is not None and cause in (None, id):
                self._requests.fail(id, Rejected(f"the answer is malformed: {invalid.reason}"))

    def take(self, message: Message, cause: RequestId | None = None) -> None:
        """As `receive`, for a parsed message."""
        # Most frequent first: each class that it is not takes time.
        if isinstance(message, Response):
            self._on_answer(message, cause)
        elif isinstance(message, Notification):
            if not self._on.get(message.method, self._on_other)(message, cause):
                self._context.count_junk()
        elif isinstance(message, ErrorResponse):
            self._on_answer(message, cause)
        else:
            # basic/patterns: "Servers MUST NOT initiate JSON-RPC requests, and clients do not send responses".
            self._context.count_junk()

    def _on_answer(self, answer: Response | ErrorResponse, cause: RequestId | None) -> None:
        if cause is not None and answer.id != cause:
            if answer.id is not None:
                self._context.count_junk()
                return
            answer = replace(answer, id=cause)
        self._requests.settle(answer)
        self._calls.answered(answer.id)

    def _on_progress(self, notification: Notification, _: RequestId | None) -> bool:
        self._requests.progress(notification.params)
        return True

    def _on_log_message(self, notification: Notification, cause: RequestId | None) -> bool:
        """A log message belongs to one request (logging); on a shared channel nothing tells to which."""
        attribution = self._calls.on_shared_stream() if cause is None else self._calls.of(cause)
        if isinstance(attribution, Attributed):
            attribution.call.client.notify(notification.method, notification.params)
        else:
            self._context.metrics.unattributed.labels(self._context.spec.name, LOG_MESSAGE).inc()
        return True

    def _on_other(self, notification: Notification, cause: RequestId | None) -> bool:
        """A change, or an extension's notification about one request."""
        if self.subscriptions.take(notification, cause):
            return True
        if not self._has_unknown_extensions or not is_of_extension(notification.method):
            return False
        attribution = self._calls.on_shared_stream() if cause is None else self._calls.of(cause)
        if not isinstance(attribution, Attributed):
            return False
        attribution.call.client.notify(notification.method, without_hop_meta(notification.params))
        return True

    def _on_cancelled(self, notification: Notification, _: RequestId | None) -> bool:
        """A server may end a listen stream by it, and no other request (cancellation)."""
        id = parse_id(notification.params.get("requestId", b""))
        if id is None or not self.subscriptions.holds(id):
            return False
        self._requests.fail(id, PeerGone("the server ended it"))
        return True


def _enveloped(call: Call, token: RequestId | None) -> Params:
    """The params with an envelope that declares what the caller declared (basic, Per-request protocol fields).

    Capabilities for tasks of another revision are left out: they mean nothing in this one.
    """
    caller = call.caller
    declaration = _declaration(json_of(caller.capabilities), caller.version, caller.log_level)
    return put_on(call.params, declaration, token)


# Most callers declare the same capabilities as others, and as before.
@remember_short(LONGEST_REMEMBERED)
def _declaration(capabilities: bytes, version: str, log_level: str | None) -> bytes:
    declared = shared_tasks(parse_object(capabilities), version, LATEST)
    return written(Envelope(LATEST, declared, probing.OURSELVES.info, log_level))


async def _answer_empty(call: Call) -> Outcome:
    """Answers a handshake method that has no request in this era, or a notification that has no way upstream."""
    return Complete({})
