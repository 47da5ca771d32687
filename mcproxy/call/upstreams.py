"""An upstream as the rest of the gateway sees it: a handler, a status for operators, and events."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from mcproxy.call.calls import Call, Outcome
from mcproxy.call.clients import Change
from mcproxy.call.identity import LinkOwner
from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import Params
from mcproxy.protocol.methods import Kind


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What an upstream said of itself on connecting."""

    era: Era
    version: str
    capabilities: Params
    info: Raw | None = None
    instructions: str | None = None


GATEWAY_CAPABILITY = "mcproxy.gateway/"
"""Under `experimental` in a gateway's server capabilities: this and its id, and those of the gateways behind it.

So that a gateway recognises itself behind an upstream (requirement R15).
"""


class Connected(msgspec.Struct, frozen=True):
    """A link is up, for the first time or again: what was known of the upstream may be out of date."""

    upstream: str
    owner: LinkOwner
    identity: ServerIdentity


class Disconnected(msgspec.Struct, frozen=True):
    """A link was lost, or could not be made; it is being retried."""

    upstream: str
    owner: LinkOwner
    reason: str


class Idled(msgspec.Struct, frozen=True):
    """A link is not connected since nothing needs it: the next call over it connects. What it listed stands."""

    upstream: str
    owner: LinkOwner
    identity: ServerIdentity | None = None
    """Of one that was not connected by this process yet, with its `lists`: as they were recorded."""
    lists: Mapping[Kind, tuple[Raw, ...]] = msgspec.field(default_factory=dict)


class Retired(msgspec.Struct, frozen=True):
    """A link is gone for good, by configuration or with its owner."""

    upstream: str
    owner: LinkOwner


class PushChannel(Enum):
    """The channel on which an upstream pushes notifications between calls is gone, or there again.

    It lives from the start of a link until it is said to be LOST. What an upstream promises of its notifications counts
    only while it lives (requirement R75).
    """

    LOST = "lost"
    RESTORED = "restored"
    """What changed meanwhile is not known."""


class UnannouncedLists(msgspec.Struct, frozen=True):
    """The lists whose changes an upstream does not announce, though it declares that it does, and the channel lives.

    All such lists of a link: those of an earlier one count no more. A channel that is restored announces all again.
    """

    kinds: frozenset[Kind]


class UpstreamChanged(msgspec.Struct, frozen=True):
    """The upstream announced a change, in its own names; or what it announces is another from now on."""

    upstream: str
    owner: LinkOwner
    change: Change | PushChannel | UnannouncedLists


class LoginAwaited(msgspec.Struct, frozen=True):
    """A link serves no more until its owner has logged in at the upstream; or the owner has, where not `awaited`."""

    upstream: str
    owner: LinkOwner
    awaited: bool


UpstreamEvent = Connected | Disconnected | Idled | Retired | UpstreamChanged | LoginAwaited


class LinkState(Enum):
    """The state of a link to an upstream; the values are a label of metrics. `upstream.reconnecting` has the table."""

    CONNECTING = "connecting"
    """Never connected yet, and the first attempt still runs."""
    READY = "ready"
    """Connected: calls go over it."""
    IDLE = "idle"
    """Not connected, since nothing needs it: the next call connects."""
    BACKING_OFF = "backing_off"
    """Lost, or not reached; tried again after a while."""
    DRAINING = "draining"
    """Taken out of the configuration; lasts until its last call is answered, and is not made again."""
    RETIRED = "disabled"
    """Ended for good: by configuration, or with the session, principal or credentials that it was for."""


SERVING: Final = frozenset({LinkState.READY, LinkState.IDLE})
"""The states in which nothing is wrong with a link, and calls over it are answered."""


class LinkFailure(Enum):
    """Why there is no link; the values are a label of metrics (R52)."""

    UNREACHABLE = "unreachable"
    REJECTED = "rejected"
    """The server answered with something that is not MCP, or refused our credentials."""
    TIMEOUT = "timeout"
    LOGIN = "login"
    """The server wants a login that only a person can make."""
    LOST = "lost"
    """A link that was up ended."""
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class LoginStatus:
    """The logins of an upstream with `oauth`. Times are Unix times in seconds."""

    is_per_principal: bool
    is_for_people: bool
    """Whether a person logs in; else the gateway gets its tokens by itself."""
    state: str
    """The state of the gateway's own grant, as a phrase; empty with a login of each principal."""
    issuers: tuple[str, ...]
    expires_at: float | None
    """When the next of the tokens in use ends."""
    reason: str | None
    """Why a token was refused or could not be had, the last time."""
    logged_in: int
    """Principals whose login is in use; of the gateway's own login, 0 or 1."""
    awaited: int
    """Those that have to log in."""


@dataclass(frozen=True, slots=True)
class UpstreamStatus:
    """One upstream as an operator sees it. `since` is a Unix time in seconds."""

    name: str
    state: LinkState
    since: float
    transport: str
    identity: ServerIdentity | None = None
    error: str | None = None
    reconnects: int = 0
    stderr: tuple[str, ...] = ()
    """The last lines that a child wrote to its stderr."""
    failure: LinkFailure | None = None
    """The kind of `error`; None while connected, and after a link was ended on purpose."""
    address: tuple[str, int] | None = None
    """The host and port of its URL, where it has one."""
    takes_credentials: bool = False
    """Whether its callers bring credentials of their own: the link that all share has none, and may be refused."""
    asks: bool = False
    """Whether it has asked for input on the connection that all callers share."""
    asks_while_shared: bool = False
    """Whether it asked for input that was refused, since several principals share its connection."""
    stderr_count: int = 0
    """Whole lines that its children have written to stderr so far; the last of them are in `stderr`."""
    login: LoginStatus | None = None
    """Its logins, where people log in to it or the gateway does (`oauth`)."""

    def stderr_after(self, count: int) -> tuple[str, ...]:
        """Those of the last lines that came after the first `count`."""
        return self.stderr[max(0, count - self.stderr_count + len(self.stderr)) :] if self.stderr else ()


class Upstream(Protocol):
    """One upstream as the gateway sees it: a handler in the upstream's own names, and a state."""

    @property
    def name(self) -> str:
        """Its name in the settings, which is unique."""

    @property
    def status(self) -> UpstreamStatus:
        """Its state as of now."""

    def __call__(self, call: Call) -> Awaitable[Outcome]:
        """Sends the call over the link that serves its caller, making one attempt to connect where there is none.

        Returns Failed(reason=UNAVAILABLE) where that attempt fails. Raises nothing but cancellation.
        """

    def release(self, owner: str) -> None:
        """Ends the link that `owner` had for itself, if any."""
