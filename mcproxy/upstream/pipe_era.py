"""Which era a child speaks: a table of what is asked on its pipe, and of what each answer leads to (stdio, versioning).

The newest era is asked first. A handshake is begun if the server is older, or silent: then both wait side by side, and
the first answer counts. Some older servers exit on an unknown method; they are started again, and not asked.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from enum import Enum
from typing import Final

import anyio
from msgspec.structs import replace

from mcproxy.call.upstreams import ServerIdentity
from mcproxy.pending_requests import PeerGone, PendingRequests, Timeouts
from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import ErrorResponse, InvalidMessage, Request, Response
from mcproxy.protocol.methods import DISCOVER
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.conversation import conversing, messages
from mcproxy.upstream.handshake.dialect import HandshakeDialect
from mcproxy.upstream.link import (
    CutOff,
    Duplex,
    Echoed,
    Link,
    NotAccepted,
    Refused,
    Rejected,
    Unreachable,
    task_group,
)
from mcproxy.upstream.pipe import PipeTransport, shared_pipe
from mcproxy.upstream.stateless.dialect import StatelessDialect
from mcproxy.upstream.stateless.probe import QUESTION, Older, identity

StartPipe = Callable[[], AbstractAsyncContextManager[Duplex]]
"""Starts a child. Entering raises Unreachable."""


class EraState(Enum):
    """What a server was asked, and what is awaited."""

    START = "nothing was started"
    ASKING = "the server was asked whether it is stateless"
    ASKING_ALONE = "the server was asked that, and no other era is allowed"
    SHAKING_HANDS = "a handshake is under way, and the question is or soon will be"
    REFUSED = "the handshake was refused: the answer to the question is awaited"
    CUT_OFF = "the pipe ended in the handshake: was it the question that ended it?"
    SHAKING_HANDS_ALONE = "a handshake is under way with a child that is not asked anything else"
    STATELESS = "the server is stateless"
    HANDSHAKE = "the handshake is done"
    FAILED = "there is no link in any era"


class EraEvent(Enum):
    """What was learnt of the server's era."""

    NEW_UNLESS_OLD = "the era is unknown, or was the stateless one"
    OLD_UNLESS_NEW = "the era was that of the handshake"
    ONLY_NEW = "the settings allow the stateless era only"
    ONLY_OLD = "the settings allow the handshake era only"
    FOUND = "the question was answered as stateless servers do"
    OLDER = "the question was answered as older servers do"
    SILENT = "the question was not answered in time"
    DIED = "the pipe ended after the question"
    SHAKEN = "the handshake was done"
    DECLINED = "the handshake was refused"
    ENDED = "the pipe ended in the handshake, after the question"
    FAULT = "something failed that is the same in any era"


TRANSITIONS: Final[Mapping[EraState, Mapping[EraEvent, EraState]]] = {
    EraState.START: {
        EraEvent.NEW_UNLESS_OLD: EraState.ASKING,
        EraEvent.OLD_UNLESS_NEW: EraState.SHAKING_HANDS,
        EraEvent.ONLY_NEW: EraState.ASKING_ALONE,
        EraEvent.ONLY_OLD: EraState.SHAKING_HANDS_ALONE,
        EraEvent.FAULT: EraState.FAILED,
    },
    EraState.ASKING: {
        EraEvent.FOUND: EraState.STATELESS,
        EraEvent.OLDER: EraState.SHAKING_HANDS,
        EraEvent.SILENT: EraState.SHAKING_HANDS,
        EraEvent.DIED: EraState.SHAKING_HANDS_ALONE,
        EraEvent.FAULT: EraState.FAILED,
    },
    EraState.ASKING_ALONE: {
        EraEvent.FOUND: EraState.STATELESS,
        EraEvent.OLDER: EraState.FAILED,
        EraEvent.DIED: EraState.FAILED,
        EraEvent.FAULT: EraState.FAILED,
    },
    EraState.SHAKING_HANDS: {
        EraEvent.SHAKEN: EraState.HANDSHAKE,
        EraEvent.FOUND: EraState.STATELESS,
        EraEvent.DECLINED: EraState.REFUSED,
        EraEvent.ENDED: EraState.CUT_OFF,
        EraEvent.FAULT: EraState.FAILED,
    },
    EraState.REFUSED: {
        EraEvent.FOUND: EraState.STATELESS,
        EraEvent.OLDER: EraState.FAILED,
        EraEvent.SILENT: EraState.FAILED,
        EraEvent.DIED: EraState.FAILED,
        EraEvent.FAULT: EraState.FAILED,
    },
    EraState.CUT_OFF: {
        EraEvent.FOUND: EraState.STATELESS,
        EraEvent.OLDER: EraState.FAILED,
        EraEvent.DIED: EraState.SHAKING_HANDS_ALONE,
        EraEvent.FAULT: EraState.FAILED,
    },
    EraState.SHAKING_HANDS_ALONE: {
        EraEvent.SHAKEN: EraState.HANDSHAKE,
        EraEvent.FAULT: EraState.FAILED,
    },
}


async def over_pipe(start: StartPipe, context: LinkContext, stack: AsyncExitStack) -> Link:
    """Starts a child, once or twice, and connects in the era that it speaks. Raises Unreachable or Rejected."""
    return await _EraChoice(start, context, stack).link()


class _EraChoice:
    """One attempt to connect to a child. Each state has a method, which returns the event that ends it."""

    def __init__(self, start: StartPipe, context: LinkContext, stack: AsyncExitStack) -> None:
        self._start = start
        self._context = context
        self._stack = stack
        self._child = AsyncExitStack()
        """The child that was started last, and all that reads or writes its pipe."""
        self._pipe: Duplex
        self._probe: PipeProbe
        self._link: Link
        self._error: Unreachable | Rejected
        self._death = ""
        """What was said of a child that ended after the question."""

    async def link(self) -> Link:
        await self._stack.enter_async_context(self._child)
        acts: Mapping[EraState, Callable[[], Awaitable[EraEvent]]] = {
            EraState.START: self._begin,
            EraState.ASKING: self._ask,
            EraState.ASKING_ALONE: self._ask_alone,
            EraState.SHAKING_HANDS: self._shake_hands,
            EraState.REFUSED: self._ask_after_refusal,
            EraState.CUT_OFF: self._learn_why,
            EraState.SHAKING_HANDS_ALONE: self._shake_hands_alone,
        }
        state = EraState.START
        while state in TRANSITIONS:
            state = TRANSITIONS[state][await acts[state]()]
        if state is EraState.FAILED:
            raise self._error
        if state is EraState.STATELESS:
            stateless = stateless_over_pipe(self._pipe, self._context, self._probe)
            self._link = await self._child.enter_async_context(stateless)
        return self._link

    async def _begin(self) -> EraEvent:
        era, expected = self._context.spec.era, self._context.hints.expected
        if era == "legacy":
            return EraEvent.ONLY_OLD
        try:
            pipe = await self._child.enter_async_context(self._start())
        except Unreachable as error:
            self._error = error
            return EraEvent.FAULT
        self._pipe = await self._child.enter_async_context(shared_pipe(pipe))
        tasks = await self._child.enter_async_context(task_group())
        self._probe = PipeProbe(self._pipe, self._context)
        is_later = expected is Era.HANDSHAKE and era == "auto"
        tasks.start_soon(self._probe.run, self._context.spec.timeouts.probe if is_later else 0)
        if era == "modern":
            return EraEvent.ONLY_NEW
        return EraEvent.OLD_UNLESS_NEW if is_later else EraEvent.NEW_UNLESS_OLD

    async def _ask(self) -> EraEvent:
        timeouts, is_unknown = self._context.spec.timeouts, self._context.hints.expected is None
        # A server known to be stateless may be slow to start: it gets longer before the other era is tried.
        return await self._answer(timeouts.probe if is_unknown else timeouts.connect / 2)

    async def _ask_alone(self) -> EraEvent:
        event = await self._answer()
        outcome = self._probe.outcome
        if isinstance(outcome, Older):
            self._error = Unreachable(f"it does not speak the stateless era: {outcome}")
        elif isinstance(outcome, PeerGone):
            self._error = Unreachable(str(outcome))
        return event

    async def _shake_hands(self) -> EraEvent:
        handshake = handshake_over_pipe(self._pipe, self._context, give_up=self._probe.found)
        try:
            self._link = await self._child.enter_async_context(handshake)
        except (Unreachable, Rejected) as error:
            self._error = error
            return self._after_handshake(error)
        self._probe.stop()
        return EraEvent.SHAKEN

    def _after_handshake(self, error: Unreachable | Rejected) -> EraEvent:
        match error:
            case Refused():
                return EraEvent.DECLINED
            case CutOff() if self._probe.is_sent:
                return EraEvent.ENDED
            case Unreachable() if self._probe.found.is_set():
                return EraEvent.FOUND
            case _:
                return EraEvent.FAULT

    async def _ask_after_refusal(self) -> EraEvent:
        refusal = self._error
        self._probe.ask()
        event = await self._answer(self._context.spec.timeouts.probe)
        self._error = refusal
        return event

    async def _learn_why(self) -> EraEvent:
        """A child that is slow to start may have died of the question."""
        cut_off = self._error
        event = await self._answer()
        self._error = cut_off
        return event

    async def _shake_hands_alone(self) -> EraEvent:
        await self._child.aclose()
        try:
            with self._naming_death():
                pipe = await self._child.enter_async_context(self._start())
                self._link = await self._child.enter_async_context(handshake_over_pipe(pipe, self._context))
        except (Unreachable, Rejected) as error:
            self._error = error
            return EraEvent.FAULT
        return EraEvent.SHAKEN

    @contextmanager
    def _naming_death(self) -> Iterator[None]:
        """Adds to an Unreachable how the child before ended, if that was otherwise."""
        try:
            yield
        except Unreachable as error:
            if not self._death or self._death in str(error):
                raise
            raise Unreachable(f"{error}; asked {DISCOVER} before, {self._death}") from error

    async def _answer(self, seconds: float = math.inf) -> EraEvent:
        """The answer to the question, as an event."""
        with anyio.move_on_after(seconds):
            await self._probe.answered.wait()
        match self._probe.outcome:
            case None:
                return EraEvent.SILENT
            case ServerIdentity():
                return EraEvent.FOUND
            case Older():
                return EraEvent.OLDER
            case PeerGone() as gone:
                self._death = str(gone)
                return EraEvent.DIED
            case Unreachable() | Rejected() as error:
                self._error = error
                return EraEvent.FAULT


def handshake_over_pipe(
    pipe: Duplex, context: LinkContext, give_up: anyio.Event | None = None
) -> AbstractAsyncContextManager[Link]:
    """A link of the handshake era. Raises Unreachable or Rejected. `give_up` ends an unfinished handshake."""
    return conversing(context, HandshakeDialect(context), PipeTransport(pipe, context, give_up))


@asynccontextmanager
async def stateless_over_pipe(pipe: Duplex, context: LinkContext, probe: PipeProbe) -> AsyncIterator[Link]:
    """A link to the server that answered the probe. Raises as `PipeProbe.identity` does."""
    dialect = StatelessDialect(context, probe.identity())
    async with conversing(context, dialect, PipeTransport(pipe, context)) as conversation:
        yield conversation


UNTIL_STOPPED: Final = Timeouts(math.inf, math.inf)
"""The probe's timeout: the attempt to connect has a deadline, and a successful handshake stops the probe."""


ProbeOutcome = ServerIdentity | Older | Unreachable | Rejected | PeerGone
"""PeerGone if the pipe ended before an answer."""


class PipeProbe:
    """One `server/discover` on a pipe, and its outcome. A handshake may be tried beside it: the first answer counts."""

    def __init__(self, pipe: Duplex, context: LinkContext) -> None:
        self._pipe = pipe
        self._context = context
        self._scope = anyio.CancelScope()
        self._wanted = anyio.Event()
        self.outcome: ProbeOutcome | None = None
        """None until there is an answer."""
        self.is_sent = False
        """Whether the server was asked."""
        self.answered = anyio.Event()
        self.found = anyio.Event()
        """Set if the server turns out to be stateless."""

    async def run(self, delay: float) -> None:
        """Sends the probe after `delay` seconds, or upon `ask`; ends with the answer, or upon `stop`."""
        with self._scope:
            with anyio.move_on_after(delay):
                await self._wanted.wait()
            self.is_sent = True
            self.outcome = await self._answer()
            self.answered.set()
            if isinstance(self.outcome, ServerIdentity):
                self.found.set()

    def ask(self) -> None:
        """Sends the probe now, without waiting out the delay. Idempotent."""
        self._wanted.set()

    def stop(self) -> None:
        """Sends no probe, and waits for no answer. Idempotent."""
        self._scope.cancel()

    def identity(self) -> ServerIdentity:
        """The server's identity. Raises the outcome where it is an error."""
        assert self.outcome is not None, "there is no answer yet"
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def _answer(self) -> ProbeOutcome:
        self._context.awaited = self._context.awaited or QUESTION.method
        requests = PendingRequests()
        async with task_group() as tasks:
            tasks.start_soon(_read_answer, self._pipe, self._context, requests)
            outcome = await self._exchange(requests)
        return outcome  # noqa: RET504  # a return inside would leave mypy in doubt whether the group swallows errors

    async def _exchange(self, requests: PendingRequests) -> ProbeOutcome:
        try:
            return identity(
                await requests.exchange(
                    QUESTION.method, QUESTION.params, self._pipe.send, UNTIL_STOPPED, id=QUESTION.id
                )
            )
        except NotAccepted as error:
            return PeerGone(str(error))
        except (Older, Unreachable, Rejected, PeerGone) as error:
            return error


async def _read_answer(pipe: Duplex, context: LinkContext, requests: PendingRequests) -> None:
    def receive(data: bytes) -> None:
        message = messages(data, batches=False, oddities=context.oddities)[0]
        match message:
            case InvalidMessage():
                context.count_junk()
                if message.id is not None and message.may_be_answer:
                    why = f"{QUESTION.method}: the answer is malformed: {message.reason}"
                    requests.fail(message.id, Unreachable(why))
            case ErrorResponse(id=None):
                requests.settle(replace(message, id=QUESTION.id))
            case Response() | ErrorResponse():
                requests.settle(message)
            case Request() if message.method == QUESTION.method:
                requests.fail(QUESTION.id, Echoed())

    requests.fail_all(PeerGone(await pipe.read(receive)))
