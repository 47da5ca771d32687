"""What a link is, whatever its era and transport, and the ways in which it fails. Connects nothing itself.

A link is entered, used for its teardown and left inside the one task that owns it (requirement R18): the functions
named `connected` are async context managers that give one, over which `Link` is the shape that callers see.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from mcproxy.call.calls import Call, Outcome
from mcproxy.call.clients import Change, Listener
from mcproxy.call.identity import ForwardedCredentials, LinkOwner
from mcproxy.call.upstreams import PushChannel, ServerIdentity
from mcproxy.pending_requests import Timeouts
from mcproxy.protocol.jsonrpc import ErrorObject, Message, Params
from mcproxy.protocol.methods import Method
from mcproxy.settings import UpstreamSettings
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.redaction import Redaction
from mcproxy.upstream.stderr_tail import StderrTail


class Unreachable(Exception):
    """No link could be made. The text says why, and what to do where that is known."""


class NotAccepted(Exception):
    """The upstream has provably not executed this request: it may be sent again over another link (R4)."""


class Rejected(Exception):
    """The upstream answered with something that is no MCP. `status` is the HTTP status, where there is one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Ownership:
    """The session that a link of `connection: session` is for, and what its client declared."""

    owner: str
    capabilities: Params
    listener: Listener | None


@dataclass(slots=True)
class ConnectHints:
    """What is known about an upstream when it is connected next. Links that serve the same callers share it."""

    is_older: bool = False
    """Of the handshake era, though its settings leave that open (versioning: an era is "a property of the server")."""
    handshake_first: bool = False
    """Try the handshake before the newest era: for callers of that era, where the server may serve both."""


@dataclass(slots=True)
class Underway:
    """What an attempt to connect waits for, so that whoever gives it up can say so."""

    step: str = ""


@dataclass(frozen=True, slots=True)
class _Patience:
    """What the settings say of waiting for answers, read once: each call goes by it."""

    call: Timeouts
    list: Timeouts
    task: Timeouts
    """For the result of a task, which may say nothing until it is there."""


@dataclass(slots=True, eq=False)
class Hop:
    """What a link needs to know: whom to reach, for whom, and where to say what it hears between calls."""

    spec: UpstreamSettings
    """As of now: a reload that needs no other link has it `adopt` another. All else stays as it is."""
    metrics: Metrics
    publish: Callable[[Change | PushChannel], None]
    ownership: Ownership | None = None
    """None where the link is shared by everybody."""
    findings: ConnectHints = field(default_factory=ConnectHints)
    credentials: ForwardedCredentials | None = None
    """What its callers brought, all of them the same; the link is for nobody else (requirement R39)."""
    redact: Redaction = field(init=False)
    """For whatever a peer said, before an operator or a client reads it in a sentence of ours (R44)."""
    stderr: StderrTail = field(init=False)
    underway: Underway = field(init=False)
    _patience: _Patience = field(init=False)

    def __post_init__(self) -> None:
        self.adopt(self.spec)
        self.redact = Redaction.of(self.spec, self.credentials.headers.values() if self.credentials is not None else ())
        self.stderr = StderrTail(self.redact)
        self.underway = Underway()

    def adopt(self, spec: UpstreamSettings) -> None:
        """Goes by other settings from now on."""
        self.spec = spec
        limits = spec.timeouts
        self._patience = _Patience(
            call=Timeouts(limits.idle, limits.total),
            list=Timeouts(limits.list, limits.total),
            task=Timeouts(limits.total, limits.total),
        )

    def timeouts(self, row: Method) -> Timeouts:
        """How long an answer to such a request may take."""
        if row.waits:
            return self._patience.task
        return self._patience.call if row.lists is None else self._patience.list

    @property
    def owner(self) -> LinkOwner:
        if self.ownership is not None:
            return self.ownership.owner
        return self.credentials.key if self.credentials is not None else None

    @property
    def headers(self) -> Mapping[str, str]:
        """Those of the settings, and above them what its callers brought."""
        if self.credentials is None:
            return self.spec.headers
        own = self.spec.credentials.fields(self.credentials.headers)
        names = {name.lower() for name in own}
        return {**{name: self.spec.headers[name] for name in self.spec.headers if name.lower() not in names}, **own}

    def redacted(self, error: ErrorObject) -> ErrorObject:
        """The upstream's own error stays its own, but for what it quotes of our secrets (R44)."""
        data = None if error.data is None else self.redact.in_json(error.data)
        return replace(error, message=self.redact(error.message), data=data)

    def count_junk(self) -> None:
        """Notes that the upstream sent what is no message, or none that may be sent (R16)."""
        self.metrics.junk_lines.labels(self.spec.name).inc()


class Link(Protocol):
    """One live connection to one upstream, of one era: a handler in the upstream's own names."""

    @property
    def identity(self) -> ServerIdentity: ...

    @property
    def over(self) -> bool:
        """Whether the connection has ended; every call is then NotAccepted."""

    def __call__(self, call: Call) -> Awaitable[Outcome]:
        """Raises NotAccepted, or PeerGone where the connection ended and nobody knows what became of the call."""

    async def ended(self) -> str:
        """Returns when the connection has ended, with the reason."""


Connect = Callable[[Hop], AbstractAsyncContextManager[Link]]
"""Enters a link whose handshake is done. Entering raises Unreachable or Rejected."""


class Duplex(Protocol):
    """A duplex on which all that an upstream says arrives in one stream: a child's stdio, HTTP+SSE."""

    async def send(self, message: Message) -> None:
        """Raises NotAccepted, PeerGone or Rejected."""

    async def feed(self, receive: Callable[[bytes], None]) -> str:
        """Hands over each message as its bytes until the stream ends; returns how it ended."""


@asynccontextmanager
async def task_group() -> AsyncIterator[TaskGroup]:
    """A task group that is cancelled when left, and raises the error that ended it bare: callers catch by type."""
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise _first(group) from None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
