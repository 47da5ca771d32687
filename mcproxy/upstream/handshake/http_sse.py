"""HTTP+SSE of 2024-11-05, client side: one GET stream for all that the server sends, a POST for each message of ours.

The stream is the connection: when it ends, so does the link. A `Duplex` for the conversation; interprets no message.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing

from yarl import URL

from mcproxy.http.client import ConnectionBroken, origin
from mcproxy.pending_requests import PeerGone
from mcproxy.protocol.jsonrpc import Message, Request, encode
from mcproxy.protocol.sse import Event, EventTooLarge
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.handshake.conversation import has_answer, messages
from mcproxy.upstream.link import Duplex, NotAccepted, Receive, Rejected, Unreachable
from mcproxy.upstream.requester import (
    EVENTS,
    JSON,
    IncomingEvents,
    Requester,
    UpstreamResponse,
    connection_pool,
    read_body,
    read_prefix,
)


@asynccontextmanager
async def stream(context: LinkContext) -> AsyncIterator[Duplex]:
    """Opens the stream and waits for its `endpoint` event. Raises Unreachable or Rejected."""
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
            async with aclosing(_events(response, context.spec.max_message_bytes)) as events:
                endpoint = await _endpoint(events, response.url)
                yield _SseDuplex(requester, events, endpoint, context.spec.max_message_bytes)


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


class _SseDuplex:
    """Implements `link.Duplex`."""

    def __init__(self, requester: Requester, events: AsyncIterator[Event], endpoint: URL, limit: int) -> None:
        self._requester = requester
        self._events = events
        self._endpoint = endpoint
        self._limit = limit
        self._receive: Receive = lambda _: None

    async def send(self, message: Message) -> None:
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
            taken = self._receive(body)  # R76
            if taken is not None:
                await taken

    def _refusal(self, response: UpstreamResponse, body: bytes) -> NotAccepted | Rejected:
        if response.status == 404:
            return NotAccepted("the upstream lost the session: HTTP 404")
        return self._requester.rejection(response, body)

    async def read(self, receive: Receive) -> str:
        self._receive = receive
        try:
            async for event in self._events:
                if event.event == "message" and event.data:
                    taken = receive(event.data)
                    if taken is not None:
                        await taken
        except EventTooLarge as error:
            return f"{error} (max_message_bytes)"
        except ConnectionBroken as error:
            return f"the event stream broke: {error}"
        return "the event stream ended"
