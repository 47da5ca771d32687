"""Send a request of an upstream (sampling, elicitation, roots) to a handshake client, and await its result.

Refuses requests for which the client declared no capability. Knows no transport.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from msgspec import Raw

from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import Caller
from mcproxy.downstream.handshake.older_forms import in_older_form
from mcproxy.pending_requests import PeerGone, PendingRequests, RequestTimeout, Timeouts
from mcproxy.protocol.inputs import missing_capabilities, named, refusal_code
from mcproxy.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    ErrorResponse,
    Message,
    Params,
    RequestId,
    Response,
    raw,
)


async def ask(
    requests: PendingRequests,
    caller: Caller,
    request: InputRequest,
    send: Callable[[Message], None],
    timeout: float,
    id: RequestId | None = None,
) -> Raw:
    """The client's result. Raises McpError with the client's error, or where it cannot answer, is gone, or times out.

    A request that is given up is cancelled (cancellation, Behavior Requirements). `timeout` is in seconds; `id` is the
    request's, minted if None.
    """
    check_declared(caller, request)

    params = in_older_form(caller.version, request.params)

    was_put = False

    async def put(message: Message) -> None:
        nonlocal was_put
        send(message)
        was_put = True

    async def take_back(cancelled: Message) -> None:
        if was_put:
            send(cancelled)

    try:
        answer = await requests.exchange(
            request.method, params, put, Timeouts(timeout, timeout), send_cancel=take_back, id=id
        )
    except PeerGone as gone:
        raise McpError(INVALID_REQUEST, f"the client cannot be asked {request.method}: {gone}") from gone
    except RequestTimeout as late:
        sentence = f"the client did not answer {request.method} within {timeout:g} s (ask_timeout)"
        raise McpError(INTERNAL_ERROR, sentence, reason=Reason.TIMEOUT) from late
    match answer:
        case Response(result=result):
            return raw(result)
        case ErrorResponse(error=error):
            raise McpError(error.code, error.message, error.data)
        case _:
            assert_never(answer)


def check_declared(caller: Caller, request: InputRequest) -> None:
    """Raises McpError where the client did not declare the capabilities that the request needs."""
    missing = missing_capabilities(caller.capabilities, request.method, request.params)
    if missing:
        sentence = f"the client cannot answer {request.method}: it did not declare {named(missing)}"
        raise McpError(refusal_code(caller.capabilities, request.method), sentence)


class NoClient:
    """The way back during a notification, or while a session is opened: it leads to no client."""

    def notify(self, method: str, params: Params) -> None:
        return

    async def ask(self, request: InputRequest) -> Raw:
        raise McpError(INVALID_REQUEST, f"{request.method} outside of a client's request")
