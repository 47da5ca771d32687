"""HTTP/1.1 (RFC 9110, RFC 9112), server side, no more of it than a gateway needs. Knows no MCP.

A handler is given a `Request` and returns a `Response`, or `Streamed` where it began a stream (`Request.begin`).
"""

from mcproxy.downstream.http.connection import Bounds
from mcproxy.downstream.http.fields import Fields
from mcproxy.downstream.http.messages import (
    Answered,
    BodyCut,
    BodyLate,
    BodyTooLarge,
    Chunks,
    Handler,
    Request,
    Response,
    Streamed,
)
from mcproxy.downstream.http.routes import MethodNotAllowed, NotFound, Route, RoutedHandler, Router
from mcproxy.downstream.http.server import Server

__all__ = [
    "Answered",
    "BodyCut",
    "BodyLate",
    "BodyTooLarge",
    "Bounds",
    "Chunks",
    "Fields",
    "Handler",
    "MethodNotAllowed",
    "NotFound",
    "Request",
    "Response",
    "Route",
    "RoutedHandler",
    "Router",
    "Server",
    "Streamed",
]
