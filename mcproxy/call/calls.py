"""A call, what is found out about it on its way, and its outcome: complete, input required or failed."""

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


class Decision(msgspec.Struct, frozen=True, cache_hash=True):
    """What the policy says of a call, or of what may be called."""

    allowed: bool
    rule: RuleName | None = None
    """None where no rule spoke of it, and the default decided."""
    approve: Approver | None = None
    """The party that has to approve a call that is allowed; None where it needs no approval."""


class CallSubject(msgspec.Struct, frozen=True):
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
    """The policy's decision on it; None where that depends on arguments, or was not asked for yet."""
    judge: Callable[[Params], Decision] | None = None
    """The policy's decision on it with certain arguments, where that was asked for."""
    final: Callable[[Params, Principal], Params] | None = None
    """Makes a caller's arguments those that the upstream gets, where they are others. Raises McpError."""
    tool: str = ""
    """Of a task the upstream's own name of the tool whose call became it, where that is known."""


class HookVerdict(msgspec.Struct, frozen=True):
    """What a hook said of a call (`access.hooks`)."""

    phase: str
    mode: str
    decision: str
    """`allow`, `deny`, `change`, or `failed`."""
    reason: str = ""


class Notes(msgspec.Struct, eq=False):
    """What is found out about a call on its way, for those who count it and write it down."""

    upstream_seconds: float = 0
    """How much of its time its upstream took."""
    asked: bool = False
    """Whether its client was asked something between two of its ways upstream, which took time too."""
    carried_on: asyncio.Task[None] | None = None
    """The task in which the call goes on once its client's request has ended: it was parked."""
    trace: str | None = None
    """The id of its trace, where one is recorded."""
    label: tuple[str, str] | None = None
    """The upstream and the tool or prompt that it went to, in its caller's names; None before it was found."""
    subject: CallSubject | None = None
    """What it is about, once that was found in its caller's view."""
    via: str | None = None
    """The tool of the gateway's own that it was made through (`gateway.search.indirect_calls`)."""
    approval: str | None = None
    """As in `InputRequired`, of the round before."""
    approved: bool = False
    """Whether it may be sent, by a policy under which such calls may need a person's approval."""
    verdicts: tuple[HookVerdict, ...] = ()
    """What hooks said of it, in order."""


class Call(msgspec.Struct, frozen=True):
    """One request on its way from a client to the part that answers.

    `params` holds no key of `_meta` that belongs to a hop (`eras.HOP_META`): the edge took them off, and the
    link sets its own. It is never changed in place: `with_params` makes the next one.
    """

    row: Method
    """The row of its method, looked up once where the request came in (`methods.row_of`)."""
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
    over: LinkOwner = None
    """Whose link it is about, for a call of the gateway's own: it goes over no other."""

    @property
    def method(self) -> str:
        """The name of its method."""
        return self.row.name

    def with_params(self, params: Params) -> Call:
        """The same call with other params: its client, notes and caller are shared, not copied."""
        return replace(self, params=params)


class ResultFindings(msgspec.Struct, eq=False):
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
    findings: ResultFindings | None = None
    """None where it is given once."""


class InputRequired(msgspec.Struct, frozen=True):
    """The answerer needs input first (2026-07-28, multi round-trip requests). One of the two is not empty."""

    requests: dict[str, InputRequest]
    state: str | None
    result: Params
    """The whole result as given, for what else it holds."""
    approval: str | None = None
    """By which the next round goes on as approved, where a person approved this call."""


class LoginNeed(msgspec.Struct, frozen=True):
    """A login of a person that an upstream wants before it takes a call. The call was not executed."""

    upstream: str
    owner: LinkOwner
    """Whose login it is: the owner of the link; None where one login serves all callers."""
    why: str


class Failed(msgspec.Struct, frozen=True):
    """A call that failed. `error` is what the client is answered, an upstream's own as it came; `party` is at fault."""

    error: ErrorObject
    party: Party
    reason: Reason = Reason.PROTOCOL_ERROR
    login: LoginNeed | None = None
    """With LOGIN_NEEDED alone."""


class LoginRequired(McpError):
    """A refusal whose reason is that an upstream wants a login first; `failed` is the outcome of such a call."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.error.code, failed.error.message, reason=failed.reason)
        self.failed = failed


Outcome = Complete | InputRequired | Failed


Handler = Callable[[Call], Awaitable[Outcome]]


Stage = Callable[[Handler], Handler]
"""Wraps a handler: one step of the pipeline."""
Label = Callable[[Call], tuple[str, str]]
"""Names a call's upstream and subject for metrics and traces, as far as they are known (requirement R52)."""
