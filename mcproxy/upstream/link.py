"""The interface of a link of any era and transport, and the exceptions by which it fails. Connects nothing.

A link is entered, used for its teardown and left inside the one task that owns it (requirement R18): functions that
connect (`connect.connected`, and one per era and transport) are async context managers that give a `Link`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol, assert_never

import anyio
from anyio.abc import TaskGroup

from mcproxy.call.calls import Call, Failed, Outcome
from mcproxy.call.errors import Reason
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.concurrency.exception_groups import first_of
from mcproxy.pending_requests import PeerGone, RequestTimeout, Send
from mcproxy.protocol.json.malformed import reads_as_call
from mcproxy.protocol.jsonrpc import PARSE_ERROR, InvalidMessage, Message
from mcproxy.upstream.context import LinkContext

BOM: Final = b"\xef\xbb\xbf"
"""A byte order mark, which some servers put before JSON. RFC 8259, section 8.1: a parser may ignore it."""


class Unreachable(Exception):
    """No link could be made. The text says why, and what to do where that is known."""


class Refused(Unreachable):
    """The server answered the handshake, and refused it."""


class NotAccepted(Exception):
    """The upstream has provably not executed this request: it may be sent again over another link (R4)."""


class Rejected(Exception):
    """The upstream answered with something that is not MCP. `status` is the HTTP status, where there is one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class LoginNeeded(Rejected):
    """A person must log in before a request can be sent. The text says why and what to do; `why` is a part of it."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class Link(Protocol):
    """One live connection to one upstream, of one era: a handler in the upstream's own names."""

    @property
    def identity(self) -> ServerIdentity:
        """What the server said of itself when it connected."""

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more calls: each is then NotAccepted."""

    def __call__(self, call: Call) -> Awaitable[Outcome]:
        """Raises NotAccepted, or PeerGone where the connection ended and the outcome of the call is unknown."""

    async def wait_closed(self) -> str:
        """Returns when the connection has ended, with the reason."""


def unless_gone(send: Send) -> Send:
    """`send` for a cancellation: all that it raises becomes PeerGone, which `PendingRequests` expects there."""

    async def send_unless_gone(message: Message) -> None:
        try:
            await send(message)
        except (NotAccepted, Rejected) as error:
            raise PeerGone(str(error)) from error

    return send_unless_gone


def unanswered(context: LinkContext, call: Call, error: RequestTimeout | Rejected) -> Failed:
    """The outcome of a call that got no answer, or none that counts."""
    match error:
        case RequestTimeout():
            return context.failed(call, str(error), Reason.TIMEOUT)
        case LoginNeeded():
            return context.login_needed(f", {call.method}: {error}", error.why)
        case Rejected():
            return context.failed(call, str(error), Reason.UNAVAILABLE)
        case _:
            assert_never(error)


def is_nearly_json(invalid: InvalidMessage, data: bytes) -> bool:
    """Whether a message that could not be read may be an answer: no valid JSON, and no call by its first members."""
    return invalid.code == PARSE_ERROR and not reads_as_call(data)


Connect = Callable[[LinkContext], AbstractAsyncContextManager[Link]]
"""Enters a link whose handshake is done. Entering raises Unreachable or Rejected."""


class Duplex(Protocol):
    """A duplex on which all that an upstream sends arrives in one stream: a child's stdio, HTTP+SSE."""

    async def send(self, message: Message) -> None:
        """Raises NotAccepted, PeerGone or Rejected."""

    async def read(self, receive: Callable[[bytes], None]) -> str:
        """Hands over each message as its bytes until the stream ends; returns how it ended."""


@asynccontextmanager
async def task_group() -> AsyncIterator[TaskGroup]:
    """A task group that is cancelled when left, and raises the error that ended it bare: callers catch by type."""
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise first_of(group) from None
