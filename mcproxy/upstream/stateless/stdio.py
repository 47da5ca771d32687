"""The stateless era over a child's stdio (2026-07-28, stdio): the probe, and the link where it succeeds.

A pipe is read by one reader from beginning to end; `HandoverPipe` hands it from the probe to the conversation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from mcproxy.call.upstreams import ServerIdentity
from mcproxy.pending_requests import PeerGone, PendingRequests, RequestTimeout, Timeouts
from mcproxy.protocol.jsonrpc import ErrorResponse, InvalidMessage, Message, Request, Response, parse
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.link import Duplex, Link, NotAccepted, task_group
from mcproxy.upstream.stateless.conversation import StatelessConversation, running
from mcproxy.upstream.stateless.probe import QUESTION, Older, identity


class HandoverPipe:
    """A `Duplex` over another, with one reader after the other. What arrives between two readers is dropped."""

    def __init__(self, pipe: Duplex) -> None:
        self._pipe = pipe
        self._receive: Callable[[bytes], None] = _drop
        self._ended = anyio.Event()
        self._close_reason = ""

    @property
    def is_closed(self) -> bool:
        return self._ended.is_set()

    async def run(self) -> None:
        self._close_reason = await self._pipe.read(lambda data: self._receive(data))
        self._ended.set()

    async def send(self, message: Message) -> None:
        await self._pipe.send(message)

    async def read(self, receive: Callable[[bytes], None]) -> str:
        self._receive = receive
        try:
            await self._ended.wait()
        finally:
            self._receive = _drop
        return self._close_reason


@asynccontextmanager
async def handover(pipe: Duplex) -> AsyncIterator[HandoverPipe]:
    async with task_group() as tasks:
        relay = HandoverPipe(pipe)
        tasks.start_soon(relay.run)
        yield relay


@asynccontextmanager
async def connected(
    pipe: Duplex, context: LinkContext, timeout: float, question: Request = QUESTION
) -> AsyncIterator[Link]:
    """A link to a server that answers `question` within `timeout` seconds, and speaks this era.

    Raises Older, Unreachable, or PeerGone where the pipe ends before.
    """
    found = await _probe(pipe, context, timeout, question)
    conversation = StatelessConversation(context, found, pipe.send, sends_cancelled=True)
    async with task_group() as tasks:
        tasks.start_soon(_read_messages, pipe, conversation)
        async with running(conversation):
            yield conversation


async def _read_messages(pipe: Duplex, conversation: StatelessConversation) -> None:
    conversation.disconnect(await pipe.read(conversation.receive))


async def _probe(pipe: Duplex, context: LinkContext, timeout: float, question: Request) -> ServerIdentity:
    context.awaited = question.method
    requests = PendingRequests()
    async with task_group() as tasks:
        tasks.start_soon(_await_answer, pipe, context, requests)
        try:
            answer = await requests.exchange(
                question.method, question.params, pipe.send, Timeouts(timeout, timeout), id=question.id
            )
        except RequestTimeout as silence:
            raise Older(f"{question.method}: {silence}", silent=True) from silence
        except NotAccepted as error:
            raise PeerGone(str(error)) from error
        return identity(answer)


async def _await_answer(pipe: Duplex, context: LinkContext, requests: PendingRequests) -> None:
    def receive(data: bytes) -> None:
        try:
            message = parse(data)
        except InvalidMessage:
            context.count_junk()
            return
        if isinstance(message, Response | ErrorResponse):
            requests.settle(message)

    requests.fail_all(PeerGone(await pipe.read(receive)))


def _drop(_: bytes) -> None:
    """The reader between two readers."""
