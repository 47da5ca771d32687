"""HTTP+SSE of 2024-11-05, client side: one GET stream for all that the server sends, a POST for each message of ours.

The stream is the connection: when it ends, so does the link. Sends no message twice, and interprets none.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing

import anyio
from anyio.abc import TaskGroup
from yarl import URL

from mcproxy.http.client import ConnectionBroken, origin
from mcproxy.pending_requests import CANCEL_TIMEOUT, PeerGone
from mcproxy.protocol.jsonrpc import Message, Request, RequestId, encode
from mcproxy.protocol.sse import Event, EventTooLarge
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.handshake.bodies import has_answer, messages
from mcproxy.upstream.handshake.conversation import HandshakeConversation
from mcproxy.upstream.http.requester import Requester, connection_pool
from mcproxy.upstream.http.responses import (
    EVENTS,
    JSON,
    IncomingEvents,
    UpstreamResponse,
    read_body,
    read_prefix,
)
from mcproxy.upstream.link import Link, NotAccepted, Rejected, Unreachable, task_group


@asynccontextmanager
async def handshake_over_sse(context: LinkContext) -> AsyncIterator[Link]:
    """Implements `Connect`: opens the stream, and waits for its `endpoint` event."""
    assert context.spec.url is not None
    async with connection_pool(context) as http:
        requester = Requester(http, context)
        try:
            response = await requester.request("GET", URL(context.spec.url), (("Accept", EVENTS),))
        except (NotAccepted, PeerGone) as error:
            raise Unreachable(str(error)) from error
        with closing(response):
            if not response.ok or response.content_type != EVENTS:
                raise requester.rejection(response, await read_prefix(response))
            async with aclosing(_events(response, context.spec.max_message_bytes)) as events, task_group() as tasks:
                sse = _HttpSse(context, requester, await _endpoint(events, response.url), tasks)
                tasks.start_soon(sse.read, events)
                await sse.conversation.open()
                try:
                    yield sse.conversation
                finally:
                    sse.conversation.disconnect("the link was closed")


async def _events(response: UpstreamResponse, limit: int) -> AsyncGenerator[Event, None]:
    async for batch in IncomingEvents(response.body, limit):
        for event in batch:
            yield event


async def _endpoint(events: AsyncIterator[Event], base: URL) -> URL:
    """The URL to POST to (transports, HTTP with SSE): of the stream's own origin, lest credentials leave it (R43)."""
    try:
        async for event in events:
            if event.event == "endpoint":
                endpoint = base.join(URL(event.data.decode()))
                if origin(endpoint) != origin(base):
                    raise Unreachable(f"its endpoint is at another origin: {endpoint.origin()}")
                return endpoint
    except (ConnectionBroken, ValueError, EventTooLarge) as error:
        raise Unreachable(f"no usable endpoint event came: {error}") from error
    raise Unreachable("the stream ended before its endpoint event")


class _HttpSse:
    """The transport of one link.

    Each request is posted in a task of its own: its call may be answered on the stream before the POST is.
    """

    def __init__(self, context: LinkContext, requester: Requester, endpoint: URL, tasks: TaskGroup) -> None:
        self._requester = requester
        self._endpoint = endpoint
        self._limit = context.spec.max_message_bytes
        self._tasks = tasks
        self._posting: dict[RequestId, anyio.CancelScope] = {}
        """Requests whose POST has no response yet."""
        self.conversation = HandshakeConversation(context, tasks, self._send)

    async def read(self, events: AsyncIterator[Event]) -> None:
        """Takes what comes on the stream until it ends, and then closes the link."""
        self.conversation.disconnect(await self._read(events))

    async def _read(self, events: AsyncIterator[Event]) -> str:
        try:
            async for event in events:
                if event.event == "message" and event.data:
                    taken = self.conversation.receive(event.data)
                    if taken is not None:
                        await taken
                    self._leave_answered()
        except EventTooLarge as error:
            return f"{error} (max_message_bytes)"
        except ConnectionBroken as error:
            return f"the event stream broke: {error}"
        return "the event stream ended"

    async def _send(self, message: Message) -> None:
        self._leave_answered()
        if isinstance(message, Request):
            self._posting[message.id] = anyio.CancelScope()
            self._tasks.start_soon(self._post_request, message)
        else:
            await self._post(message)

    def _leave_answered(self) -> None:
        """Gives the POSTs of requests that are over little time to end: their connections may serve others then."""
        until = anyio.current_time() + CANCEL_TIMEOUT
        for id, scope in self._posting.items():
            if scope.deadline == math.inf and self.conversation.settled(id):
                scope.deadline = until

    async def _post_request(self, request: Request) -> None:
        try:
            with self._posting[request.id]:
                await self._post(request)
        except (NotAccepted, PeerGone, Rejected) as error:
            self.conversation.fail(request.id, error)
        finally:
            del self._posting[request.id]

    async def _post(self, message: Message) -> None:
        response = await self._requester.request("POST", self._endpoint, (("Content-Type", JSON),), encode(message))
        if response.ok:
            response.release()
            return
        with closing(response):
            if not isinstance(message, Request) or response.content_type != JSON:
                raise self._refusal(response, await read_prefix(response))
            body = await read_body(response, self._limit)
            if not has_answer(messages(body), message.id):
                raise self._refusal(response, body)
            taken = self.conversation.receive(body)  # R76
            if taken is not None:
                await taken

    def _refusal(self, response: UpstreamResponse, body: bytes) -> NotAccepted | Rejected:
        if response.status == 404:
            return NotAccepted("the upstream lost the session: HTTP 404")
        return self._requester.rejection(response, body)
