"""HTTP responses of the gateway: JSON, errors with a JSON-RPC body, and event streams, all written within a bound.

Decides no status and reads no message.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from aiohttp import web

from mcproxy.call import McpError, Reason
from mcproxy.downstream.edge import Edge
from mcproxy.downstream.outbox import Outbox, pump
from mcproxy.protocol.jsonrpc import INVALID_REQUEST, ErrorResponse, RequestId, encode
from mcproxy.protocol.sse import KEEP_ALIVE

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"

_RESET: Final = struct.pack("ii", 1, 0)
"""`struct linger`: on closing, wait for nothing."""

_EVENT_HEADERS: Final = {
    "Content-Type": EVENTS,
    "Cache-Control": "no-store",
    # nginx and its like hold a response back until a buffer is full, unless told.
    "X-Accel-Buffering": "no",
}


class Refusal(Exception):
    """An HTTP request that is not let in: the status, and the JSON-RPC error for the body."""

    def __init__(
        self, status: int, code: int, sentence: str, *, data: object = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.error = McpError(code, sentence, data)
        self.headers = dict(headers or {})


def refused(refusal: Refusal) -> web.Response:
    return error(refusal.status, refusal.error, headers=refusal.headers)


def error(
    status: int, reason: McpError, id: RequestId | None = None, *, headers: Mapping[str, str] | None = None
) -> web.Response:
    return json(encode(ErrorResponse(id, reason.error())), status, headers)


def failure(reason: McpError, id: RequestId | None) -> web.Response:
    """Of a request that could be read, and is answered with our own error."""
    return error(503 if reason.reason is Reason.UNAVAILABLE else 200, reason, id)


def json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=body, status=status, content_type=JSON, headers={"Cache-Control": "no-store", **(headers or {})}
    )


@dataclass(frozen=True, slots=True)
class Accepted:
    """Which of our two forms an `Accept` header admits (RFC 9110, section 12.5.1)."""

    json: bool
    events: bool


@lru_cache(256)
def read_accept(header: str | None) -> Accepted:
    """No header admits everything."""
    ranges = {"*/*"} if header is None or not header.strip() else set(filter(None, map(_range, header.split(","))))
    anything = "*/*" in ranges
    return Accepted(
        json=anything or bool(ranges & {JSON, "application/*"}), events=anything or bool(ranges & {EVENTS, "text/*"})
    )


def check_accept(request: web.Request) -> Accepted:
    """The forms that a POST may be answered in. Raises Refusal where there is none."""
    accepted = read_accept(request.headers.get("Accept"))
    if not (accepted.json or accepted.events):
        raise Refusal(406, INVALID_REQUEST, "accept application/json, text/event-stream, or both")
    return accepted


def _range(entry: str) -> str | None:
    media, *parameters = (part.strip().lower() for part in entry.split(";"))
    return None if any(_is_zero(parameter) for parameter in parameters) else media


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and value.strip() in {"0", "0.", "0.0", "0.00", "0.000"}


async def send_whole(request: web.Request, response: web.Response, timeout: float) -> None:
    """Writes a response that has its body. A client that does not take it in `timeout` seconds is disconnected."""
    try:
        async with asyncio.timeout(timeout):
            await response.prepare(request)
            await response.write_eof()
    except ConnectionResetError:
        return
    except TimeoutError:
        _hang_up(request)


async def send_events(
    request: web.Request,
    edge: Edge,
    transport: str,
    outbox: Outbox,
    *,
    headers: Mapping[str, str] | None = None,
    refill: Callable[[], None] | None = None,
) -> web.StreamResponse:
    """Writes an event stream until the outbox is drained, or the client is gone or does not keep up."""
    response = web.StreamResponse(headers={**_EVENT_HEADERS, **(headers or {})})
    sent = edge.metrics.bytes_out.labels(transport)

    async def write(frames: bytes) -> None:
        async with asyncio.timeout(edge.proxy.write_timeout):
            await response.write(frames)
        sent.inc(len(frames))

    try:
        await response.prepare(request)
        await pump(outbox, write, patience=edge.proxy.keep_alive, idle=KEEP_ALIVE, refill=refill)
        async with asyncio.timeout(edge.proxy.write_timeout):
            await response.write_eof()
    except ConnectionResetError:
        return response
    except TimeoutError:
        _hang_up(request)
    finally:
        outbox.discard()
    return response


def _hang_up(request: web.Request) -> None:
    transport = request.transport
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    if connection is not None:
        # A reset: or the kernel would keep what the client does not take, and go on offering it.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
