"""What a link reads of HTTP responses: bodies within bounds, events a few at a time, the words of an error.

Sends nothing, and speaks no MCP.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Final, Protocol

import anyio
import anyio.lowlevel
import msgspec
from yarl import URL

from mcproxy.http.client import ClientResponse, ConnectionBroken, ResponseHead, ResponseTooLarge
from mcproxy.pending_requests import PeerGone
from mcproxy.protocol.json.malformed import is_json
from mcproxy.protocol.sse import Event, EventDecoder
from mcproxy.upstream.leniency import Looks, look
from mcproxy.upstream.link import Rejected

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
AUTHENTICATION: Final = frozenset({401, 403})
"""Statuses by which a server refuses a request's credentials."""
TRANSIENT: Final = frozenset({408, 425, 429})
"""Statuses that refuse a request for now: the same request may succeed later."""
PREFIX_BYTES: Final = 16 * 1024
"""Bytes that are read of the body of an error."""
PREFIX_TIMEOUT: Final = 5.0
"""Seconds in which these bytes must come."""
EVENTS_PER_TURN: Final = 10
"""Each may be an update that hundreds of clients are told of."""
BYTES_PER_TURN: Final = 32 * 1024
"""Bytes that are decoded in a row: of the shortest lines, that takes some ten milliseconds."""
_UNSUPPORTED_VERSION: Final = re.compile(r"\bunsupported (?:mcp[- ])?protocol[- ]version\b", re.IGNORECASE)


class Body(Protocol):
    """The body of a response as it arrives (`http.client.ClientResponse`, or decoded: `decoding.DecodedBody`)."""

    head: ResponseHead

    @property
    def is_complete(self) -> bool:
        """Whether all of it has arrived."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises ConnectionBroken."""

    async def read(self, limit: int) -> bytes:
        """The rest of it. Raises ResponseTooLarge over `limit` bytes, and ConnectionBroken."""

    def release(self) -> None:
        """Lets the connection serve again once the rest has arrived."""

    def close(self) -> None:
        """Gives up the connection, unless all has arrived."""


class UpstreamResponse(msgspec.Struct, frozen=True, eq=False):
    """A response whose body has not been read. The caller releases it, or closes it."""

    url: URL
    body: Body
    """The body, chunk by chunk as it arrives; raises ConnectionBroken."""

    @property
    def status(self) -> int:
        """The status code (RFC 9110, section 15)."""
        return self.body.head.status

    @property
    def reason(self) -> str:
        """The words behind the status code (RFC 9112, section 4); often none."""
        return self.body.head.reason

    @property
    def ok(self) -> bool:
        """Whether the status is below 400."""
        return self.body.head.status < 400

    @property
    def fields(self) -> Mapping[str, str]:
        """Headers by their names in lower case."""
        return self.body.head.fields

    @property
    def content_type(self) -> str:
        """The media type without parameters, in lower case; empty if absent."""
        return self.body.head.content_type

    def release(self) -> None:
        """Stops reading the body; the connection is reused if the rest comes soon."""
        self.body.release()

    def close(self) -> None:
        """Closes the connection, unless the whole body has come."""
        self.body.close()

    def finish(self, *, reusable: bool) -> None:
        """Releases the response if the connection may be reused, else closes it."""
        if reusable:
            self.body.release()
        else:
            self.body.close()


def quotable(body: bytes) -> str:
    """The beginning of a body as text, to quote in errors and to search for patterns."""
    return body[:PREFIX_BYTES].decode(errors="replace")


def refuses_version(status: int, text: str) -> bool:
    """Whether a transport so refuses `MCP-Protocol-Version`, and executes nothing. Not for the answer to a request.

    transports, 2025-11-25, Protocol Version Header: for an unsupported one a server "MUST respond with `400 Bad
    Request`". The words are those of SDKs.
    """
    return status == 400 and _UNSUPPORTED_VERSION.search(text) is not None


async def read_body(response: UpstreamResponse, limit: int, begun: bytes = b"") -> bytes:
    """The whole body, of which `begun` was read. Raises Rejected over `limit` bytes, PeerGone if it breaks off."""
    body = response.body
    try:
        if type(body) is ClientResponse and body.is_complete:
            return begun + body.rest(limit)
        return begun + await body.read(limit)
    except ResponseTooLarge as error:
        raise Rejected(f"an answer is larger than {limit} bytes (max_message_bytes)") from error
    except ConnectionBroken as error:
        raise PeerGone(f"the answer broke off: {error}") from error


async def first_bytes(response: UpstreamResponse) -> bytes:
    """The beginning of a body, at least up to its first byte that says what it is; empty if there is none."""
    begun = b""
    try:
        async for chunk in response.body:
            begun += chunk
            if look(begun) is not Looks.BLANK or len(begun) > PREFIX_BYTES:
                break
    except ConnectionBroken as error:
        if not begun:
            raise PeerGone(f"the answer broke off: {error}") from error
    return begun


async def read_prefix(response: UpstreamResponse, body: bytes = b"") -> bytes:
    """The beginning of an error's body, of which `body` was read: what arrives within PREFIX_TIMEOUT, bounded."""
    with anyio.move_on_after(PREFIX_TIMEOUT):
        try:
            async for chunk in response.body:
                body += chunk
                if len(body) >= PREFIX_BYTES:
                    break
        except ConnectionBroken:
            return body
    return body[:PREFIX_BYTES]


class IncomingEvents:
    """The events of a body as they arrive, a few at a time, so that a server that sends very many delays no other (R1).

    Between two batches that have arrived already, other tasks have a turn. Raises EventTooLarge over `limit` bytes, and
    what reading `body` raises.
    """

    __slots__ = ("_body", "_decoder", "_events", "_rest")

    def __init__(self, body: AsyncIterable[bytes], limit: int, begun: bytes = b"") -> None:
        """`begun` was read of the body already."""
        self._body = aiter(body)
        self._decoder = EventDecoder(limit)
        self._rest = begun
        """Bytes that arrived and are not decoded."""
        self._events: list[Event] = []
        """Events that are decoded and not taken."""

    def __aiter__(self) -> IncomingEvents:
        return self

    async def __anext__(self) -> list[Event]:
        while True:
            if self._events or self._rest:
                await anyio.lowlevel.checkpoint()
            if not self._events:
                try:
                    chunk = self._rest or await anext(self._body)
                except (StopAsyncIteration, ConnectionBroken):
                    # Some servers end the stream without the blank line that ends its last event.
                    last = self._decoder.end()
                    if last is None or not is_json(last.data):
                        raise
                    return [last]
                self._rest = chunk[BYTES_PER_TURN:]
                self._events = self._decoder.feed(chunk[:BYTES_PER_TURN])
            if self._events:
                batch, self._events = self._events[:EVENTS_PER_TURN], self._events[EVENTS_PER_TURN:]
                return batch
