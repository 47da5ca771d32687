"""One approval of one call: its states as a table, what it is bound to, and the form that a caller is shown.

An approval is bound to the caller, the upstream, the tool, the arguments and the generation of the policy. Only the
call that waits for it can use it, and only once. This module sends no questions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property
from typing import Final

import anyio
import msgspec
from msgspec import Raw

from mcproxy.call.calls import Failed
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import Party, Reason
from mcproxy.gateway.legible import legible
from mcproxy.gateway.resolving.targets import OUTDATED
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    INVALID_REQUEST,
    ErrorObject,
    InvalidMessage,
    Params,
    first_level,
    parse_object,
    raw,
)
from mcproxy.settings.access.policy import Approver

MAX_ASKED: Final = 4000
"""Characters of the arguments in the form shown to the caller; the caller's client has the full text."""
MAX_SHOWN: Final = 100_000
"""Characters of the arguments that an operator is shown."""
APPROVE: Final = "approve"
"""The name of the form's only field."""


class ApprovalState(Enum):
    """How far an approval has come."""

    WAITING = "waits for the answer of a person"
    APPROVED = "approved, and not used yet"
    USED = "used, by the call that it was for"
    REFUSED = "not given, or void by now; the last event says why"


class ApprovalEvent(Enum):
    """What happens to an approval."""

    APPROVED = "a person approved"
    DENIED = "a person denied"
    TIMED_OUT = "its time is over"
    GIVEN_UP = "its caller went, or dismissed the question"
    OUTDATED = "the policy, or the tool, is another by now"
    SPENT = "the call is sent"


_State, _Event = ApprovalState, ApprovalEvent
TRANSITIONS: Final[Mapping[ApprovalState, Mapping[ApprovalEvent, ApprovalState]]] = {
    _State.WAITING: {
        _Event.APPROVED: _State.APPROVED,
        _Event.DENIED: _State.REFUSED,
        _Event.TIMED_OUT: _State.REFUSED,
        _Event.GIVEN_UP: _State.REFUSED,
        _Event.OUTDATED: _State.REFUSED,
    },
    _State.APPROVED: {
        _Event.GIVEN_UP: _State.REFUSED,
        _Event.SPENT: _State.USED,
        _Event.OUTDATED: _State.REFUSED,
    },
}
OUTCOMES: Final = {
    _Event.SPENT: "used",
    _Event.DENIED: "denied",
    _Event.TIMED_OUT: "expired",
    _Event.GIVEN_UP: "withdrawn",
    _Event.OUTDATED: "withdrawn",
}
"""The outcome of an approval by the event that ended it; a label of metrics."""


def _refusal(event: ApprovalEvent, reason: Reason, sentence: str) -> tuple[ApprovalEvent, Failed]:
    error = ErrorObject(INVALID_REQUEST, sentence, raw({"approval": OUTCOMES[event]}))
    return event, Failed(error, Party.CLIENT, reason)


REFUSALS: Final = dict(
    [
        _refusal(
            _Event.DENIED,
            Reason.APPROVAL_DENIED,
            "this call was not approved: a person denied it; do not repeat it unless a person asks for it",
        ),
        _refusal(
            _Event.TIMED_OUT,
            Reason.APPROVAL_EXPIRED,
            "this call was not approved: nobody answered in time (access.approvals.timeout); to ask again, call again",
        ),
        _refusal(
            _Event.GIVEN_UP,
            Reason.APPROVAL_WITHDRAWN,
            "this call was not approved: its caller dismissed the question, or the client could not ask it; "
            "to be asked again, call again",
        ),
        _refusal(
            _Event.OUTDATED,
            Reason.APPROVAL_WITHDRAWN,
            OUTDATED,
        ),
    ]
)
"""The sentence for the caller, by the event that ended the approval."""


class ApprovalSubject(msgspec.Struct, frozen=True):
    """The only call that an approval covers."""

    principal: str
    upstream: str
    tool: str
    """The upstream's own name of the tool."""
    arguments: str
    """A digest of the arguments that are sent to the upstream."""
    entry: str
    """A digest of the tool's definition."""
    generation: int
    """How many different `access` settings have been in force; a reload that changes them raises it."""


class _Form(msgspec.Struct):
    action: str
    content: Raw = EMPTY_OBJECT


_forms = msgspec.json.Decoder(_Form)


class Approval(msgspec.Struct, eq=False, dict=True):
    """An approval and its state. `name` is the caller's name for the tool."""

    id: str
    subject: ApprovalSubject
    approver: Approver
    name: str
    given: Raw
    """The arguments as the caller sent them, in the caller's names."""
    arguments: Raw
    """The arguments that the upstream gets, with secrets of the configuration masked."""
    asked_at: float
    """A Unix time in seconds."""
    expires: float
    """A Unix time in seconds."""
    holds: Callable[[], bool]
    """Returns whether the call, if sent now, would still be the one that the person was asked to approve."""
    state: ApprovalState = ApprovalState.WAITING
    last: ApprovalEvent | None = None
    """The event that led to the current state."""
    decided: anyio.Event = msgspec.field(default_factory=anyio.Event)
    over: anyio.Event = msgspec.field(default_factory=anyio.Event)
    """Set once the state is final."""

    def move(self, event: ApprovalEvent) -> bool:
        """Applies an event. Returns False, and changes nothing, if the current state does not allow the event."""
        after = TRANSITIONS.get(self.state, {}).get(event)
        if after is None:
            return False
        self.state, self.last = after, event
        self.decided.set()
        if after not in TRANSITIONS:
            self.over.set()
        return True

    @property
    def awaits_operator(self) -> bool:
        """Whether an operator has yet to decide."""
        return self.approver == "operator" and self.state is ApprovalState.WAITING

    @property
    def outcome(self) -> str:
        """A value of `OUTCOMES`, once the approval is over."""
        assert self.last is not None
        return OUTCOMES[self.last]

    @property
    def refusal(self) -> Failed:
        """The sentence for the caller, once the approval is over and was not used."""
        assert self.last is not None
        return REFUSALS[self.last]

    @property
    def principal(self) -> str:
        return self.subject.principal

    @property
    def upstream(self) -> str:
        return self.subject.upstream

    @cached_property
    def shown_arguments(self) -> str:
        """The arguments that the upstream gets, as text for an operator."""
        return legible(self.arguments, MAX_SHOWN)

    @property
    def question(self) -> InputRequest:
        """The form that asks the caller (elicitation/create).

        It shows only the caller's own arguments. The caller must not see those that the settings add (requirement R44).
        """
        message = (
            f"Approve this call? The tool {self.name} of the server {self.subject.upstream} would be called with: "
            f"{legible(self.given, MAX_ASKED)}"
        )
        field = {"type": "boolean", "title": "Approve this call", "description": "Made once, with these arguments."}
        schema = {"type": "object", "properties": {APPROVE: field}, "required": [APPROVE]}
        return InputRequest("elicitation/create", first_level({"message": message, "requestedSchema": schema}))


def event_of(answer: Raw) -> ApprovalEvent:
    """The event for a caller's answer to the form: only an accepted form with a plain `true` approves."""
    try:
        form = _forms.decode(answer)
        content = parse_object(form.content)
    except (msgspec.MsgspecError, InvalidMessage):
        return ApprovalEvent.GIVEN_UP
    if form.action == "accept":
        approved = bytes(content.get(APPROVE, b"")) == b"true"
        return ApprovalEvent.APPROVED if approved else ApprovalEvent.DENIED
    return ApprovalEvent.DENIED if form.action == "decline" else ApprovalEvent.GIVEN_UP


def payload(approval: Approval, link: str | None) -> Params:
    """The JSON for the operators' webhook. `link` is the URL at which a person can decide later."""
    subject = approval.subject
    told = {
        "type": "approval",
        "id": approval.id,
        "principal": subject.principal,
        "upstream": subject.upstream,
        "tool": subject.tool,
        "arguments": approval.arguments,
        "expires": approval.expires,
    }
    return first_level(told if link is None else {**told, "link": link})
