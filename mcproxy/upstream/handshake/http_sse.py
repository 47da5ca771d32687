"""HTTP+SSE of 2024-11-05, client side: one GET stream for all that the server sends, a POST for each message of ours.

The stream is the connection: when it ends, so does the link. Sends no message twice, and interprets none.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing

import anyio
from yarl import URL

from mcproxy.http.client import ConnectionBroken, origin
from mcproxy.pending_requests import CANCEL_TIMEOUT, PeerGone
from mcproxy.protocol.jsonrpc import ErrorResponse, Message, Request, RequestId, encode
from mcproxy.protocol.sse import Event, EventTooLarge
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.conversation import Conversation, conversing, has_answer, messages
from mcproxy.upstream.handshake.dialect import HandshakeDialect
from mcproxy.upstream.http.requester import Requester, connection_pool
from mcproxy.upstream.http.responses import (
    EVENTS,
    JSON,
    IncomingEvents,
    UpstreamResponse,
    read_body,
    read_prefix,
)
from mcproxy.upstream.leniency import is_message
from mcproxy.upstream.link import Link, NotAccepted, Rejected, Unreachable


@asynccontextmanager
async def handshake_over_sse(context: LinkContext) -> AsyncIterator[Link]:
    """Implements `Connect`: opens the stream, and waits for its `endpoint` event."""
    assert context.spec.url is not None
    async with connection_pool(context) as http:
        requester = Requester(http, context)
        try:
            response = await requester.request("GET", URL(context.spec.endpoint.url), (("Accept", EVENTS),))
        except (NotAccepted, PeerGone) as error:
            raise Unreachable(str(error)) from error
        with closing(response):
            if not response.ok or response.content_type != EVENTS:
                raise requester.rejection(response, await read_prefix(response))
            async with aclosing(_events(response, context.spec.max_message_bytes)) as events:
                sse = _HttpSse(context, requester, await _endpoint(events, response.url), events)
                async with conversing(context, HandshakeDialect(context), sse) as conversation:
                    yield conversation


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
    """Implements `conversation.Transport`.

    Each request is posted in a task of its own: its call may be answered on the stream before the POST is.
    """

    carries_exchanges = False

    def __init__(self, context: LinkContext, requester: Requester, endpoint: URL, events: AsyncIterator[Event]) -> None:
        self._requester = requester
        self._endpoint = endpoint
        self._limit = context.spec.max_message_bytes
        self._events = events
        self._posting: dict[RequestId, anyio.CancelScope] = {}
        """Requests whose POST has no response yet."""

    def attach(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def check(self, error: ErrorResponse) -> None:
        """Requests have no responses of their own here."""

    async def close(self, *, politely: bool) -> None:
        """The stream is closed by whoever opened it."""

    def note_unanswered(self) -> None:
        """A server that hangs is not told from a busy one."""

    async def receive(self) -> str:
        try:
            async for event in self._events:
                if event.data and is_message(event):
                    taken = self._conversation.receive(event.data)
                    if taken is not None:
                        await taken
                    self._leave_answered()
        except EventTooLarge as error:
            return f"{error} (max_message_bytes)"
        except ConnectionBroken as error:
            return f"the event stream broke: {error}"
        return "the event stream ended"

    async def send(self, message: Message) -> None:
        self._leave_answered()
        if isinstance(message, Request):
            self._posting[message.id] = anyio.CancelScope()
            self._conversation.tasks.start_soon(self._post_request, message)
        else:
            await self._post(message)

    def _leave_answered(self) -> None:
        """Gives the POSTs of requests that are over little time to end: their connections may serve others then."""
        until = anyio.current_time() + CANCEL_TIMEOUT
        for id, scope in self._posting.items():
            if scope.deadline == math.inf and self._conversation.settled(id):
                scope.deadline = until

    async def _post_request(self, request: Request) -> None:
        try:
            with self._posting[request.id]:
                await self._post(request)
        except (NotAccepted, PeerGone, Rejected) as error:
            self._conversation.fail(request.id, error)
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
            if not has_answer(messages(body, batches=True), message.id):
                raise self._refusal(response, body)
            taken = self._conversation.receive(body)  # R76
            if taken is not None:
                await taken

    def _refusal(self, response: UpstreamResponse, body: bytes) -> NotAccepted | Rejected:
        if response.status == 404:
            return NotAccepted("the upstream lost the session: HTTP 404")
        return self._requester.rejection(response, body)
