"""The errors for clients of either era while the gateway shuts down."""

from __future__ import annotations

from mcproxy.call.errors import McpError, Reason
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, ErrorObject, ErrorResponse, RequestId


def shutting_down() -> McpError:
    """The refusal of a request that came once the gateway drains."""
    return McpError(INTERNAL_ERROR, "the gateway is shutting down; try again", reason=Reason.UNAVAILABLE)


def cut_off(id: RequestId | None) -> ErrorResponse:
    """The error for a request that still ran at the end of `shutdown_grace`."""
    sentence = "the gateway shut down before the answer came; the outcome of the call is unknown"
    return ErrorResponse(id, ErrorObject(INTERNAL_ERROR, sentence))
