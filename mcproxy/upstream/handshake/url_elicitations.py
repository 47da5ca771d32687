"""URL elicitations of one link, and the client that each went to, until the server reports it complete (2025-11-25).

Completion may come long after the call, and is reported only "to the client that initiated the elicitation request".
Sends nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.call.clients import Listener
from mcproxy.protocol.json.bounds import Bounded, parse_array
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    URL_ELICITATION_REQUIRED,
    ErrorObject,
    InvalidMessage,
    Params,
    parse_object,
    parse_text,
)

MAX_DATA: Final = 4 * 1024 * 1024
"""Bytes of the data of an error that is read."""


class _Required(msgspec.Struct):
    """The `data` of URLElicitationRequiredError; only the ids are read here."""

    elicitations: Raw


_required = Bounded(_Required)


class UrlElicitations:
    """The elicitations that are not complete; beyond `most`, the oldest are forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._listeners: dict[str, Listener] = {}

    def note(self, question: Params, listener: Listener | None) -> None:
        """Notes that `question` goes to the client of `listener`; ignores all but URL elicitations."""
        id = parse_text(question.get("elicitationId", b""))
        if id is None or listener is None:
            return
        self._listeners.pop(id, None)
        if len(self._listeners) >= self._most:
            del self._listeners[next(iter(self._listeners))]
        self._listeners[id] = listener

    def note_required(self, error: ErrorObject, listener: Listener | None) -> None:
        """Notes the elicitations that a URLElicitationRequiredError demands."""
        if error.code != URL_ELICITATION_REQUIRED or len(error.data or b"") > MAX_DATA:
            return
        try:
            listed = _required.decode(error.data or EMPTY_OBJECT).elicitations
            questions = [parse_object(question) for question in parse_array(listed, self._most)]
        except (msgspec.MsgspecError, InvalidMessage, RecursionError):
            return
        for question in questions:
            self.note(question, listener)

    def complete(self, params: Params) -> Listener | None:
        """The listener that a `notifications/elicitation/complete` is for; forgets the elicitation."""
        return self._listeners.pop(parse_text(params.get("elicitationId", b"")) or "", None)
