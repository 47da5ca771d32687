"""An upstream as the rest of the gateway sees it: a handler, a status for operators, and events."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
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


class ServerIdentity(msgspec.Struct, frozen=True):
    """An upstream's own description upon connecting."""

    era: Era
    version: str
    capabilities: Params
    info: Raw | None = None
    instructions: str | None = None
    is_cut: bool = False
    """Whether it said more of itself than is kept."""


GATEWAY_CAPABILITY = "mcproxy.gateway/"
"""Under `experimental` in a gateway's server capabilities: this and its id, and those of the gateways behind it.

So that a gateway recognises itself behind an upstream (requirement R15).
"""


class Connected(msgspec.Struct, frozen=True):
    """A link is up, for the first time or again: what is known of the upstream may be out of date."""

    upstream: str
    owner: LinkOwner
    identity: ServerIdentity


class Disconnected(msgspec.Struct, frozen=True):
    """A link was lost, or could not be made; it is being retried."""

    upstream: str
    owner: LinkOwner
    reason: str


class Idled(msgspec.Struct, frozen=True):
    """A link is down because nothing needs it: the next call over it connects. Its lists stay valid."""

    upstream: str
    owner: LinkOwner
    identity: ServerIdentity | None = None
    """For a link that this process has not made yet: the recorded identity, beside its recorded `lists`."""
    lists: Mapping[Kind, tuple[Raw, ...]] = msgspec.field(default_factory=dict)


class Retired(msgspec.Struct, frozen=True):
    """A link has ended for good, by configuration or with its owner."""

    upstream: str
    owner: LinkOwner


class PushChannel(Enum):
    """The channel for an upstream's notifications between calls was lost or restored.

    It counts as up from the start of a link until LOST is published. What an upstream declares about its notifications
    counts only while the channel is up (requirement R75).
    """

    LOST = "lost"
    RESTORED = "restored"
    """Changes while the channel was lost are unknown."""


class UnannouncedLists(msgspec.Struct, frozen=True):
    """The lists whose changes an upstream does not announce, though it declares that it does, and the channel lives.

    All such lists of a link: those of an earlier one count no more. A channel that is restored announces all again.
    """

    kinds: frozenset[Kind]


class UpstreamChanged(msgspec.Struct, frozen=True):
    """The upstream announced a change, in its own names; or the set of changes that it announces is another now."""

    upstream: str
    owner: LinkOwner
    change: Change | PushChannel | UnannouncedLists


class LoginAwaited(msgspec.Struct, frozen=True):
    """A link does not work until its owner has logged in at the upstream; if not `awaited`, the owner has."""

    upstream: str
    owner: LinkOwner
    awaited: bool
    failure: str = ""
    """Why the latest attempt to log in failed, if one just did."""


UpstreamEvent = Connected | Disconnected | Idled | Retired | UpstreamChanged | LoginAwaited


class LinkState(Enum):
    """The state of a link to an upstream; the values are a label of metrics. `upstream.reconnecting` has the table."""

    CONNECTING = "connecting"
    """Not connected yet: the first attempt runs."""
    READY = "ready"
    """Connected: calls go over it."""
    IDLE = "idle"
    """Not connected because nothing needs it: the next call connects."""
    BACKING_OFF = "backing_off"
    """Lost or unreachable; tried again after a while."""
    DRAINING = "draining"
    """Removed from the configuration; lasts until its last call is answered, and is not made again."""
    RETIRED = "disabled"
    """Ended for good: by configuration, or with its session, principal or credentials."""


SERVING: Final = frozenset({LinkState.READY, LinkState.IDLE})
"""The states in which a link is healthy, and calls over it are answered."""


class LinkFailure(Enum):
    """The reason why there is no link; the values are a label of metrics (R52)."""

    UNREACHABLE = "unreachable"
    REJECTED = "rejected"
    """The server answered with something other than MCP, or refused our credentials."""
    TIMEOUT = "timeout"
    LOGIN = "login"
    """The server demands a login that only a person can make."""
    LOST = "lost"
    """A link that was up ended."""
    INTERNAL = "internal"


class LoginStatus(msgspec.Struct, frozen=True):
    """The logins of an upstream with `oauth`. Times are Unix times in seconds."""

    is_per_principal: bool
    is_for_people: bool
    """Whether people log in; else the gateway gets its tokens by itself."""
    state: str
    """The state of the gateway's own grant, as a phrase; empty if each principal logs in."""
    issuers: tuple[str, ...]
    expires_at: float | None
    """The time at which the next of the tokens in use expires."""
    reason: str | None
    """Why a token was last refused, or not available."""
    logged_in: int
    """The number of principals whose login is in use; for the gateway's own login, 0 or 1."""
    awaited: int
    """The principals that have to log in."""


class UpstreamStatus(msgspec.Struct, frozen=True):
    """One upstream as an operator sees it. `since` is a Unix time in seconds."""

    name: str
    state: LinkState
    since: float
    transport: str
    identity: ServerIdentity | None = None
    error: str | None = None
    reconnects: int = 0
    stderr: tuple[str, ...] = ()
    """The last lines that a child wrote to stderr."""
    failure: LinkFailure | None = None
    """The kind of `error`; None while connected, and after a link was ended on purpose."""
    address: tuple[str, int] | None = None
    """The host and port of its URL, if it has one."""
    way: str = ""
    """How its URL is reached, in words: directly, or through which proxy."""
    is_unverified: bool = False
    """Whether any certificate of it is accepted (`tls.verify`)."""
    takes_credentials: bool = False
    """Whether callers bring their own credentials: the shared link has none, and may be refused."""
    asks: bool = False
    """Whether it has asked for input on the shared link."""
    asks_while_shared: bool = False
    """Whether its requests for input were refused because several principals share its link."""
    stderr_count: int = 0
    """The number of whole lines its children have written to stderr; the last of them are in `stderr`."""
    login: LoginStatus | None = None
    """Its logins, with `oauth`."""
    oddities: tuple[str, ...] = ()
    """Its accepted deviations from the specifications, each completing "the server ..."."""
    next_attempt: float | None = None
    """The Unix time of the next attempt to connect, in seconds, while it waits for one."""

    def stderr_after(self, count: int) -> tuple[str, ...]:
        """Those of the last lines that follow the first `count`."""
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
        """Sends the call over the link that serves its caller; makes one attempt to connect if there is none.

        Returns Failed(reason=UNAVAILABLE) if that attempt fails. Raises nothing but cancellation.
        """

    def release(self, owner: str) -> None:
        """Ends the link that belongs to `owner`, if any."""
