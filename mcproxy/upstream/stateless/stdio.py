"""Opens a link to a stateless child (2026-07-28, stdio): the probe, and a handshake that may be tried beside it.

A pipe has one reader from beginning to end; `SharedPipe` passes its messages to the probe, to a handshake tried beside
it, and to the conversation that follows.
"""

from __future__ import annotations

import math
from typing import Final

import anyio

from mcproxy.call.upstreams import ServerIdentity
from mcproxy.pending_requests import PeerGone, PendingRequests, Timeouts
from mcproxy.protocol.jsonrpc import ErrorResponse, InvalidMessage, Request, Response, parse_message
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.link import Duplex, Echoed, NotAccepted, Rejected, Unreachable, task_group
from mcproxy.upstream.stateless.probe import QUESTION, Older, identity

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
        try:
            message = parse_message(data)
        except InvalidMessage as invalid:
            context.count_junk()
            if invalid.id is not None and invalid.may_be_answer:
                requests.fail(invalid.id, Unreachable(f"{QUESTION.method}: the answer is malformed: {invalid.reason}"))
            return
        match message:
            case Response() | ErrorResponse():
                requests.settle(message)
            case Request() if message.method == QUESTION.method:
                requests.fail(QUESTION.id, Echoed())

    requests.fail_all(PeerGone(await pipe.read(receive)))
