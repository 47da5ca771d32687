"""The stateless era over a pipe that all messages share (2026-07-28, stdio): asked which it speaks, then spoken.

A pipe is read by one reader from beginning to end; `Relay` lets two conversations have it, one after the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from mcproxy.call.upstreams import ServerIdentity
from mcproxy.pending_requests import PeerGone, PendingRequests, RequestTimeout, Timeouts
from mcproxy.protocol.jsonrpc import ErrorResponse, InvalidMessage, Message, Request, Response, parse
from mcproxy.upstream.link import Duplex, Hop, Link, NotAccepted, task_group
from mcproxy.upstream.stateless.conversation import StatelessConversation, kept
from mcproxy.upstream.stateless.probe import QUESTION, Older, identity


class Relay:
    """Implements `link.Duplex` over another one. What arrives while nobody feeds is dropped."""

    def __init__(self, pipe: Duplex) -> None:
        self._pipe = pipe
        self._receive: Callable[[bytes], None] = _drop
        self._ended = anyio.Event()
        self._how = ""

    @property
    def over(self) -> bool:
        return self._ended.is_set()

    async def run(self) -> None:
        self._how = await self._pipe.feed(lambda data: self._receive(data))
        self._ended.set()

    async def send(self, message: Message) -> None:
        await self._pipe.send(message)

    async def feed(self, receive: Callable[[bytes], None]) -> str:
        self._receive = receive
        try:
            await self._ended.wait()
        finally:
            self._receive = _drop
        return self._how


@asynccontextmanager
async def relayed(pipe: Duplex) -> AsyncIterator[Relay]:
    async with task_group() as tasks:
        relay = Relay(pipe)
        tasks.start_soon(relay.run)
        yield relay


@asynccontextmanager
async def over(pipe: Duplex, hop: Hop, patience: float, question: Request = QUESTION) -> AsyncIterator[Link]:
    """A link to a server that answers `question` within `patience` seconds with that it speaks this era.

    Raises Older, Unreachable, or PeerGone where the pipe ends before.
    """
    found = await _probe(pipe, hop, patience, question)
    conversation = StatelessConversation(hop, found, pipe.send, says_cancelled=True)
    async with task_group() as tasks:
        tasks.start_soon(_feed, pipe, conversation)
        async with kept(conversation):
            yield conversation


async def _feed(pipe: Duplex, conversation: StatelessConversation) -> None:
    conversation.lose(await pipe.feed(conversation.receive))


async def _probe(pipe: Duplex, hop: Hop, patience: float, question: Request) -> ServerIdentity:
    hop.underway.step = question.method
    requests = PendingRequests()
    async with task_group() as tasks:
        tasks.start_soon(_await_answer, pipe, hop, requests)
        try:
            answer = await requests.exchange(
                question.method, question.params, pipe.send, Timeouts(patience, patience), id=question.id
            )
        except RequestTimeout as silence:
            raise Older(f"{question.method}: {silence}", silent=True) from silence
        except NotAccepted as error:
            raise PeerGone(str(error)) from error
        return identity(answer)


async def _await_answer(pipe: Duplex, hop: Hop, requests: PendingRequests) -> None:
    def receive(data: bytes) -> None:
        try:
            message = parse(data)
        except InvalidMessage:
            hop.count_junk()
            return
        if isinstance(message, Response | ErrorResponse):
            requests.settle(message)

    requests.fail_all(PeerGone(await pipe.feed(receive)))


def _drop(_: bytes) -> None:
    """Nobody listens between two conversations."""
