"""The stateless era over HTTP (2026-07-28, streamable-http): one POST in, one JSON answer or event stream out.

The connection is the request's: its end cancels the call, and nothing follows. No session is made, known or echoed,
and no stream can be resumed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import Principal
from mcproxy.concurrency.cancel_scope import TaskCancelScope
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.event_stream import EventStream
from mcproxy.downstream.io.forwarded_credentials import brought
from mcproxy.downstream.io.inbound import Incoming
from mcproxy.downstream.io.request_headers import request_headers
from mcproxy.downstream.io.responses import Accepted, Refusal, check_accept, error, json
from mcproxy.downstream.io.send_buffer import SendBuffer
from mcproxy.downstream.io.shutdown import CUT_OFF, SHUTTING_DOWN
from mcproxy.downstream.io.stream_limits import StreamLimits
from mcproxy.downstream.stateless.conversation import Admitted, admit, respond
from mcproxy.downstream.stateless.subscriptions import Subscription
from mcproxy.http import server as http
from mcproxy.protocol.eras import LATEST, Era
from mcproxy.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY,
    Answer,
    ErrorObject,
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
"""By code, for whoever refuses; else it is 400 for a refusal of ours, and 200 for an answer."""


class StatelessHttp:
    """The handler of POST, for all endpoints."""

    def __init__(self, edge: TransportContext, streams: StreamLimits) -> None:
        self._edge = edge
        self._streams = streams
        self._subscriptions: set[Subscription] = set()
        self._replies: set[StatelessPost] = set()
        self._draining = False

    def post(
        self, request: http.Request, incoming: Incoming, principal: Principal, endpoint: str
    ) -> Awaitable[http.Answered]:
        """Raises Refusal."""
        if isinstance(incoming, Notification):
            # streamable-http: none is defined for this direction; what comes all the same is accepted.
            return _at_once(http.Response(202))
        if not isinstance(incoming, Request):
            raise Refusal(400, INVALID_REQUEST, "the body must be a single request or notification")
        accepted = request_headers(request.fields).accepted
        check_accept(accepted)
        try:
            own = brought(self._edge, principal, request) if self._edge.forwarded else None
            admitted = admit(self._edge, incoming, principal, endpoint, request.fields, own)
            self._check_open()
            if request.gone:
                # Its client left while somebody found out who it is: nothing would end its call any more (R25).
                return _at_once(http.Response(202))
            if admitted.stays_open:
                return self._listening(request, admitted, accepted)
        except McpError as refusal:
            return _at_once(_refused(refusal, incoming.id))
        reply = StatelessPost(self._edge, request, admitted.id, accepted, self._replies)
        return reply.carry(respond(self._edge, admitted, reply.send))

    def drain(self) -> None:
        """Admits nothing more, and ends the streams of changes at once (requirement R9)."""
        self._draining = True
        for subscription in list(self._subscriptions):
            subscription.close()

    def abandon(self) -> None:
        """Cuts off the requests that outlast the gateway's grace; each is answered an error (requirement R9)."""
        for reply in self._replies:
            reply.abandon()

    async def _listening(self, request: http.Request, admitted: Admitted, accepted: Accepted) -> http.Answered:
        try:
            return await self._listen(request, admitted, accepted)
        except McpError as refusal:
            return _refused(refusal, admitted.id)

    async def _listen(self, request: http.Request, admitted: Admitted, accepted: Accepted) -> http.Answered:
        if not accepted.events:
            raise Refusal(406, INVALID_REQUEST, f"{admitted.row.name} opens an event stream: accept text/event-stream")
        self._check_room()
        reply = StatelessPost(self._edge, request, admitted.id, accepted, self._replies)
        subscription = Subscription(self._edge, admitted, reply)
        self._streams.open(admitted.caller.principal)
        self._subscriptions.add(subscription)
        reply.outbox.refill = subscription.tell_changes
        reply.over = partial(self._end, subscription)
        try:
            return await reply.carry(subscription.begin())
        finally:
            if not subscription.lasts:
                self._end(subscription)

    def _end(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._streams.close(subscription.caller.principal)
            subscription.end()

    def _check_open(self) -> None:
        if self._draining:
            raise McpError(INTERNAL_ERROR, SHUTTING_DOWN, reason=Reason.UNAVAILABLE)

    def _check_room(self) -> None:
        """A stream counts as a session does. Raises McpError."""
        if len(self._subscriptions) >= self._edge.proxy.limits.max_sessions:
            sentence = "too many event streams are open (limits.max_sessions)"
            raise McpError(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)


async def _at_once(response: http.Response) -> http.Answered:
    return response


def _refused(refusal: McpError, id: RequestId) -> http.Response:
    status = 503 if refusal.reason is Reason.UNAVAILABLE else _STATUS.get(refusal.code, 400)
    return error(status, refusal, id)


class StatelessPost:
    """What one POST is answered with, which decides late between JSON and events (requirements R55, R62).

    JSON where the answer comes first; a stream where a notification does, or nothing for `stream_after` seconds.
    It is one of `under_way` for as long as its work is.
    """

    __slots__ = (
        "_accepted",
        "_answer",
        "_edge",
        "_events",
        "_id",
        "_outbox",
        "_request",
        "_under_way",
        "_work",
        "over",
    )

    def __init__(
        self,
        edge: TransportContext,
        request: http.Request,
        id: RequestId,
        accepted: Accepted,
        under_way: set[StatelessPost],
    ) -> None:
        self._edge = edge
        self._request = request
        self._id = id
        self._accepted = accepted
        self._under_way = under_way
        self._answer: Answer | None = None
        self._events: EventStream | None = None
        self._outbox: SendBuffer | None = None
        self._work: TaskCancelScope | None = None
        self.over: Callable[[], None] | None = None
        """Called when its stream, if any, is over: where no answer comes of the work, it goes on by itself."""

    @property
    def outbox(self) -> SendBuffer:
        """What goes on its stream. Most have none."""
        if self._outbox is None:
            self._outbox = SendBuffer(self._edge.proxy.limits)
        return self._outbox

    def send(self, message: Message) -> None:
        """Takes notifications, and then the answer; what comes after it is dropped."""
        if self._answer is not None:
            return
        match message:
            case Response() | ErrorResponse():
                self._answer = message
            case _ if self._accepted.events:
                self._begin_stream()
            case _:
                return
        if self._events is not None:
            self.outbox.put(encode_event(encode(message)), may_miss=isinstance(message, Notification))
            if self._answer is not None:
                self.outbox.close()

    def put(self, notification: bytes, *, may_miss: bool) -> None:
        """Takes one that is encoded already."""
        if self._answer is None and self._accepted.events:
            if self._events is None:
                self._begin_stream()
            self.outbox.put(encode_event(notification), may_miss=may_miss)

    def wake(self) -> None:
        if self._outbox is not None:
            self._outbox.when_woken()

    def abandon(self) -> None:
        """Answers now, that what became of the call is unknown, and ends its work."""
        self.send(ErrorResponse(self._id, ErrorObject(INTERNAL_ERROR, CUT_OFF)))
        self._stop()

    async def carry(self, work: Awaitable[None]) -> http.Answered:
        """Does `work`, which sends the answer, while its client waits; the client's leaving cancels it (R25)."""
        self._request.when_gone = self._stop
        self._under_way.add(self)
        try:
            if not self._accepted.json:
                self._begin_stream()
            elif self._accepted.events:
                self._edge.patience.begin(self)
            with TaskCancelScope() as self._work:
                await work
        finally:
            self._work = None
            # streamable-http, Cancellation: the hang-up is the cancel; nothing may follow it.
            self._edge.patience.end(self)
            self._under_way.remove(self)
        if self._events is not None:
            return http.Streamed() if self._answer is None else await self._events.ended()
        return http.Response(202) if self._answer is None else json(encode_whole(self._answer), _status(self._answer))

    def waited(self) -> None:
        if self._answer is None:
            self._begin_stream()

    def _stop(self) -> None:
        if self._work is not None:
            self._work.cancel()

    def _begin_stream(self) -> None:
        if self._events is None:
            self._streams.inc()
            self._events = EventStream(self._request, self._edge, TRANSPORT, self.outbox, over=self._ended)

    def _ended(self) -> None:
        self._streams.dec()
        if self.over is not None:
            self.over()

    @property
    def _streams(self) -> FastGauge:
        return self._edge.metrics.streams.labels(TRANSPORT, Era.STATELESS.value, LATEST)


def _status(answer: Answer) -> int:
    return _STATUS.get(answer.error.code, 200) if isinstance(answer, ErrorResponse) else 200
