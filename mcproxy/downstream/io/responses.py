"""HTTP responses: JSON, errors with a JSON-RPC body, and which media types an `Accept` header admits.

Also the errors for clients of every transport while the gateway shuts down.

Decides no status and reads no message.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from mcproxy.call.errors import McpError, Reason
from mcproxy.http import server as http
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, ErrorObject, ErrorResponse, RequestId, encode

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"

_WHOLE_HEADERS: Final = {"Content-Type": JSON, "Cache-Control": "no-store"}


class Refusal(Exception):
    """An HTTP request that is refused: the status, and the JSON-RPC error for the body."""

    def __init__(
        self,
        status: int,
        code: int,
        sentence: str,
        *,
        data: object = None,
        headers: Mapping[str, str] | None = None,
        id: RequestId | None = None,
    ) -> None:
        """`id` is that of the message in the body, if it could be read."""
        super().__init__(sentence)
        self.id = id
        self.status = status
        self.error = McpError(code, sentence, data)
        self.headers = dict(headers or {})


def refused(refusal: Refusal) -> http.Response:
    """The response to a request that is refused as a whole."""
    return error(refusal.status, refusal.error, refusal.id, headers=refusal.headers)


def error(
    status: int, reason: McpError, id: RequestId | None = None, *, headers: Mapping[str, str] | None = None
) -> http.Response:
    """A JSON-RPC error with that HTTP status; without an id where that could not be read."""
    return json(encode(ErrorResponse(id, reason.error())), status, headers)


def failure(reason: McpError, id: RequestId | None) -> http.Response:
    """The response to a request that was read, and is answered with an error of ours."""
    return error(503 if reason.reason is Reason.UNAVAILABLE else 200, reason, id)


def json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> http.Response:
    """A response whose body is encoded JSON."""
    return http.Response(status, body, {**_WHOLE_HEADERS, **headers} if headers else _WHOLE_HEADERS)


class Accepted(msgspec.Struct, frozen=True):
    """Which of JSON and SSE an `Accept` header admits (RFC 9110, section 12.5.1)."""

    json: bool
    events: bool


@lru_cache(256)
def read_accept(header: str | None) -> Accepted:
    """The accepted media types; without the header, all."""
    ranges = {"*/*"} if header is None or not header.strip() else set(filter(None, map(_range, header.split(","))))
    anything = "*/*" in ranges
    return Accepted(
        json=anything or bool(ranges & {JSON, "application/*"}), events=anything or bool(ranges & {EVENTS, "text/*"})
    )


def check_accept(accepted: Accepted) -> None:
    """Raises Refusal if a POST may be answered neither as JSON nor as SSE."""
    if not (accepted.json or accepted.events):
        raise Refusal(406, INVALID_REQUEST, "accept application/json, text/event-stream, or both")


def _range(entry: str) -> str | None:
    media, *parameters = (part.strip().lower() for part in entry.split(";"))
    return None if any(_is_zero(parameter) for parameter in parameters) else media


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and value.strip() in {"0", "0.", "0.0", "0.00", "0.000"}


def shutting_down() -> McpError:
    """The refusal of a request that came once the gateway drains."""
    return McpError(INTERNAL_ERROR, "the gateway is shutting down; try again", reason=Reason.UNAVAILABLE)


def cut_off(id: RequestId | None) -> ErrorResponse:
    """The error for a request that still ran at the end of `shutdown_grace`."""
    sentence = "the gateway shut down before the answer came; the outcome of the call is unknown"
    return ErrorResponse(id, ErrorObject(INTERNAL_ERROR, sentence))
