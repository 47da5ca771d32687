"""One call of a stateless client to an upstream that may ask while it runs, alive across the client's requests.

A request is attached to it, or nobody is: then what the upstream says is kept for the next one. Refuses what the
client did not declare; seals nothing, times nothing, and starts no task.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

import anyio
from msgspec import Raw

from mcproxy import settings
from mcproxy.call.calls import Call, Failed, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.concurrency.bounded_queue import BoundedQueue
from mcproxy.protocol.inputs import INPUT_RESPONSES, Capabilities, check_answer, merged, missing_capabilities, named
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


@dataclass(eq=False, slots=True)
class _AskedInput:
    request: InputRequest
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: Raw | McpError | None = None

    def settle(self, answer: Raw | McpError) -> None:
        self.answer = answer
        self.answered.set()


class Declared:
    """What a client can be asked, and what an upstream wanted to ask it beyond that."""

    def __init__(self, capabilities: Params) -> None:
        self._capabilities = capabilities
        self._refused: Capabilities = {}

    def renew(self, capabilities: Params) -> None:
        """A retry may declare more, or less, than the request before it."""
        self._capabilities = capabilities

    def check(self, request: InputRequest) -> None:
        """Raises McpError where the client did not declare that it can be asked this."""
        missing = missing_capabilities(self._capabilities, request.method, request.params)
        if missing:
            self._refused = merged(self._refused, missing)
            sentence = f"the client cannot answer {request.method}: it did not declare {named(missing)}"
            raise McpError(INVALID_REQUEST, sentence)

    def told(self, outcome: Outcome) -> Outcome:
        """What to tell the client of its call: where that fails after such a refusal, what it should have declared."""
        return lacking(self._refused) if self._refused and _is_refusal(outcome) else outcome


class Unaskable:
    """The upstream's `Client` during a call in which nothing can be asked: it is told things, and that is all."""

    __slots__ = ("_call", "_declared")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._declared: Declared | None = None
        """Once something was to be asked."""

    def notify(self, method: str, params: Params) -> None:
        self._call.client.notify(method, params)

    async def ask(self, request: InputRequest) -> Raw:
        if self._declared is None:
            self._declared = Declared(self._call.caller.capabilities)
        self._declared.check(request)
        return await self._call.client.ask(request)

    def told(self, outcome: Outcome) -> Outcome:
        """As `Declared.told`."""
        return outcome if self._declared is None else self._declared.told(outcome)


class ParkedCall:
    """The upstream's `Client` meanwhile."""

    def __init__(self, call: Call, limits: settings.BridgeSettings) -> None:
        self.id: str | None = None
        """By which its client's retries find it, once it has been parked."""
        self.principal: Final = call.caller.principal
        self.task: asyncio.Task[None] | None = None
        """The task in which the call goes to the upstream."""
        self.round = 0
        """How often it was resumed; a ticket is good for one round."""
        self.outcome: Outcome | None = None
        self._limits = limits
        self._attached: Call | None = call
        self._declared = Declared(call.caller.capabilities)
        self._questions: dict[str, _AskedInput] = {}
        self._asked = 0
        self._missed: BoundedQueue[tuple[str, Params]] = BoundedQueue(limits.max_kept_messages, limits.max_kept_bytes)
        self._stirred: asyncio.Event | None = None
        """For who waits now."""

    @property
    def requests(self) -> dict[str, InputRequest]:
        """What the client has still to answer, by our keys."""
        return {key: question.request for key, question in self._questions.items()}

    async def stirred(self) -> None:
        """Returns when the upstream asked for something next, or the call ended. For one at a time."""
        self._stirred = asyncio.Event()
        await self._stirred.wait()

    def finish(self, outcome: Outcome) -> None:
        """The first outcome is the one that counts."""
        if self.outcome is None:
            self.outcome = self._declared.told(outcome)
            for question in self._questions.values():
                question.settle(McpError(INVALID_REQUEST, "the call that this was asked for is over"))
            self._stir()

    def cancel(self) -> None:
        """Ends the call, if it is not over."""
        if self.outcome is None and self.task is not None:
            self.task.cancel()

    def park(self) -> None:
        self._attached = None

    def resume(self, call: Call) -> None:
        """Attaches a retry, with the answers that it brings. Raises McpError, and does nothing, if one is malformed."""
        answers = self._answers(call)
        self._attached = call
        self._declared.renew(call.caller.capabilities)
        self.round += 1
        while len(self._missed):
            call.client.notify(*self._missed.take())
        for key, answer in answers.items():
            self._questions.pop(key).settle(answer)
        self._withdraw_undeclared()

    def notify(self, method: str, params: Params) -> None:
        if self._attached is None:
            # As they came they hold on to the whole message, whatever else was in it.
            kept = {key: value.copy() for key, value in params.items()}
            self._missed.put((method, kept), size_of(kept))
        else:
            self._attached.client.notify(method, params)

    async def ask(self, request: InputRequest) -> Raw:
        if self.outcome is not None:
            raise McpError(INVALID_REQUEST, "the call that this is asked for is over")
        self._declared.check(request)
        if len(self._questions) >= self._limits.max_questions:
            raise McpError(INVALID_REQUEST, "too many questions at once for one call (bridge.max_questions)")
        self._asked += 1
        key, question = str(self._asked), _AskedInput(request)
        self._questions[key] = question
        self._stir()
        try:
            await question.answered.wait()
        finally:
            self._questions.pop(key, None)
        if isinstance(question.answer, McpError):
            raise question.answer
        assert question.answer is not None
        return question.answer

    def _answers(self, call: Call) -> Params:
        """Those to open questions: mrtr, Error Handling, "SHOULD ignore any information it does not recognize"."""
        try:
            given = parse_object(call.params.get(INPUT_RESPONSES, EMPTY_OBJECT))
            answers = {key: given[key] for key in self._questions if key in given}
            for key, answer in answers.items():
                check_answer(self._questions[key].request.method, answer)
        except InvalidMessage as invalid:
            raise McpError(INVALID_PARAMS, f'"{INPUT_RESPONSES}": {invalid.reason}') from invalid
        return answers

    def _withdraw_undeclared(self) -> None:
        """A retry may declare less than the request before it, and must not be asked for more."""
        for key, question in list(self._questions.items()):
            try:
                self._declared.check(question.request)
            except McpError as refusal:
                self._questions.pop(key).settle(refusal)

    def _stir(self) -> None:
        if self._stirred is not None:
            self._stirred.set()


def _is_refusal(outcome: Outcome) -> bool:
    """Whether the upstream itself says no. That it is gone or too slow is told as that."""
    match outcome:
        case Failed(party=Party.UPSTREAM, reason=Reason.PROTOCOL_ERROR):
            return True
        case _:
            return False


def lacking(capabilities: Capabilities) -> Failed:
    """The failure of a call that needs more than its client declared (basic, "Capabilities")."""
    sentence = f"this call needs client capabilities that were not declared: {named(capabilities)}"
    data = raw({"requiredCapabilities": capabilities})
    return Failed(ErrorObject(MISSING_CLIENT_CAPABILITY, sentence, data), Party.CLIENT)
