"""Turns the error that names URLs to visit first into elicitations by URL (2025-11-25, `URLElicitationRequiredError`).

2026-07-28 has no such error: there, input is asked for in a result (basic, "Error Codes"; mrtr). Sends nothing.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Raw

from mcproxy.call.calls import Call
from mcproxy.call.clients import InputRequest
from mcproxy.protocol.inputs import INPUT_RESPONSES
from mcproxy.protocol.jsonrpc import EMPTY_OBJECT, URL_ELICITATION_REQUIRED, ErrorObject, parse_object


class _UrlElicitation(msgspec.Struct):
    """ElicitRequestURLParams."""

    mode: Literal["url"]
    message: str
    url: str


class _UrlElicitations(msgspec.Struct):
    elicitations: list[Raw]


class _Answer(msgspec.Struct):
    action: str


_elicitations = msgspec.json.Decoder(_UrlElicitations)
_url_elicitation = msgspec.json.Decoder(_UrlElicitation)
_answers = msgspec.json.Decoder(dict[str, _Answer])


def url_elicitations(error: ErrorObject) -> dict[str, InputRequest]:
    """The elicitations that an error demands, by key; none if it is another error or malformed."""
    if error.code != URL_ELICITATION_REQUIRED:
        return {}
    try:
        elicitations = _elicitations.decode(error.data or EMPTY_OBJECT).elicitations
        for elicitation in elicitations:
            _url_elicitation.decode(elicitation)
    except msgspec.MsgspecError:
        return {}
    return {
        str(number): InputRequest("elicitation/create", parse_object(elicitation))
        for number, elicitation in enumerate(elicitations, 1)
    }


def is_unwilling(call: Call) -> bool:
    """Whether a retry's answers say that the person declined; the same is not asked again."""
    try:
        answers = _answers.decode(call.params.get(INPUT_RESPONSES, EMPTY_OBJECT))
    except msgspec.MsgspecError:
        return False
    return any(answer.action != "accept" for answer in answers.values())
