"""What one link is made with: settings, metrics, owner, credentials, and where it publishes what arrives between calls.

Every transport and conversation of a link shares one `LinkContext`. Values and look-ups; connects nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Protocol

import msgspec
import structlog
from msgspec.structs import replace
from yarl import URL

from mcproxy.call.calls import Call, Failed, LoginNeed
from mcproxy.call.clients import Change, Listener
from mcproxy.call.errors import Party, Reason
from mcproxy.call.identity import ForwardedCredentials, LinkOwner
from mcproxy.call.upstreams import PushChannel, UnannouncedLists
from mcproxy.http.client import ClientResponse
from mcproxy.pending_requests import Timeouts
from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, ErrorObject, Params
from mcproxy.protocol.methods import INPUT_CAPABILITIES, METHODS, Method, row_of
from mcproxy.settings import UpstreamSettings, UpstreamTimeouts
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.oddities import Oddities
from mcproxy.upstream.redaction import Redaction
from mcproxy.upstream.stderr_tail import StderrTail

log = structlog.get_logger()

MAX_STRAY_OUTPUT: Final = 200
"""Bytes that an error quotes of an output line that is no message."""
DOUBTFUL_AFTER: Final = 3
"""Failed attempts in a row after which the server's era counts as unknown."""


class LinkCredential(Protocol):
    """A credential that authorizes a link's requests, beside the headers in its settings."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers to send with each request."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values to redact from quotations of the server (R44)."""


class HttpConnections(Protocol):
    """The connections that a link's HTTP requests use (`http.client.Pool`)."""

    def request(self, method: str, url: URL, head: bytes, body: bytes | None = None) -> Awaitable[ClientResponse]:
        """Sends a request.

        Raises ConnectFailed if nothing was sent, and ConnectionBroken if it is unknown whether the server acted on it.
        """


class CredentialSource(Protocol):
    """The source of a changing credential for a link over HTTP: `oauth.authorizer` or `headers_command`."""

    @property
    def generation(self) -> int:
        """The number of the present credential; 0 where there is none."""

    @property
    def on_trial(self) -> bool:
        """Whether the credential replaces one that the server refused, and has not been accepted yet."""

    def present(self) -> LinkCredential | None:
        """The credential to send, if it is available at once; else None, and `credential` waits for it."""

    async def credential(self) -> LinkCredential | None:
        """The credential to send; None if the server has not asked for one. Raises `link.Rejected`."""

    async def challenged(self, status: int, header: str | None, generation: int) -> bool:
        """Whether a request answered with 401 or 403 should be sent again. Raises `link.Rejected`."""

    def accepted(self) -> None:
        """Notes that the server accepted the credential on trial."""


class SessionOwner(msgspec.Struct, frozen=True):
    """The client session that a link with `connection: session` serves, and its client's capabilities."""

    capabilities: Params
    listener: Listener | None


class EraHints(msgspec.Struct):
    """The era to try first, known from earlier attempts. Shared by links that serve the same callers."""

    expected: Era | None = None
    """The era that the server spoke last (versioning: an era is "a property of the server"), or that of the callers.

    None where neither is known: the newest is tried first then.
    """
    version: str | None = None
    """The version of the handshake era that a server accepted which had refused the newest."""
    failures: int = 0
    """Failed attempts in a row, for any reason."""
    refused_with: int | None = None
    """The HTTP status that the last `initialize` was refused with; None if it was not refused with one."""
    only_initialize: bool = False
    """Whether the next attempt sends nothing but `initialize` while the server refuses that as before."""

    def note_success(self, era: Era | None) -> None:
        """Notes that the server connected; `era` is tried first from now on."""
        self.expected, self.failures = era, 0

    def note_failure(self) -> None:
        """Notes a failure: the server may have been replaced by one of another era."""
        self.failures += 1
        if self.failures >= DOUBTFUL_AFTER:
            self.expected = self.version = None


class _TimeoutsByMethod(dict[str, Timeouts]):
    """Timeouts by method; a method without an entry has that of other calls."""

    def __init__(self, other: Timeouts, known: Mapping[str, Timeouts]) -> None:
        super().__init__(known)
        self._other = other

    def __missing__(self, method: str) -> Timeouts:
        return self._other


@lru_cache
def _timeouts_by_method(settings: UpstreamTimeouts) -> Mapping[str, Timeouts]:
    """The time allowed for an answer, by the request's method: each call looks one up."""

    def bounds(row: Method) -> Timeouts:
        if row.waits:  # the wait for a task's result may be silent until the result is there
            return Timeouts(settings.total, settings.total)
        return Timeouts(settings.idle if row.lists is None else settings.list, settings.total)

    return _TimeoutsByMethod(bounds(row_of("")), {name: bounds(row) for name, row in METHODS.items()})


@dataclass(slots=True, eq=False)
class LinkContext:
    """The surroundings of one link; lives as long as the link is reconnected."""

    spec: UpstreamSettings
    """The settings in force: `adopt` replaces them where a reload needs no other link. Nothing else changes."""
    metrics: Metrics
    publish: Callable[[Change | PushChannel | UnannouncedLists], None]
    owner: LinkOwner = None
    """The owner of the link; None if all callers share it."""
    session: SessionOwner | None = None
    """The owning session, with `connection: session`."""
    hints: EraHints = field(default_factory=EraHints)
    credentials: ForwardedCredentials | None = None
    """The credentials that the link's callers brought, equal for all; it serves no caller with others (R39)."""
    authorization: CredentialSource | None = None
    """The source of a changing credential, with `oauth` or `headers_command`."""
    connections: HttpConnections | None = None
    """The connections for its HTTP requests, where those are not its own."""
    asks: bool = False
    """Whether the server has asked for input."""
    asks_while_shared: bool = False
    """Whether the server asked for input that reached no client, as several principals share the link (R77)."""
    stray_output: str = ""
    """The first line on a child's stdout that is no message, for the reason of a failed handshake."""
    awaited: str = ""
    """The method whose answer an attempt to connect waits for, named in the error if the attempt is given up."""
    has_moved: bool = False
    """Whether the last connection ended only since the server is elsewhere now, where it can be reached at once."""
    oddities: Oddities = field(default_factory=Oddities)
    """The server's accepted deviations from the specifications."""
    redact: Redaction = field(init=False)
    """Applied to a peer's text wherever operators or clients read it in a sentence of ours (R44)."""
    stderr: StderrTail = field(init=False)
    timeouts: Mapping[str, Timeouts] = field(init=False)
    """The time allowed for the answer to a request, by its method."""

    def __post_init__(self) -> None:
        self.adopt(self.spec)
        self.redact = Redaction.of(self.spec, self.credentials.headers.values() if self.credentials is not None else ())
        self.stderr = StderrTail(self.redact)

    @contextmanager
    def publishing_afterwards(self) -> Iterator[None]:
        """Keeps what the link publishes within the `with` block until its end, and drops it after an exception."""
        early: list[Change | PushChannel | UnannouncedLists] = []
        publish, self.publish = self.publish, early.append
        try:
            yield
        finally:
            self.publish = publish
        for change in early:
            publish(change)

    def conceal(self, secrets: tuple[str, ...]) -> None:
        """Redacts secrets of a later credential too; those of the last few credentials are remembered."""
        self.redact = self.redact.including(secrets)

    def adopt(self, spec: UpstreamSettings) -> None:
        """Puts other settings in force."""
        self.spec = spec
        self.timeouts = _timeouts_by_method(spec.timeouts)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers in the settings, overridden by those that the callers brought."""
        if self.credentials is None:
            return self.spec.headers
        own = self.spec.credentials.fields(self.credentials.headers)
        names = {name.lower() for name in own}
        return {**{name: self.spec.headers[name] for name in self.spec.headers if name.lower() not in names}, **own}

    def redacted(self, error: ErrorObject) -> ErrorObject:
        """The upstream's own error, without secrets of ours that it quotes (R44)."""
        data = None if error.data is None else self.redact.in_json(error.data)
        return replace(error, message=self.redact(error.message), data=data)

    def failed(self, call: Call, why: str, reason: Reason) -> Failed:
        """The outcome of a call that the upstream did not answer as it should."""
        sentence = f"upstream {self.spec.name!r}, {call.method}: {why}"
        return Failed(ErrorObject(INTERNAL_ERROR, sentence), Party.UPSTREAM, reason)

    def login_needed(self, sentence: str, why: str) -> Failed:
        """The outcome of a call before which a person must log in. `why` is a phrase."""
        error = ErrorObject(INTERNAL_ERROR, f"upstream {self.spec.name!r}{sentence}")
        need = LoginNeed(self.spec.name, self.owner, why)
        return Failed(error, Party.UPSTREAM, Reason.LOGIN_NEEDED, need)

    def note_asked_while_shared(self, method: str) -> None:
        """Logs, once, that the server needs another `connection`."""
        if method in INPUT_CAPABILITIES and not self.asks_while_shared:
            self.asks_while_shared = True
            log.warning(
                "an upstream asks for input while several principals share its connection, and is refused; "
                "set `connection: principal`",
                upstream=self.spec.name,
                method=method,
            )

    def note_stray_output(self, line: bytes) -> None:
        """Counts a line on a child's stdout that is no message, and keeps the first."""
        self.count_junk()
        self.keep_stray_output(line)

    def keep_stray_output(self, line: bytes) -> None:
        """Keeps the first line that is no message, or not a whole one."""
        if not self.stray_output:
            self.stray_output = self.redact(line[:MAX_STRAY_OUTPUT].decode(errors="replace"))

    def count_junk(self) -> None:
        """Counts one line or message of the upstream that is not MCP, or that it may not send (R16)."""
        self.metrics.junk_lines.labels(self.spec.name).inc()
