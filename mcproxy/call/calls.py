"""The vocabulary of the gateway: what travels through it, and the few shapes its parts show each other.

The core speaks the newest revision's model: a `Call` goes in, its `Outcome` comes back, and the `Client`
is the way back to whoever asked while the call lasts. `Listener` and `UpstreamEvent` are for what happens
between calls. Values and protocols alone: nothing here acts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import ErrorObject, Notification, Params, RequestId, encode, raw, size_of
from mcproxy.protocol.methods import RESOURCE_UPDATED, Kind
from mcproxy.settings import Upstream as Spec
from mcproxy.settings.access.policy import Effect


class McpError(Exception):
    """Our own refusal of a request: a JSON-RPC code and a sentence that says what was wrong and what to do.

    `data` is what goes into the error's `data`, of any encodable type. `reason` tells metrics and audit why.
    """

    def __init__(self, code: int, message: str, data: object = None, *, reason: Reason | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.reason = reason or Reason.PROTOCOL_ERROR

    def error(self) -> ErrorObject:
        return ErrorObject(self.code, self.message, None if self.data is None else raw(self.data))


class Reason(Enum):
    """Why a call failed; the values are the `outcome` label of metrics (requirement R52)."""

    PROTOCOL_ERROR = "protocol_error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    DENIED = "denied"
    RATE_LIMITED = "rate_limited"
    """A limit of the gateway's own (`access.limits`)."""
    UNAVAILABLE = "unavailable"


class Party(Enum):
    """At whose door a failure lies."""

    CLIENT = "client"
    GATEWAY = "gateway"
    UPSTREAM = "upstream"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking. `name` is unique among authenticated callers; everybody unauthenticated is ANONYMOUS."""

    name: str
    roles: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    attributes: tuple[tuple[str, str], ...] = ()
    """What else is known of it, by name: what a token claims, say."""

    def __hash__(self) -> int:
        # With each call something is looked up by who makes it; those of one name are few.
        return hash(self.name)


ANONYMOUS = Principal("anonymous")

AGGREGATE = ""
"""The endpoint that shows every upstream, prefixed. Any other endpoint is the name of one upstream, shown bare."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request brought for upstreams that take their callers' own credentials (`credentials.forward`)."""

    key: str
    """The same for the same principal and values, and tells neither: whose links are that are made with them."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Values by the names of headers in lower case. Secret (R44)."""


class Caller(msgspec.Struct, frozen=True):
    """What a client said of itself: on each request (stateless) or in its handshake."""

    principal: Principal
    version: str
    capabilities: Params = msgspec.field(default_factory=dict)
    """ClientCapabilities as declared."""
    info: Raw | None = None
    """The client's Implementation object as declared."""
    endpoint: str = AGGREGATE
    session: str | None = None
    """The key of a handshake session, for upstreams that are connected per session; never sent to a peer."""
    log_level: str | None = None
    """The least severe level that the client wants during this call; None for no log messages."""
    credentials: Credentials | None = None
    """What it brought for upstreams, if anything."""
    transport: str = ""
    """How it is connected: `http`, `sse` or `stdio`; empty for the gateway itself, and who is inside it."""

    @property
    def owners(self) -> tuple[str, ...]:
        """As which it may have links of its own."""
        session = () if self.session is None else (self.session,)
        return session if self.credentials is None else (*session, self.credentials.key)


class InputRequest(msgspec.Struct, frozen=True):
    """What an upstream asks of a client: `sampling/createMessage`, `elicitation/create` or `roots/list`."""

    method: str
    params: Params


class Client(Protocol):
    """The way back to whoever made a call, for as long as the call lasts."""

    def notify(self, method: str, params: Params) -> None:
        """Sends a progress or log message ahead of the result. Never blocks.

        Progress comes without `progressToken`: the edge puts the client's own, or drops it where it gave none.
        """

    async def ask(self, request: InputRequest) -> Raw:
        """Puts a request to the client and returns its result.

        Raises McpError with the client's own error, or with INVALID_REQUEST where the client did not declare
        the capability or is gone.
        """


class RuleName(msgspec.Struct, frozen=True):
    """A rule of the policy, as people find it."""

    role: str
    effect: Effect
    number: int
    """From 1, in its list."""
    place: str | None = None
    """`FILE:LINE`."""

    def __str__(self) -> str:
        where = f" ({self.place})" if self.place else ""
        return f"roles.{self.role}.{self.effect}, rule {self.number}{where}"


class Decision(msgspec.Struct, frozen=True):
    """What the policy says of a call, or of what may be called."""

    allowed: bool
    rule: RuleName | None = None
    """None where no rule spoke of it, and the default decided."""


class Aim(msgspec.Struct, frozen=True):
    """What a call is about, in its upstream's own names."""

    upstream: str = ""
    """Empty where it is about no upstream that the caller sees."""
    kind: Kind | None = None
    """None for a task, and where it is about nothing."""
    own: str = ""
    """The upstream's own name of it; what the caller wrote, where that is no upstream's."""
    entry: Raw | None = None
    """Its entry in a list, where it has one."""
    decision: Decision | None = None
    """What the policy says of it; None where that hangs on arguments, or nobody has asked yet."""
    judge: Callable[[Params], Decision] | None = None
    """What the policy says of it with certain arguments, where somebody has asked."""


class Notes(msgspec.Struct, eq=False):
    """What is found out about a call on its way, for those who count it and write it down."""

    upstream_seconds: float = 0
    """How much of its time its upstream took."""
    asked: bool = False
    """Whether its client was asked something between two of its ways upstream, which took time too."""
    trace: str | None = None
    """The id of its trace, where one is recorded."""
    label: tuple[str, str] | None = None
    """The upstream and the tool or prompt that it went to, in its caller's names; None before it was found."""
    aim: Aim | None = None
    """What it is about, once that was found in its caller's view."""


class Call(msgspec.Struct, frozen=True):
    """One request on its way from a client to whoever answers.

    `params` holds no key of `_meta` that belongs to a hop (`eras.HOP_META`): the edge took them off, and the
    link sets its own. It is never changed in place: `with_params` makes the next one.
    """

    method: str
    params: Params
    caller: Caller
    client: Client
    listener: Listener | None = None
    """Where the caller hears of changes between calls; None where it cannot."""
    repeatable: bool = False
    """Whether its tool says that a second call has no second effect (requirement R4); see `Method.safe_to_repeat`."""
    id: RequestId | None = None
    """The client's own id of the request; never sent to an upstream (requirement R24)."""
    notes: Notes = msgspec.field(default_factory=Notes)
    """The same for the call that a stage makes of this one."""
    over: Owner = None
    """Whose link it is about, for a call of the gateway's own: it goes over no other."""

    def with_params(self, params: Params) -> Call:
        return replace(self, params=params)


class Findings(msgspec.Struct, eq=False):
    """What was found out about a result that is kept and given again: once for all who get it, and gone with it."""

    sound: bool = False
    """Whether its content is known to be as its upstream may send it."""
    renamed_by: object = None
    """Whose `renamed` are."""
    renamed: Params = {}
    """Those of its members that are others in the names of the endpoint that showed it last."""


class Complete(msgspec.Struct, frozen=True):
    """The final result, as the answerer gave it, `resultType` not necessarily set. Never changed in place."""

    result: Params
    is_error: bool = False
    """Whether this is a tool's own failure (`isError`)."""
    findings: Findings | None = None
    """None where it is given once."""


class InputRequired(msgspec.Struct, frozen=True):
    """The answerer needs input first (2026-07-28, multi round-trip requests). One of the two is not empty."""

    requests: dict[str, InputRequest]
    state: str | None
    result: Params
    """The whole result as given, for what else it holds."""


class Failed(msgspec.Struct, frozen=True):
    error: ErrorObject
    party: Party
    reason: Reason = Reason.PROTOCOL_ERROR


Outcome = Complete | InputRequired | Failed
Handler = Callable[[Call], Awaitable[Outcome]]
Stage = Callable[[Handler], Handler]


@dataclass(frozen=True, slots=True)
class ListChanged:
    kind: Kind


@dataclass(frozen=True)
class ResourceUpdated:
    """`uri` is in the hearer's own names. `params` are those of the latest notification, for what else they hold.

    One and the same is told to all who use a name, and what it takes to tell it is worked out once.
    """

    uri: str
    params: Params = field(default_factory=dict, compare=False)

    @cached_property
    def size(self) -> int:
        """Bytes of `params`."""
        return size_of(self.params)

    @property
    def told(self) -> Notification:
        return Notification(RESOURCE_UPDATED, {**self.params, "uri": raw(self.uri)})

    @cached_property
    def notification(self) -> bytes:
        """As its hearers are told, encoded."""
        return encode(self.told)


@dataclass(frozen=True, slots=True)
class Notice:
    """A notification that is no change of state: passed once, in order, to whoever may hear it.

    Log messages (`level` set) and `elicitation/complete`.
    """

    method: str
    params: Params
    level: str | None = None


@dataclass(frozen=True, slots=True)
class TaskChanged:
    """A task is in another state, as `params` of the notification `method` say. `id` is in the hearer's own names."""

    id: str
    method: str = field(compare=False)
    params: Params = field(compare=False)


Change = ListChanged | ResourceUpdated | TaskChanged | Notice


class Listener(Protocol):
    """A client between its calls: a handshake session, or one `subscriptions/listen` stream.

    Compared and hashed by identity.
    """

    @property
    def caller(self) -> Caller:
        """As of now: `log_level` follows `logging/setLevel`."""

    def set_log_level(self, level: str) -> None: ...

    def signal(self, change: Change) -> None:
        """Notes what the client has still to be told. Never blocks; equal changes coalesce; bounded."""

    async def ask(self, request: InputRequest) -> Raw:
        """As `Client.ask`, outside any call. Raises McpError where the client has no stream for it."""


class Audience(Protocol):
    """Where listeners come and go."""

    def join(self, listener: Listener) -> None:
        """As well where it is there already, and other links serve its caller by now."""

    def leave(self, listener: Listener) -> None:
        """Ends all that `listener` held: subscriptions, and links that were its own. Idempotent."""


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

Owner = str | None
"""Whose a link is: a session's key (`Caller.session`), that of `Credentials`, or None where all share it."""


def owner(spec: Spec, caller: Caller) -> Owner:
    """Whose link to an upstream serves `caller`."""
    if not spec.credentials.forward:
        return caller.session if spec.connection == "session" else None
    own = caller.credentials
    return None if own is None or spec.credentials.missing(own.headers) else own.key


@dataclass(frozen=True, slots=True)
class Connected:
    """A link is up, for the first time or again: what was known of the upstream may be out of date."""

    upstream: str
    owner: Owner
    identity: ServerIdentity


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A link was lost, or could not be made; it is being retried."""

    upstream: str
    owner: Owner
    reason: str


@dataclass(frozen=True, slots=True)
class Retired:
    """A link is gone for good, by configuration or with its owner."""

    upstream: str
    owner: Owner


class Hearing(Enum):
    """Whether what an upstream says between calls reaches us. Over a link that stands it does, until that is LOST."""

    LOST = "lost"
    REGAINED = "regained"
    """What changed meanwhile is not known."""


@dataclass(frozen=True, slots=True)
class UpstreamChanged:
    """The upstream says that something changed, in its own names; or whether we hear what it says is another."""

    upstream: str
    owner: Owner
    change: Change | Hearing


UpstreamEvent = Connected | Disconnected | Retired | UpstreamChanged


class Phase(Enum):
    """Where a link stands."""

    CONNECTING = "connecting"
    """Never connected yet, and the first attempt still runs."""
    READY = "ready"
    BACKING_OFF = "backing_off"
    """Lost, or not reached; tried again after a while."""
    DISABLED = "disabled"


class Trouble(Enum):
    """Why there is no link; the values are a label of metrics (R52)."""

    UNREACHABLE = "unreachable"
    REJECTED = "rejected"
    """It answered with something that is no MCP, or not for us."""
    TIMEOUT = "timeout"
    LOST = "lost"
    """There was one, and it ended."""
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class UpstreamStatus:
    """One upstream as an operator sees it. `since` is a Unix time in seconds."""

    name: str
    phase: Phase
    since: float
    transport: str
    identity: ServerIdentity | None = None
    error: str | None = None
    reconnects: int = 0
    stderr: tuple[str, ...] = ()
    """The last lines that a child wrote to its stderr."""
    trouble: Trouble | None = None
    """What kind of `error` it is; None while it is connected, and where it was meant to be ended."""
    address: tuple[str, int] | None = None
    """The host and port of its URL, where it has one."""
    takes_credentials: bool = False
    """Whether its callers bring credentials of their own: the link that all share has none, and may be refused."""


class Upstream(Protocol):
    """One upstream as the gateway sees it: a handler in the upstream's own names, and a state."""

    @property
    def name(self) -> str: ...

    @property
    def status(self) -> UpstreamStatus: ...

    def __call__(self, call: Call) -> Awaitable[Outcome]:
        """Sends the call over the link that serves its caller, making one attempt to connect where there is none.

        Returns Failed(reason=UNAVAILABLE) where that attempt fails. Raises nothing but cancellation.
        """

    def release(self, owner: str) -> None:
        """Ends the link that `owner` had for itself, if any."""
