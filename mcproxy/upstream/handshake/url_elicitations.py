"""Which client was told to visit a URL (2025-11-25, elicitation), for when the server says that the visit is over.

That may be long after the call, and is for "the client that initiated the elicitation request" alone. Tells nobody.
"""

from __future__ import annotations

import msgspec

from mcproxy.call.clients import Listener
from mcproxy.protocol.jsonrpc import EMPTY_OBJECT, URL_ELICITATION_REQUIRED, ErrorObject, Params, parse_text


class _Required(msgspec.Struct):
    """The `data` of URLElicitationRequiredError, of which only the ids matter here."""

    elicitations: list[Params]


_required = msgspec.json.Decoder(_Required)


class UrlElicitations:
    """Those of one link that nobody said to be over; of more than `most`, the oldest are forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._listeners: dict[str, Listener] = {}

    def note(self, question: Params, listener: Listener | None) -> None:
        """Notes that `question` goes to the client of `listener`. Only a visit has an `elicitationId`."""
        id = parse_text(question.get("elicitationId", b""))
        if id is None or listener is None:
            return
        self._listeners.pop(id, None)
        if len(self._listeners) >= self._most:
            del self._listeners[next(iter(self._listeners))]
        self._listeners[id] = listener

    def note_required(self, error: ErrorObject, listener: Listener | None) -> None:
        """The same of an error that says what to visit first."""
        if error.code != URL_ELICITATION_REQUIRED:
            return
        try:
            questions = _required.decode(error.data or EMPTY_OBJECT).elicitations
        except msgspec.MsgspecError:
            return
        for question in questions:
            self.note(question, listener)

    def over(self, params: Params) -> Listener | None:
        """Whom a `notifications/elicitation/complete` is for, once."""
        return self._listeners.pop(parse_text(params.get("elicitationId", b"")) or "", None)
