"""Turns the error that names URLs to visit first into elicitations by URL (2025-11-25, `URLElicitationRequiredError`).

2026-07-28 has no such error: there, input is asked for in a result (basic, "Error Codes"; mrtr). Sends nothing.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Raw

from mcproxy.call.calls import Call
from mcproxy.call.clients import InputRequest
from mcproxy.protocol.inputs import INPUT_RESPONSES
from mcproxy.protocol.json.bounds import Bounded, parse_array
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    URL_ELICITATION_REQUIRED,
    ErrorObject,
    InvalidMessage,
    parse_object,
)

MAX_DATA: Final = 4 * 1024 * 1024
"""Bytes of the data of an error that is read."""
MAX_ELICITATIONS: Final = 1000
"""Elicitations of an error; of one with more, none is read."""


class _UrlElicitation(msgspec.Struct):
    """ElicitRequestURLParams."""

    mode: Literal["url"]
    message: str
    url: str


class _UrlElicitations(msgspec.Struct):
    elicitations: Raw


class _Answer(msgspec.Struct):
    action: str


_elicitations = Bounded(_UrlElicitations)
_url_elicitation = msgspec.json.Decoder(_UrlElicitation)
_answer = msgspec.json.Decoder(_Answer)


def url_elicitations(error: ErrorObject) -> dict[str, InputRequest]:
    """The elicitations that an error demands, by key; none if it is another error or malformed."""
    if error.code != URL_ELICITATION_REQUIRED or len(error.data or b"") > MAX_DATA:
        return {}
    try:
        elicitations = parse_array(_elicitations.decode(error.data or EMPTY_OBJECT).elicitations, MAX_ELICITATIONS)
        for elicitation in elicitations:
            _url_elicitation.decode(elicitation)
        params = [parse_object(elicitation) for elicitation in elicitations]
    except (msgspec.MsgspecError, InvalidMessage, RecursionError):
        return {}
    return {str(number): InputRequest("elicitation/create", asked) for number, asked in enumerate(params, 1)}


def is_unwilling(call: Call) -> bool:
    """Whether a retry's answers say that the person declined; the same is not asked again."""
    try:
        answers = parse_object(call.params.get(INPUT_RESPONSES, EMPTY_OBJECT))
        return any(_answer.decode(answer).action != "accept" for answer in answers.values())
    except (msgspec.MsgspecError, InvalidMessage):
        return False
