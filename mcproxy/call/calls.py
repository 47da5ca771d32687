"""A call, the notes that are taken of it on its way, and its outcome: complete, input required or failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.clients import Client, InputRequest, Listener
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.call.identity import Caller, LinkOwner, Principal
from mcproxy.protocol.jsonrpc import ErrorObject, Params, RequestId
from mcproxy.protocol.methods import Kind, Method
from mcproxy.settings.access.policy import Approver, Effect


class RuleName(msgspec.Struct, frozen=True):
    """The name of a policy rule, as shown to people."""

    role: str
    effect: Effect
    number: int
    """Its position in its list, from 1."""
    place: str | None = None
    """`FILE:LINE`."""

    def __str__(self) -> str:
        where = f" ({self.place})" if self.place else ""
        return f"roles.{self.role}.{self.effect}, rule {self.number}{where}"


class Decision(msgspec.Struct, frozen=True, cache_hash=True):
    """The policy's decision on a call, or on an entry that may be called."""

    allowed: bool
    rule: RuleName | None = None
    """None if no rule applied, and the default decided."""
    approve: Approver | None = None
    """The party that has to approve the allowed call; None if it needs no approval."""


class CallSubject(msgspec.Struct, frozen=True):
    """The entry that a call is about, in its upstream's own names."""

    upstream: str = ""
    """Empty if it belongs to no upstream that the caller sees."""
    kind: Kind | None = None
    """None for a task, and for a call about nothing."""
    own: str = ""
    """The upstream's own name for it; the name that the caller wrote, if no upstream has it."""
    entry: Raw | None = None
    """Its entry in a list, if it has one."""
    decision: Decision | None = None
    """The policy's decision on it; None if that depends on arguments, or was not asked for."""
    judge: Callable[[Params], Decision] | None = None
    """The policy's decision on it with given arguments, if that was asked for."""
    final: Callable[[Params, Principal], Params] | None = None
    """Turns a caller's arguments into those that the upstream gets, if the two differ. Raises McpError."""
    tool: str = ""
    """Of a task: the upstream's own name of the tool whose call became it, if known."""
    is_guess: bool = False
    """Whether its upstream's list is not known yet, so that `own` may be any name."""


class HookVerdict(msgspec.Struct, frozen=True):
    """A hook's verdict on a call (`access.hooks`)."""

    phase: str
    mode: str
    decision: str
    """`allow`, `deny`, `change`, or `failed`."""
    reason: str = ""


class Notes(msgspec.Struct, eq=False):
    """Facts about a call that are found on its way, for metrics, audit, logs and later stages."""

    upstream_seconds: float = 0
    """Seconds that its upstream took."""
    asked: bool = False
    """Whether its client was asked for input between two requests upstream; that time is not the gateway's own."""
    carried_on: asyncio.Task[None] | None = None
    """The task in which a parked call goes on after its client's request has ended."""
    keep_place: Callable[[Callable[[], None]], None] | None = None
    """For a call that became a task: takes the function that frees the call's place among calls at once."""
    trace: str | None = None
    """The id of its trace, if one is recorded."""
    label: tuple[str, str] | None = None
    """The upstream and the tool or prompt that it went to, in its caller's names; None until that is found."""
    subject: CallSubject | None = None
    """Its subject, once found in its caller's view."""
    via: str | None = None
    """The gateway's own tool through which it was made (`features.search.indirect_calls`)."""
    approval: str | None = None
    """As in `InputRequired`, from the previous round."""
    approved: bool = False
    """Whether it may be sent under a policy by which such calls may need a person's approval."""
    verdicts: tuple[HookVerdict, ...] = ()
    """The verdicts of hooks on it, in order."""


class Call(msgspec.Struct, frozen=True):
    """One request on its way from a client to the part that answers.

    Its `params` hold no `_meta` key that belongs to a hop (`eras.HOP_META`): the edge removed these, and the link sets
    its own. Calls are never changed in place: `with_params` makes another.
    """

    row: Method
    """The row of its method, looked up once where the request came in (`methods.row_of`)."""
    params: Params
    caller: Caller
    client: Client
    listener: Listener | None = None
    """The caller's listener, which is told of changes between calls; None if it has none."""
    repeatable: bool = False
    """Whether its tool says that a second call has no further effect (R4); see `Method.safe_to_repeat`."""
    id: RequestId | None = None
    """The client's own id of the request; never sent to an upstream (requirement R24)."""
    notes: Notes = msgspec.field(default_factory=Notes)
    """Shared with the calls that stages derive from this one."""
    over: LinkOwner = None
    """The owner of the link that a call of the gateway's own must go over."""
    hurries: bool = True
    """Whether a link that is down is tried at once for it, though its server refused the last attempts."""

    @property
    def method(self) -> str:
        """The name of its method."""
        return self.row.name

    def with_params(self, params: Params) -> Call:
        """The same call with other params: its client, notes and caller are shared, not copied."""
        return replace(self, params=params)


class ResultFindings(msgspec.Struct, eq=False):
    """Findings about a result that is kept and served repeatedly; shared by all who get the result."""

    sound: bool = False
    """Whether its content is known to be allowed to its upstream."""
    renamed_by: object = None
    """The endpoint and upstream whose names are in `renamed`."""
    renamed: Params = {}
    """Those of its members that differ in the names of the endpoint that showed it last."""


class Complete(msgspec.Struct, frozen=True):
    """The final result as answered, `resultType` not necessarily set. Never changed in place."""

    result: Params
    is_error: bool = False
    """Whether it is a tool's own failure (`isError`)."""
    findings: ResultFindings | None = None
    """None for a result that is served once."""


class InputRequired(msgspec.Struct, frozen=True):
    """Input is needed first (2026-07-28, multi round-trip requests). At least one of `requests` and `state` is set."""

    requests: dict[str, InputRequest]
    state: str | None
    result: Params
    """The whole result as received, for its other members."""
    approval: str | None = None
    """The id by which the next round counts as approved, if a person approved this call."""


class LoginNeed(msgspec.Struct, frozen=True):
    """A person's login that an upstream demands before it takes a call. The call was not executed."""

    upstream: str
    owner: LinkOwner
    """The owner of the link, who has to log in; None if one login serves all callers."""
    why: str


class Failed(msgspec.Struct, frozen=True):
    """A failed call. `error` is the answer to the client, an upstream's own unchanged; `party` is at fault."""

    error: ErrorObject
    party: Party
    reason: Reason = Reason.PROTOCOL_ERROR
    login: LoginNeed | None = None
    """Set with LOGIN_NEEDED alone."""


class LoginRequired(McpError):
    """Raised where an upstream demands a login first; `failed` is the outcome of the call."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.error.code, failed.error.message, reason=failed.reason)
        self.failed = failed


Outcome = Complete | InputRequired | Failed


Handler = Callable[[Call], Awaitable[Outcome]]


Stage = Callable[[Handler], Handler]
"""Wraps a handler: one step of the pipeline."""
Label = Callable[[Call], tuple[str, str]]
"""The upstream and subject of a call as labels of metrics and traces, as far as known (requirement R52)."""
