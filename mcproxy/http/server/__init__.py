"""HTTP/1.1 (RFC 9110, RFC 9112), server side, no more of it than a gateway needs. Knows no MCP.

A handler is given a `Request` and returns a `Response`, or `Streamed` where it began a stream (`Request.begin`).
"""

from mcproxy.http.server.connection import Bounds
from mcproxy.http.server.headers import Headers
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
)
from mcproxy.http.server.router import MethodNotAllowed, NotFound, PathRouter, Route, RoutedHandler
from mcproxy.http.server.server import Server

__all__ = [
    "Answered",
    "BodyIncomplete",
    "BodyTimeout",
    "BodyTooLarge",
    "Bounds",
    "Chunks",
    "Headers",
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
]
