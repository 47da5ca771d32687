"""A call of a stateless client that lives on between the client's requests, because its upstream asked for input.

A state machine, written as the table `TRANSITIONS`. The call runs upstream in a task of its own; this is the upstream's
`Client` meanwhile. Questions that need an undeclared capability are refused; what the upstream says while no request of
the client is there is kept, within bounds, for the next one. Before it runs, the call may wait for the decision of
another person in the same way. Keeps no time, seals nothing, starts no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Final

import anyio
import msgspec
from msgspec import Raw

from mcproxy import settings
from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.call.identity import Rights
from mcproxy.concurrency.bounded_queue import BoundedQueue
from mcproxy.protocol.inputs import (
    INPUT_RESPONSES,
    Capabilities,
    check_answer,
    merged,
    missing_capabilities,
    named,
    refusal_code,
)
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    INVALID_PARAMS,
    INVALID_REQUEST,
    MISSING_CLIENT_CAPABILITY,
    ErrorObject,
    InvalidMessage,
    Params,
    parse_object,
    raw,
    size_of,
)


class ParkedCallState(Enum):
    """The state of a call, as its client's requests see it."""

    RUNNING = "runs upstream, and a request of its client waits for it"
    ASKING = "asked for input; what is asked within the gathering time goes into the same answer"
    REFERRED = "waits for the decision of another person, and a request of its client waits for it"
    PARKED = "waits for a retry of its client"
    FINISHED = "has its outcome, which waits for a retry of its client"
    CANCELLED = "is being cancelled upstream"
    OVER = "is over, and its client has the outcome or is gone"


class ParkedCallEvent(Enum):
    """An event in the life of such a call."""

    ASKED = "the upstream asked for input"
    SETTLED = "no question is open any more"
    GATHERED = "the gathering time is over"
    REFERRED = "another person has to decide"
    DECIDED = "no other person has to decide any more"
    HELD = "the time is over for which a request waits for a decision"
    RETRIED = "a retry of the client came"
    ENDED = "the call ended, and has its outcome"
    ABANDONED = "the client hung up, sent no retry in time, or found no room"


_State, _Event = ParkedCallState, ParkedCallEvent
TRANSITIONS: Final[Mapping[ParkedCallState, Mapping[ParkedCallEvent, ParkedCallState]]] = {
    _State.RUNNING: {
        _Event.ASKED: _State.ASKING,
        _Event.REFERRED: _State.REFERRED,
        _Event.ENDED: _State.OVER,
        _Event.ABANDONED: _State.CANCELLED,
    },
    _State.ASKING: {
        _Event.ASKED: _State.ASKING,
        _Event.SETTLED: _State.RUNNING,
        _Event.GATHERED: _State.PARKED,
        _Event.ENDED: _State.OVER,
        _Event.ABANDONED: _State.CANCELLED,
    },
    _State.REFERRED: {
        _Event.DECIDED: _State.RUNNING,
        _Event.HELD: _State.PARKED,
        _Event.ENDED: _State.OVER,
        _Event.ABANDONED: _State.CANCELLED,
    },
    _State.PARKED: {
        _Event.ASKED: _State.PARKED,
        _Event.SETTLED: _State.PARKED,
        _Event.DECIDED: _State.PARKED,
        _Event.RETRIED: _State.ASKING,
        _Event.ENDED: _State.FINISHED,
        _Event.ABANDONED: _State.CANCELLED,
    },
    _State.FINISHED: {
        _Event.RETRIED: _State.OVER,
        _Event.ABANDONED: _State.OVER,
    },
    _State.CANCELLED: {
        _Event.SETTLED: _State.CANCELLED,
        _Event.DECIDED: _State.CANCELLED,
        _Event.ENDED: _State.OVER,
    },
}


class _Question(msgspec.Struct, eq=False):
    request: InputRequest
    answered: anyio.Event = msgspec.field(default_factory=anyio.Event)
    answer: Raw | McpError | None = None

    def settle(self, answer: Raw | McpError) -> None:
        self.answer = answer
        self.answered.set()


class DeclaredCapabilities:
    """The capabilities that a client declared, and the undeclared ones that its upstream needed."""

    def __init__(self, capabilities: Params) -> None:
        self._declared = capabilities
        self._missing: Capabilities = {}

    def renew(self, capabilities: Params) -> None:
        """Takes the capabilities that a retry declares: more or fewer than the request before it."""
        self._declared = capabilities

    def check(self, request: InputRequest) -> None:
        """Raises McpError where the client did not declare the capability that this question needs."""
        missing = missing_capabilities(self._declared, request.method, request.params)
        if missing:
            self._missing = merged(self._missing, missing)
            sentence = f"the client cannot answer {request.method}: it did not declare {named(missing)}"
            raise McpError(refusal_code(self._declared, request.method), sentence)

    def explained(self, outcome: Outcome) -> Outcome:
        """The outcome, or error -32021 if the upstream refused the call for want of an undeclared capability."""
        return undeclared(self._missing) if self._missing and _is_refusal(outcome) else outcome


class ParkedCall:
    """The upstream's `Client` for as long as the call lasts."""

    def __init__(self, call: Call, limits: settings.BridgeSettings) -> None:
        self.id: str | None = None
        """The id by which retries find the call, once it has been parked."""
        self.principal: Final = call.caller.principal
        self.task: asyncio.Task[None] | None = None
        """The task that carries the call to its upstream."""
        self.state = ParkedCallState.RUNNING
        self.round = 0
        """How often the call was resumed; each sealed state is valid for one round."""
        self.outcome: Outcome | None = None
        self._limits = limits
        self._request = call
        """The client's latest request."""
        self._declared = DeclaredCapabilities(call.caller.capabilities)
        self._questions: dict[str, _Question] = {}
        """Unanswered questions by our own keys."""
        self._asked = 0
        self._kept: BoundedQueue[tuple[str, Params]] = BoundedQueue(limits.max_kept_messages, limits.max_kept_bytes)
        """Notifications of the upstream that arrived while no request of the client was open."""
        self._is_referred = False
        """Whether another person has yet to decide."""
        self._changed: asyncio.Event | None = None
        """Set at the next transition, to wake the request that waits for it."""
        self._retried: asyncio.Event | None = None
        """Set at the next retry, to wake the call that waits for it."""

    @property
    def requests(self) -> dict[str, InputRequest]:
        """The questions that the client has yet to answer, by our keys."""
        return {key: question.request for key, question in self._questions.items()}

    async def changed(self) -> None:
        """Returns at the next transition. Only one task may wait."""
        self._changed = asyncio.Event()
        await self._changed.wait()

    @property
    def rights(self) -> Rights:
        """The rights of the client's latest request."""
        return self._request.caller.rights

    def end(self, outcome: Outcome) -> None:
        """Takes the outcome; a second one is ignored."""
        if self.outcome is not None:
            return
        self.outcome = self._declared.explained(outcome)
        self._move(ParkedCallEvent.ENDED)
        for question in self._questions.values():
            question.settle(McpError(INVALID_REQUEST, "the call that this was asked for is over"))
        self._questions.clear()

    @property
    def asked(self) -> int:
        """How many questions the upstream has asked."""
        return self._asked

    def abandon(self) -> None:
        """Cancels the call upstream, if it is not over. Idempotent."""
        if ParkedCallEvent.ABANDONED not in TRANSITIONS.get(self.state, {}):
            return
        self._move(ParkedCallEvent.ABANDONED)
        if self.task is not None:
            self.task.cancel()

    def park(self, event: ParkedCallEvent = ParkedCallEvent.GATHERED) -> None:
        """Parks the call. `event` says which wait is over: for further questions, or for another person's decision."""
        self._move(event)
        if self.round == 0:
            self._request.notes.carried_on = self.task

    def resume(self, call: Call) -> None:
        """Takes a retry with its answers. Raises McpError, and changes nothing, if an answer is malformed."""
        answers = self._answers(call)
        self._move(ParkedCallEvent.RETRIED)
        self._request = call
        self._declared.renew(call.caller.capabilities)
        self.round += 1
        while len(self._kept):
            call.client.notify(*self._kept.take())
        for key, answer in answers.items():
            self._questions.pop(key).settle(answer)
        self._withdraw_undeclared()
        if self.state is ParkedCallState.ASKING and not self._questions:
            self._move(ParkedCallEvent.SETTLED)
            if self._is_referred:
                self._move(ParkedCallEvent.REFERRED)
        if self._retried is not None:
            self._retried.set()

    @contextmanager
    def referred(self) -> Iterator[None]:
        """As `ReferringClient.referred`."""
        self._is_referred = True
        self._move(ParkedCallEvent.REFERRED)
        try:
            yield
        finally:
            self._is_referred = False
            if ParkedCallEvent.DECIDED in TRANSITIONS.get(self.state, {}):
                self._move(ParkedCallEvent.DECIDED)

    async def present(self) -> None:
        """As `ReferringClient.present`."""
        while self.state is ParkedCallState.PARKED:
            self._retried = asyncio.Event()
            await self._retried.wait()

    def notify(self, method: str, params: Params) -> None:
        if self.state is ParkedCallState.PARKED:
            # Copied, because the originals keep the whole message in memory.
            kept = {key: value.copy() for key, value in params.items()}
            self._kept.put((method, kept), size_of(kept))
        else:
            self._request.client.notify(method, params)

    async def ask(self, request: InputRequest) -> Raw:
        if ParkedCallEvent.ASKED not in TRANSITIONS.get(self.state, {}):
            raise McpError(INVALID_REQUEST, "the call that this is asked for is over")
        self._declared.check(request)
        if len(self._questions) >= self._limits.max_questions:
            raise McpError(INVALID_REQUEST, "too many questions at once for one call (bridge.max_questions)")
        self._asked += 1
        key, question = str(self._asked), _Question(request)
        self._questions[key] = question
        self._move(ParkedCallEvent.ASKED)
        try:
            await question.answered.wait()
        finally:
            if self._questions.pop(key, None) is not None and not self._questions:
                self._move(ParkedCallEvent.SETTLED)
        if isinstance(question.answer, McpError):
            raise question.answer
        assert question.answer is not None
        return question.answer

    def _answers(self, call: Call) -> Params:
        """The answers to open questions; others are dropped.

        mrtr, Error Handling: "SHOULD ignore any information it does not recognize".
        """
        try:
            given = parse_object(call.params.get(INPUT_RESPONSES, EMPTY_OBJECT))
            answers = {key: given[key] for key in self._questions if key in given}
            for key, answer in answers.items():
                check_answer(self._questions[key].request.method, answer)
        except InvalidMessage as invalid:
            raise McpError(INVALID_PARAMS, f'"{INPUT_RESPONSES}": {invalid.reason}') from invalid
        return answers

    def _withdraw_undeclared(self) -> None:
        """Refuses open questions that need a capability which the retry no longer declares."""
        for key, question in list(self._questions.items()):
            try:
                self._declared.check(question.request)
            except McpError as refusal:
                self._questions.pop(key).settle(refusal)

    def _move(self, event: ParkedCallEvent) -> None:
        self.state = TRANSITIONS[self.state][event]
        if self._changed is not None:
            self._changed.set()


def _is_refusal(outcome: Outcome) -> bool:
    """Whether the upstream refused the call, or its tool failed: servers report what a tool cannot handle as `isError`.

    An upstream that is gone or too slow is another failure, and is reported as such.
    """
    match outcome:
        case Complete(is_error=True):
            return True
        case Failed(party=Party.UPSTREAM, reason=Reason.PROTOCOL_ERROR):
            return True
        case _:
            return False


def undeclared(capabilities: Capabilities) -> Failed:
    """The failure of a call that needs more capabilities than its client declared (basic, "Capabilities")."""
    sentence = f"this call needs client capabilities that were not declared: {named(capabilities)}"
    data = raw({"requiredCapabilities": capabilities})
    return Failed(ErrorObject(MISSING_CLIENT_CAPABILITY, sentence, data), Party.CLIENT)
