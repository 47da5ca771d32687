"""An HTTP/1.1 server (RFC 9110, RFC 9112) for asyncio. Nothing here knows MCP, nor anything else of mcproxy.

Use: `server = Server(handler, refuse, bounds)`; run `server.run` in a task, then `server.listen(host, port, tls)`.
A handler is given a `Request` and returns a `Response`, or begins a stream with `Request.start_stream` and returns
`Streamed`. `PathRouter` finds a handler by path and method. `refuse` makes the response to what reaches no handler.

Guarantees:
- Requests of one connection are handled one after another and answered once each, in their order, pipelined or not.
- What could be read in two ways is refused with 400 and the connection is closed: two lengths, a length and chunks,
  any transfer coding but chunked, a transfer coding in HTTP/1.0, folded lines, a line feed alone.
- A connection never stays paused with nothing left to resume it: the table in `states` says when it reads.
- Nothing of a head is remembered before the application accepts the request (`Request.remember`).
- A handler learns that its client disconnected, or shut down its side; in the latter case its response is still sent.
- A connection ends with its client's certificate. A handler that raises costs its own request a 500.

Limits: those in `Bounds`, of which `unsent` is over all connections of a server; 64 KiB without a byte of body (head,
trailers, what separates chunks); 16 requests waiting behind the one that is handled; 256 KiB of bodies that wait for
handlers, then reading is paused; 16 KiB of heads that are remembered. Behind a response, 64 KiB of an unread body are
still taken, or the connection is closed after 2 s.
No HTTP/2, upgrades, content codings, ranges or files; a whole body is held in memory; trailers are dropped.
"""

from mcproxy.http.headers import Headers
from mcproxy.http.server.messages import (
    Answered,
    BodyIncomplete,
    BodyTimeout,
    BodyTooLarge,
    Chunks,
    Request,
    RequestHandler,
    Response,
    Streamed,
    ip_address,
    ip_host,
)
from mcproxy.http.server.owner import Bounds, MakeRefusal
from mcproxy.http.server.router import MethodNotAllowed, NotFound, PathRouter, Route, RoutedHandler
from mcproxy.http.server.server import Server
from mcproxy.http.server.unsent import UnsentBytes

__all__ = [
    "Answered",
    "BodyIncomplete",
    "BodyTimeout",
    "BodyTooLarge",
    "Bounds",
    "Chunks",
    "Headers",
    "MakeRefusal",
    "MethodNotAllowed",
    "NotFound",
    "PathRouter",
    "Request",
    "RequestHandler",
    "Response",
    "Route",
    "RoutedHandler",
    "Server",
    "Streamed",
    "UnsentBytes",
    "ip_address",
    "ip_host",
]
