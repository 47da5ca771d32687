"""Putting an upstream's question (sampling, elicitation, roots) to a client of the handshake eras.

Asks only what the client declared that it can answer. Knows no transport.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from msgspec import Raw

from mcproxy.call import Caller, InputRequest, McpError, Reason
from mcproxy.channel import PeerGone, Requests, RequestTimeout, Timeouts
from mcproxy.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    ErrorResponse,
    InvalidMessage,
    Message,
    Params,
    Response,
    parse_object,
    parse_text,
)
from mcproxy.protocol.methods import INPUT_CAPABILITIES


async def ask(
    requests: Requests, caller: Caller, request: InputRequest, send: Callable[[Message], None], timeout: float
) -> Raw:
    """The client's result. Raises McpError: its own error, or ours where it cannot answer, is gone, or takes too long.

    A question that is given up is cancelled (cancellation, Behavior Requirements). `timeout` is in seconds.
    """
    check_declared(caller, request)

    async def put(message: Message) -> None:
        send(message)

    try:
        answer = await requests.exchange(
            request.method, request.params, put, Timeouts(timeout, timeout), send_cancel=put
        )
    except PeerGone as gone:
        raise McpError(INVALID_REQUEST, f"the client cannot be asked {request.method}: {gone}") from gone
    except RequestTimeout as late:
        sentence = f"the client did not answer {request.method} within {timeout:g} s (ask_timeout)"
        raise McpError(INTERNAL_ERROR, sentence, reason=Reason.TIMEOUT) from late
    match answer:
        case Response(result=result):
            return result
        case ErrorResponse(error=error):
            raise McpError(error.code, error.message, error.data)
        case _:
            assert_never(answer)


def check_declared(caller: Caller, request: InputRequest) -> None:
    """Raises McpError where the client did not declare what it takes to answer."""
    missing = _missing(caller.capabilities, request)
    if missing is not None:
        raise McpError(INVALID_REQUEST, f"the client cannot answer {request.method}: it did not declare {missing}")


def _missing(capabilities: Params, request: InputRequest) -> str | None:
    capability = INPUT_CAPABILITIES.get(request.method)
    if capability is None:
        return f"anything that this gateway knows {request.method} to need"
    if capability not in capabilities:
        return capability
    declared = _members(capabilities[capability])
    for feature in _features(capability, request.params):
        # elicitation, Capabilities: an empty object declares forms alone.
        if feature not in declared and (feature != "form" or declared):
            return f"{capability}.{feature}"
    return None


def _features(capability: str, params: Params) -> tuple[str, ...]:
    match capability:
        case "elicitation":
            return (parse_text(params.get("mode", b"")) or "form",)
        case "sampling" if "tools" in params:
            return ("tools",)
        case _:
            return ()


def _members(value: Raw) -> Params:
    try:
        return parse_object(value)
    except InvalidMessage:
        return {}
