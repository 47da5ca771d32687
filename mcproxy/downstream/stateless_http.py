"""The stateless era over HTTP (2026-07-28, streamable-http): one POST in, one JSON answer or event stream out.

The connection is the request's: its end cancels the call, and nothing follows. No session is made, known or echoed,
and no stream can be resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from aiohttp import web

from mcproxy.call import McpError, Principal, Reason
from mcproxy.downstream.edge import Edge
from mcproxy.downstream.forwarding import brought
from mcproxy.downstream.listening import Subscription
from mcproxy.downstream.open_streams import OpenStreams
from mcproxy.downstream.opening import Incoming
from mcproxy.downstream.outbox import Outbox
from mcproxy.downstream.responses import Accepted, Refusal, check_accept, error, json, send_events
from mcproxy.downstream.sessions import CUT_OFF, SHUTTING_DOWN
from mcproxy.downstream.stateless import Admitted, Answer, admit, respond
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY,
    ErrorObject,
    ErrorResponse,
    Message,
    Notification,
    Request,
    RequestId,
    Response,
    encode,
)
from mcproxy.protocol.sse import encode_event

TRANSPORT: Final = "http"

Work = Callable[[], Coroutine[object, object, None]]

_STATUS: Final[Mapping[int, int]] = {METHOD_NOT_FOUND: 404, MISSING_CLIENT_CAPABILITY: 400}
"""By code, for whoever refuses; else it is 400 for a refusal of ours, and 200 for an answer."""


class StatelessHttp:
    """The handler of POST, for all endpoints."""

    def __init__(self, edge: Edge, streams: OpenStreams) -> None:
        self._edge = edge
        self._streams = streams
        self._subscriptions: set[Subscription] = set()
        self._replies: set[Reply] = set()
        self._draining = False

    async def post(
        self, request: web.Request, incoming: Incoming, principal: Principal, endpoint: str
    ) -> web.StreamResponse:
        match incoming:
            case Request():
                return await self._take(request, incoming, principal, endpoint)
            case Notification():
                # streamable-http: none is defined for this direction; what comes all the same is accepted.
                return web.Response(status=202)
            case _:
                raise Refusal(400, INVALID_REQUEST, "the body must be a single request or notification")

    def drain(self) -> None:
        """Admits nothing more, and ends the streams of changes at once (requirement R9)."""
        self._draining = True
        for subscription in self._subscriptions:
            subscription.close()

    def abandon(self) -> None:
        """Cuts off the requests that outlast the gateway's grace; each is answered an error (requirement R9)."""
        for reply in self._replies:
            reply.abandon()

    async def _take(
        self, request: web.Request, message: Request, principal: Principal, endpoint: str
    ) -> web.StreamResponse:
        accepted = check_accept(request)
        try:
            own = brought(self._edge, principal, request)
            admitted = admit(self._edge, message, principal, endpoint, request.headers.items(), own)
            self._check_open()
            if admitted.stays_open:
                return await self._listen(request, admitted, accepted)
        except McpError as refusal:
            status = 503 if refusal.reason is Reason.UNAVAILABLE else _STATUS.get(refusal.code, 400)
            return error(status, refusal, message.id)
        with self._reply(admitted, accepted) as reply:
            return await reply.carry(request, lambda: respond(self._edge, admitted, reply.send))

    async def _listen(self, request: web.Request, admitted: Admitted, accepted: Accepted) -> web.StreamResponse:
        if not accepted.events:
            raise Refusal(406, INVALID_REQUEST, f"{admitted.row.name} opens an event stream: accept text/event-stream")
        self._check_room()
        with self._streams.one(admitted.caller.principal), self._reply(admitted, accepted) as reply:
            subscription = Subscription(self._edge, admitted, reply.send, reply.wake)
            self._subscriptions.add(subscription)
            try:
                return await reply.carry(request, subscription.run, subscription.tell_changes)
            finally:
                self._subscriptions.remove(subscription)

    @contextmanager
    def _reply(self, admitted: Admitted, accepted: Accepted) -> Iterator[Reply]:
        reply = Reply(self._edge, admitted.id, accepted)
        self._replies.add(reply)
        try:
            yield reply
        finally:
            self._replies.remove(reply)

    def _check_open(self) -> None:
        if self._draining:
            raise McpError(INTERNAL_ERROR, SHUTTING_DOWN, reason=Reason.UNAVAILABLE)

    def _check_room(self) -> None:
        """A stream counts as a session does. Raises McpError."""
        if len(self._subscriptions) >= self._edge.proxy.limits.max_sessions:
            sentence = "too many event streams are open (limits.max_sessions)"
            raise McpError(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)


class Reply:
    """What one POST is answered with, which decides late between JSON and events (requirements R55, R62).

    JSON where the answer comes first; a stream where a notification does, or nothing for `stream_after` seconds.
    """

    def __init__(self, edge: Edge, id: RequestId, accepted: Accepted) -> None:
        self._edge = edge
        self._id = id
        self._accepted = accepted
        self._outbox = Outbox(edge.proxy.limits)
        self._answer: Answer | None = None
        self._streams = not accepted.json
        self._decided = asyncio.Event()

    def send(self, message: Message) -> None:
        """Takes notifications, and then the answer; what comes after it is dropped."""
        if self._answer is not None:
            return
        match message:
            case Response() | ErrorResponse():
                self._answer = message
            case _:
                self._streams = self._streams or self._accepted.events
        if self._streams:
            self._outbox.put(encode_event(encode(message)), may_miss=isinstance(message, Notification))
        if self._answer is not None:
            self._outbox.close()
        if self._streams or self._answer is not None:
            self._decided.set()

    def wake(self) -> None:
        self._outbox.wake()

    def abandon(self) -> None:
        """Answers now, that what became of the call is unknown. Its work ends with the response, as ever."""
        self.send(ErrorResponse(self._id, ErrorObject(INTERNAL_ERROR, CUT_OFF)))

    async def carry(
        self, request: web.Request, work: Work, refill: Callable[[], None] | None = None
    ) -> web.StreamResponse:
        """Does `work`, which sends the answer, while its client waits; the client's leaving cancels it (R25)."""
        working = self._edge.tasks.create_task(work())
        try:
            return await self._write(request, refill)
        finally:
            # streamable-http, Cancellation: the hang-up is the cancel; nothing may follow it.
            working.cancel()

    async def _decide(self) -> None:
        """Returns when the form of the response is settled."""
        if not self._accepted.events:
            await self._decided.wait()
            return
        late = asyncio.get_running_loop().call_later(self._edge.proxy.stream_after, self._decided.set)
        try:
            await self._decided.wait()
        finally:
            late.cancel()

    async def _write(self, request: web.Request, refill: Callable[[], None] | None) -> web.StreamResponse:
        await self._decide()
        if self._answer is not None and not self._streams:
            return json(encode(self._answer), _status(self._answer))
        self._streams = True
        with self._edge.metrics.streams.labels(TRANSPORT, LATEST).track_inprogress():
            return await send_events(request, self._edge, TRANSPORT, self._outbox, refill=refill)


def _status(answer: Answer) -> int:
    return _STATUS.get(answer.error.code, 200) if isinstance(answer, ErrorResponse) else 200
