"""A pipe, such as a child's stdio: all messages arrive in one stream and leave in one.

`SharedPipe` lets a probe and a handshake read one pipe side by side; `Liveness` ends a conversation with a server that
hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup

from mcproxy.pending_requests import PeerGone, RequestTimeout, Timeouts
from mcproxy.protocol.jsonrpc import ErrorResponse, Message
from mcproxy.settings import UpstreamTimeouts
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.conversation import Conversation
from mcproxy.upstream.link import Duplex, NotAccepted, Receive, Rejected, task_group

MOMENT: Final = 0.1
"""Seconds in which what has come is read: where the gateway itself stood still, its timers are due before that."""


class PipeTransport:
    """Implements `conversation.Transport`. `give_up` ends a conversation that is not open yet."""

    carries_exchanges = False

    def __init__(self, pipe: Duplex, context: LinkContext, give_up: anyio.Event | None = None) -> None:
        self._pipe = pipe
        self._context = context
        self._give_up = give_up
        self.send = pipe.send

    def attach(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._liveness = Liveness(self._pipe, lambda: self._context.spec.timeouts, conversation)
        self.note_unanswered = self._liveness.doubt
        if self._give_up is not None:
            conversation.tasks.start_soon(self._end_unopened, self._give_up)

    async def _end_unopened(self, give_up: anyio.Event) -> None:
        await give_up.wait()
        if self._conversation.version is None:
            self._conversation.disconnect("the server answered in another era")

    async def receive(self) -> str:
        return await self._pipe.read(self._conversation.receive)

    def check(self, error: ErrorResponse) -> None:
        """Requests have no responses of their own here."""

    async def close(self, *, politely: bool) -> None:
        self._liveness.close()


class SharedPipe:
    """A `Duplex` over another: each reader gets all messages; without readers they are dropped."""

    def __init__(self, pipe: Duplex) -> None:
        self._pipe = pipe
        self._readers: list[Receive] = []
        self._receive: Receive = self._receive_by_all
        self._ended = anyio.Event()
        self._close_reason = ""

    async def run(self) -> None:
        self._close_reason = await self._pipe.read(lambda data: self._receive(data))
        self._ended.set()

    @property
    def heard(self) -> int:
        return self._pipe.heard

    async def send(self, message: Message) -> None:
        await self._pipe.send(message)

    async def read(self, receive: Receive) -> str:
        self._set_readers([*self._readers, receive])
        try:
            await self._ended.wait()
        finally:
            self._set_readers([reader for reader in self._readers if reader is not receive])
        return self._close_reason

    def _set_readers(self, readers: list[Receive]) -> None:
        self._readers = readers
        self._receive = readers[0] if len(readers) == 1 else self._receive_by_all

    async def _receive_by_all(self, data: bytes) -> None:
        for reader in self._readers:
            taken = reader(data)
            if taken is not None:
                await taken


@asynccontextmanager
async def shared_pipe(pipe: Duplex) -> AsyncIterator[SharedPipe]:
    """`pipe` for several readers; read to its end inside the `with` block."""
    async with task_group() as tasks:
        it = SharedPipe(pipe)
        tasks.start_soon(it.run)
        yield it


class Doubted(Protocol):
    """What `Liveness` needs of a conversation."""

    @property
    def tasks(self) -> TaskGroup:
        """In which it is asked whether it lives."""

    def may_be_silent(self) -> bool:
        """Whether the server waits for an answer of ours, or works on a task, for which it has longer."""

    def ask(self, timeouts: Timeouts) -> Awaitable[object]:
        """Asks the server what every server answers. Raises RequestTimeout, and what sending raises."""

    def disconnect(self, reason: str) -> None:
        """Ends the conversation."""


class Liveness:
    """The doubts about the server at the other end of a pipe: one that hangs is not waited for.

    A server that hangs reads nothing and says nothing: each of its calls would time out, for as long as it runs.
    Nothing is done before a call was given up, and one that says anything, or writes to its stderr, is left alone: it
    may be busy. The conversation ends if it does not answer a question either.
    """

    def __init__(self, pipe: Duplex, timeouts: Callable[[], UpstreamTimeouts], conversation: Doubted) -> None:
        self._pipe = pipe
        self._timeouts = timeouts
        self._conversation = conversation
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        """Due once the server has been listened to for long enough."""
        self._is_doubted = False
        self._is_over = False

    def close(self) -> None:
        """Doubts no more."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def doubt(self) -> None:
        """Notes that a call was given up. Never blocks."""
        if self._is_doubted or self._is_over or self._conversation.may_be_silent():
            return
        self._is_doubted = True
        listening = self._timeouts().idle
        self._timer = self._loop.call_later(
            listening, self._look, self._pipe.heard, self._loop.time(), context=Context()
        )

    def _look(self, heard: int, began: float) -> None:
        self._timer = None
        if self._pipe.heard == heard:
            self._conversation.tasks.start_soon(self._examine, heard, began)
        else:
            self._is_doubted = False

    async def _examine(self, heard: int, began: float) -> None:
        try:
            await self._end_if_hung(heard, began)
        finally:
            self._is_doubted = False

    async def _end_if_hung(self, heard: int, began: float) -> None:
        """Asks a child that has said nothing since `began` for a word; ends the connection if none comes."""
        # The question is no harder than `initialize`, for which a child that was just started has that long.
        patience = max(self._timeouts().idle, self._timeouts().connect)
        try:
            await self._conversation.ask(Timeouts(patience, patience))
        except RequestTimeout:
            await anyio.sleep(MOMENT)
        except (NotAccepted, PeerGone, Rejected):
            return
        if self._pipe.heard == heard:
            seconds = self._loop.time() - began
            self._conversation.disconnect(
                f"the child hangs: it said nothing for {seconds:.0f} s, and answers no question"
            )
