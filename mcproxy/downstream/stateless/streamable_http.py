"""The stateless era over HTTP (2026-07-28, streamable-http): one POST in, one JSON answer or event stream out.

The connection belongs to the request: its end cancels the call. There are no sessions, and no stream can be resumed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from mcproxy.call.errors import McpError, Reason
from mcproxy.concurrency.cancel_scope import TaskCancelScope
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.event_stream import EventStream, LateReply
from mcproxy.downstream.io.inbound import Incoming
from mcproxy.downstream.io.open_streams import OpenStream, OpenStreams
from mcproxy.downstream.io.request_head import RequestHead
from mcproxy.downstream.io.responses import Refusal, check_accept, cut_off, error, json, shutting_down
from mcproxy.downstream.io.send_buffer import SendBuffer
from mcproxy.downstream.stateless.conversation import Admitted, admit_over_http, respond
from mcproxy.downstream.stateless.subscriptions import Subscription
from mcproxy.http import server as http
from mcproxy.protocol.eras import LATEST, Era
from mcproxy.protocol.inputs import REQUEST_STATE
from mcproxy.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY,
    Answer,
    ErrorResponse,
    Message,
    Notification,
    Request,
    RequestId,
    Response,
    encode,
    encode_whole,
)
from mcproxy.protocol.sse import encode_event
from mcproxy.telemetry.fast_metrics import FastGauge

TRANSPORT: Final = "http"

_STATUS: Final[Mapping[int, int]] = {METHOD_NOT_FOUND: 404, MISSING_CLIENT_CAPABILITY: 400}
"""HTTP status by error code; of others it is 400 for our refusals, and 200 for errors that answer a call."""


class StatelessHttp:
    """The handler of POST, for all endpoints."""

    def __init__(self, context: TransportContext, streams: OpenStreams) -> None:
        self._context = context
        self._streams = streams
        self._subscriptions: set[Subscription] = set()
        self._posts: set[StatelessPost] = set()
        self._draining = False

    def post(self, request: http.Request, head: RequestHead, incoming: Incoming) -> Awaitable[http.Answered]:
        """Raises Refusal."""
        if not isinstance(incoming, Request):
            if isinstance(incoming, Notification):
                # streamable-http: no notification is defined for this direction; one that comes is accepted.
                return _at_once(http.Response(202))
            raise Refusal(400, INVALID_REQUEST, "the body must be a single request or notification")
        accepted = head.headers.accepted
        check_accept(accepted)
        try:
            admitted = admit_over_http(self._context, incoming, request.fields, head)
            self._check_open(admitted)
            if request.is_disconnected:
                # Its client left while it was identified: nothing would end its call any more (R25).
                return _at_once(http.Response(202))
            if admitted.stays_open:
                return self._listening(request, head, admitted)
        except McpError as refusal:
            return _at_once(_refused(refusal, incoming.id))
        post = StatelessPost(admitted.id, self._posts, context=self._context, request=request, accepted=accepted)
        return post.run(respond(self._context, admitted, post.send))

    def drain(self) -> None:
        """Takes no more requests, and ends subscriptions at once (requirement R9)."""
        self._draining = True
        for subscription in list(self._subscriptions):
            subscription.close()

    def cut_off(self) -> None:
        """Cancels the requests that outlast the gateway's grace; each is answered with an error (requirement R9)."""
        for post in self._posts:
            post.cut_off()

    async def _listening(self, request: http.Request, head: RequestHead, admitted: Admitted) -> http.Answered:
        try:
            return await self._listen(request, head, admitted)
        except McpError as refusal:
            return _refused(refusal, admitted.id)

    async def _listen(self, request: http.Request, head: RequestHead, admitted: Admitted) -> http.Answered:
        accepted = head.headers.accepted
        if not accepted.events:
            raise Refusal(406, INVALID_REQUEST, f"{admitted.row.name} opens an event stream: accept text/event-stream")
        self._check_room()
        post = StatelessPost(admitted.id, self._posts, context=self._context, request=request, accepted=accepted)
        subscription = Subscription(self._context, admitted, post)
        opened = self._streams.open(
            head.identified, head.identify_again(request), partial(subscription.close, _no_longer_good())
        )
        self._subscriptions.add(subscription)
        post.send_buffer.refill = subscription.send_changes
        post.on_end = partial(self._end, subscription, opened)
        try:
            return await post.run(subscription.begin())
        finally:
            if not subscription.acknowledged:
                self._end(subscription, opened)

    def _end(self, subscription: Subscription, opened: OpenStream) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            opened.close()
            subscription.end()

    def _check_open(self, admitted: Admitted) -> None:
        # A call that is parked here can be resumed nowhere else.
        if self._draining and REQUEST_STATE not in admitted.params:
            raise shutting_down()

    def _check_room(self) -> None:
        """Subscriptions are bounded like sessions. Raises McpError."""
        if len(self._subscriptions) >= self._context.proxy.limits.max_sessions:
            sentence = "too many event streams are open (limits.max_sessions)"
            raise McpError(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)


def _no_longer_good() -> McpError:
    return McpError(INVALID_REQUEST, "the credentials of this stream are no longer valid, or give other rights now")


async def _at_once(response: http.Response) -> http.Answered:
    return response


def _refused(refusal: McpError, id: RequestId) -> http.Response:
    status = 503 if refusal.reason is Reason.UNAVAILABLE else _STATUS.get(refusal.code, 400)
    return error(status, refusal, id)


class StatelessPost(LateReply, eq=False):
    """The response to one POST. It is in `running` for as long as its work runs."""

    id: RequestId
    running: set[StatelessPost]
    """Those that run, this one among them meanwhile."""
    on_end: Callable[[], None] | None = None
    """Called when its stream, if any, has ended; a subscription's stream outlasts its work."""
    _answer: Answer | None = None
    _send_buffer: SendBuffer | None = None
    _work: TaskCancelScope | None = None

    @property
    def send_buffer(self) -> SendBuffer:
        """Of its stream. Made when first used: most posts have none."""
        if self._send_buffer is None:
            self._send_buffer = self.context.send_buffer()
        return self._send_buffer

    def send(self, message: Message) -> None:
        """Takes notifications, then the answer; messages after it are dropped."""
        if type(message) is Notification:
            self.put(encode(message), droppable=True)
        elif isinstance(message, (Response, ErrorResponse)) and self._answer is None:
            self._answer = message
            self.settle()
            if self.events is not None:
                self.send_buffer.put(encode_event(encode(message)))
                self.send_buffer.close()

    def put(self, notification: bytes, *, droppable: bool) -> None:
        """Takes an encoded notification."""
        if self._answer is None and self.accepted.events:
            self.begin_stream()
            self.send_buffer.put(encode_event(notification), droppable=droppable)

    def notify_writer(self) -> None:
        if self._send_buffer is not None:
            self._send_buffer.on_ready()

    def cut_off(self) -> None:
        """Answers now with an error, and cancels the work."""
        self.send(cut_off(self.id))
        self._stop()

    async def run(self, work: Awaitable[None]) -> http.Answered:
        """Awaits `work`, which sends the answer; where the client hangs up, `work` is cancelled (R25)."""
        self.request.on_disconnect = self._stop
        self.running.add(self)
        try:
            self.begin()
            with TaskCancelScope(self.context.loop) as self._work:
                await work
        finally:
            self._work = None
            # streamable-http, Cancellation: the hang-up is the cancel; nothing may follow it.
            self.settle()
            self.running.remove(self)
        if self.events is not None:
            return http.Streamed() if self._answer is None else await self.events.wait_ended()
        return http.Response(202) if self._answer is None else json(encode_whole(self._answer), _status(self._answer))

    def _stop(self) -> None:
        if self._work is not None:
            self._work.cancel()

    def open_stream(self) -> EventStream:
        self._streams.inc()
        return EventStream(self.request, self.context, TRANSPORT, self.send_buffer, on_end=self._ended)

    def _ended(self) -> None:
        self._streams.dec()
        if self.on_end is not None:
            self.on_end()

    @property
    def _streams(self) -> FastGauge:
        return self.context.metrics.streams.labels(TRANSPORT, Era.STATELESS.value, LATEST)


def _status(answer: Answer) -> int:
    return 200 if isinstance(answer, Response) else _STATUS.get(answer.error.code, 200)
