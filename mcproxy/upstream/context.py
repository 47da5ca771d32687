"""What one link is made with: settings, metrics, whose it is, and where it publishes what arrives between calls.

Every transport and conversation of a link is given the same `LinkContext`. Values and look-ups; connects nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
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
from mcproxy.upstream.redaction import Redaction
from mcproxy.upstream.stderr_tail import StderrTail

log = structlog.get_logger()

MAX_STRAY_OUTPUT: Final = 200
"""Bytes that an error quotes of a line that is no message."""
DOUBTFUL_AFTER: Final = 3
"""Failed attempts in a row after which the era of a server is no longer taken as known."""


class LinkCredential(Protocol):
    """What authorizes the requests of a link, beside the headers of its settings."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that go with each request."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must be redacted from what is quoted of the server (R44)."""


class HttpConnections(Protocol):
    """What requests of a link over HTTP go over (`http.client.Pool`)."""

    def request(self, method: str, url: URL, head: bytes, body: bytes | None = None) -> Awaitable[ClientResponse]:
        """Raises ConnectFailed if nothing was sent, and ConnectionBroken if it is unknown what became of it."""


class CredentialSource(Protocol):
    """Where a link over HTTP gets a credential that changes: OAuth tokens (`oauth.authorizer`), or those of a command
    (`headers_command`).
    """

    @property
    def generation(self) -> int:
        """Which of the credentials is the present one; 0 where there is none."""

    @property
    def on_trial(self) -> bool:
        """Whether the credential was got because its predecessor was refused, and was not accepted yet."""

    def present(self) -> LinkCredential | None:
        """The credential to send, where nothing has to be waited for; else `credential` says."""

    async def credential(self) -> LinkCredential | None:
        """The credential to send; None where the server has not asked for one. Raises `link.Rejected`."""

    async def challenged(self, status: int, header: str | None, generation: int) -> bool:
        """Whether a request that was answered with 401 or 403 should be sent again. Raises `link.Rejected`."""

    def accepted(self) -> None:
        """The credential that was on trial serves."""


class SessionOwner(msgspec.Struct, frozen=True):
    """The client session that a link of `connection: session` serves, and the capabilities that its client declared."""

    capabilities: Params
    listener: Listener | None


@dataclass(slots=True)
class EraHints:
    """The era to try first, by earlier attempts. Links that serve the same callers share it."""

    expected: Era | None = None
    """The era that the server spoke last (versioning: an era is "a property of the server"), or that of the callers.

    None where neither is known: the newest is tried first then.
    """
    failures: int = 0
    """Attempts in a row that failed, for any reason."""

    def note_success(self, era: Era | None) -> None:
        """The server connected; `era` is tried first from now on."""
        self.expected, self.failures = era, 0

    def note_failure(self) -> None:
        """The server may have been replaced by one of another era, and fail for that."""
        self.failures += 1
        if self.failures >= DOUBTFUL_AFTER:
            self.expected = None


class _TimeoutsByMethod(dict[str, Timeouts]):
    """A method that is in no table has those of other calls."""

    def __init__(self, other: Timeouts, known: Mapping[str, Timeouts]) -> None:
        super().__init__(known)
        self._other = other

    def __missing__(self, method: str) -> Timeouts:
        return self._other


@lru_cache
def _timeouts_by_method(settings: UpstreamTimeouts) -> Mapping[str, Timeouts]:
    """How long an answer may take, by the method of its request: each call looks one up."""

    def bounds(row: Method) -> Timeouts:
        if row.waits:  # the result of a task may say nothing until it is there
            return Timeouts(settings.total, settings.total)
        return Timeouts(settings.idle if row.lists is None else settings.list, settings.total)

    return _TimeoutsByMethod(bounds(row_of("")), {name: bounds(row) for name, row in METHODS.items()})


@dataclass(slots=True, eq=False)
class LinkContext:
    """The surroundings of one link. Lives as long as the link is reconnected."""

    spec: UpstreamSettings
    """The current settings: `adopt` replaces them where a reload needs no other link. All else stays as it is."""
    metrics: Metrics
    publish: Callable[[Change | PushChannel | UnannouncedLists], None]
    owner: LinkOwner = None
    """Whose link it is; None where all callers share it."""
    session: SessionOwner | None = None
    """The owner, with `connection: session`."""
    hints: EraHints = field(default_factory=EraHints)
    credentials: ForwardedCredentials | None = None
    """The credentials that the link's callers brought, all of them the same; it serves no other caller (R39)."""
    authorization: CredentialSource | None = None
    """Where its requests get a credential that changes, with `oauth` or `headers_command`."""
    connections: HttpConnections | None = None
    """What its requests over HTTP go over, where those are not connections of its own."""
    asks: bool = False
    """Whether the server has asked for input."""
    asks_while_shared: bool = False
    """Whether the server asked for input that went to no client, since several principals share the link (R77)."""
    stray_output: str = ""
    """The first line that a child wrote to its stdout and that is no message, for the reason of a failed handshake."""
    awaited: str = ""
    """The method whose answer an attempt to connect waits for, for the error where it is given up."""
    redact: Redaction = field(init=False)
    """Applied to all text of a peer that an operator or a client reads in a sentence of ours (R44)."""
    stderr: StderrTail = field(init=False)
    timeouts: Mapping[str, Timeouts] = field(init=False)
    """How long an answer to a request may take, by its method."""

    def __post_init__(self) -> None:
        self.adopt(self.spec)
        self.redact = Redaction.of(self.spec, self.credentials.headers.values() if self.credentials is not None else ())
        self.stderr = StderrTail(self.redact)

    def conceal(self, secrets: tuple[str, ...]) -> None:
        """Redacts secrets that came later, too: those of a credential, of which the last few are kept in mind."""
        self.redact = self.redact.including(secrets)

    def adopt(self, spec: UpstreamSettings) -> None:
        """Goes by other settings from now on."""
        self.spec = spec
        self.timeouts = _timeouts_by_method(spec.timeouts)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the settings; those that the callers brought take precedence."""
        if self.credentials is None:
            return self.spec.headers
        own = self.spec.credentials.fields(self.credentials.headers)
        names = {name.lower() for name in own}
        return {**{name: self.spec.headers[name] for name in self.spec.headers if name.lower() not in names}, **own}

    def redacted(self, error: ErrorObject) -> ErrorObject:
        """The upstream's own error, without the secrets of ours that it quotes (R44)."""
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
        """Logs once that the server needs another `connection`."""
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
        if not self.stray_output:
            self.stray_output = self.redact(line[:MAX_STRAY_OUTPUT].decode(errors="replace"))

    def count_junk(self) -> None:
        """Counts one line or message of the upstream that is not MCP, or that it may not send (R16)."""
        self.metrics.junk_lines.labels(self.spec.name).inc()
