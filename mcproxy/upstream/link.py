"""The interface of a link of any era and transport, and the exceptions by which it fails. Connects nothing.

One task owns a link: it enters it, awaits its end and leaves it (requirement R18). Functions that connect
(`connect.connected`, and one for each era and transport) are therefore async context managers that yield a `Link`.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol, assert_never

import anyio
import msgspec
from anyio.abc import TaskGroup

from mcproxy.call.calls import Call, Failed, Handler, Outcome
from mcproxy.call.errors import Reason
from mcproxy.call.identity import LinkOwner
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.concurrency.exception_groups import first_of
from mcproxy.pending_requests import PeerGone, RequestTimeout, Send
from mcproxy.protocol.json.bounds import parse_texts
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    UNSUPPORTED_PROTOCOL_VERSION,
    ErrorObject,
    InvalidMessage,
    Message,
    parse_object,
)
from mcproxy.upstream.context import LinkContext

BOM: Final = b"\xef\xbb\xbf"
"""A byte order mark, which some servers put before JSON. RFC 8259, section 8.1: a parser may ignore it."""
MAX_VERSIONS: Final = 1000
"""Versions that a server says it supports."""


class Unreachable(Exception):
    """No link could be made. The text says why and, where that is known, what to do."""


class Refused(Unreachable):
    """The server answered the handshake with a refusal.

    `said` are its words, unbounded and not redacted; `code` is that of its JSON-RPC error, if it was one.
    """

    def __init__(self, message: str, said: str = "", code: int | None = None) -> None:
        super().__init__(message)
        self.said = said
        self.code = code


class CutOff(Unreachable):
    """The connection ended before the handshake was answered."""


class NotAccepted(Exception):
    """The upstream has provably not executed this request: it may be sent again over another link (R4)."""


class Rejected(Exception):
    """The upstream answered with something other than MCP.

    `status` is the HTTP status, if any; `said` is the beginning of the body, not redacted.
    """

    def __init__(self, message: str, status: int | None = None, said: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.said = said


class Echoed(Rejected):
    """The server writes what it reads, as `cat` does."""

    def __init__(self) -> None:
        super().__init__("the server sent our own message back: it is no MCP server")


class LoginNeeded(Rejected):
    """A person must log in before a request can be sent. The text says why and what to do; `why` is the first part."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


LASTING: Final = frozenset({401, 403, 404, 410})
"""HTTP statuses of a refusal that hardly ends without a change of the configuration or of the server."""


def is_lasting(error: BaseException) -> bool:
    """Whether a failed attempt to connect will fail again until a person changes something.

    True for a refused credential or URL, an unknown name, and a certificate that is not trusted, also as the cause.
    """
    cause: BaseException | None = error
    while cause is not None:
        match cause:
            case LoginNeeded():
                return False  # Nothing is sent before the login, which ends the wait.
            case Rejected(status=status) if status in LASTING:
                return True
            case socket.gaierror():
                return cause.errno != socket.EAI_AGAIN
            case ssl.SSLCertVerificationError():
                return True
        cause = cause.__cause__
    return False


class Link(Protocol):
    """One live connection to one upstream, of one era: a handler in the upstream's own names."""

    @property
    def identity(self) -> ServerIdentity:
        """The server's identity and capabilities, as of when it connected."""

    @property
    def is_closed(self) -> bool:
        """Whether it accepts no more calls: each is then NotAccepted."""

    def __call__(self, call: Call) -> Awaitable[Outcome]:
        """Sends a call.

        Raises NotAccepted, or PeerGone if the connection ended and the outcome of the call is unknown.
        """

    async def wait_closed(self) -> str:
        """Returns when the connection has ended, with the reason."""


def unless_gone(send: Send) -> Send:
    """`send` for cancellations: its errors become PeerGone, which `PendingRequests` expects there."""

    async def send_unless_gone(message: Message) -> None:
        try:
            await send(message)
        except (NotAccepted, Rejected) as error:
            raise PeerGone(str(error)) from error

    return send_unless_gone


def unanswered(context: LinkContext, call: Call, error: RequestTimeout | Rejected) -> Failed:
    """The outcome of a call without a valid answer."""
    match error:
        case RequestTimeout():
            return context.failed(call, str(error), Reason.TIMEOUT)
        case LoginNeeded():
            return context.login_needed(f", {call.method}: {error}", error.why)
        case Rejected():
            return context.failed(call, str(error), Reason.UNAVAILABLE)
        case _:
            assert_never(error)


def supported_versions(error: ErrorObject) -> Sequence[str] | None:
    """The versions that the error of an unsupported one lists (2026-07-28, basic, Error Codes); None without a list."""
    if error.code != UNSUPPORTED_PROTOCOL_VERSION:
        return None
    try:
        return parse_texts(parse_object(error.data or EMPTY_OBJECT)["supported"], MAX_VERSIONS)
    except (InvalidMessage, KeyError, msgspec.MsgspecError):
        return None


Connect = Callable[[LinkContext], AbstractAsyncContextManager[Link]]
"""Makes a link whose handshake is done. Entering raises Unreachable or Rejected."""


Prepare = Callable[[str, LinkOwner, ServerIdentity, Handler], Awaitable[None]]
"""Sends over a new link of this upstream and owner, to this server, what must precede all other calls.

The handler sends a call over that link, and never raises.
"""


async def unprepared(upstream: str, owner: LinkOwner, identity: ServerIdentity, send: Handler) -> None:
    """A `Prepare` that sends nothing."""


Receive = Callable[[bytes], Awaitable[None] | None]
"""Takes a message as bytes. Of a batch (2025-03-26), which may be long, it returns what is to be awaited meanwhile."""


class Duplex(Protocol):
    """A connection on which all messages arrive in one stream, and leave in one: a child's stdio."""

    @property
    def heard(self) -> int:
        """How often anything has come of the peer, messages or not. Each is a sign that it lives."""

    async def send(self, message: Message) -> None:
        """Raises NotAccepted, PeerGone or Rejected."""

    async def read(self, receive: Receive) -> str:
        """Passes each message as bytes to `receive` until the stream ends; returns how it ended."""


@asynccontextmanager
async def task_group() -> AsyncIterator[TaskGroup]:
    """A task group that is cancelled on leaving.

    It raises a task's error itself, not in a group: callers catch by type.
    """
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise first_of(group) from None
