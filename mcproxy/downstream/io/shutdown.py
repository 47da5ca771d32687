"""The errors that clients of either era get because the gateway shuts down."""

from __future__ import annotations

from mcproxy.call.errors import McpError, Reason
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, ErrorObject, ErrorResponse, RequestId


def shutting_down() -> McpError:
    """Refuses a request that came once the gateway drains."""
    return McpError(INTERNAL_ERROR, "the gateway is shutting down; try again", reason=Reason.UNAVAILABLE)


def cut_off(id: RequestId | None) -> ErrorResponse:
    """Answers a request that was still running at the end of `shutdown_grace`."""
    sentence = "the gateway shut down before the answer came; what became of the call is unknown"
    return ErrorResponse(id, ErrorObject(INTERNAL_ERROR, sentence))
