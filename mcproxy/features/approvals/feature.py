"""Holds a call until a person approves it, if the policy says so (`approve` in an allow rule).

The person is the caller or an operator. The caller is asked through the call's own client: the stage stands inside the
bridge, so a stateless client's call is parked like any other call that asks for input. It is also parked while an
operator decides. An operator decides on the status page, through the webhook's answer, or at the link that the webhook
gets, but never over the caller's connection. The call that is sent is the very call that waited: nothing is rebuilt
from what a client sends later.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, Protocol

import anyio
import structlog
from msgspec.structs import replace

from mcproxy.access.approval_links import ApprovalLinks
from mcproxy.access.audit.operator_records import OperatorRecord
from mcproxy.access.outgoing.repeating import repeated
from mcproxy.access.outgoing.webhooks import SignedWebhook, WebhookFailed
from mcproxy.call.calls import Call, Failed, Handler, InputRequired, Outcome
from mcproxy.call.clients import ReferringClient
from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import Principal
from mcproxy.catalog.freshness import DOUBTFUL
from mcproxy.concurrency.retirement import Retirable
from mcproxy.features.approvals.approval import (
    Approval,
    ApprovalEvent,
    ApprovalState,
    ApprovalSubject,
    event_of,
    payload,
)
from mcproxy.features.approvals.rounds import ApprovedRounds
from mcproxy.gateway.feature import Core, Feature, Place, Placed
from mcproxy.gateway.legible import masked
from mcproxy.gateway.listings.keys import ListKey
from mcproxy.gateway.listings.routes import ExposedRoute
from mcproxy.protocol.eras import STATELESS_VERSIONS
from mcproxy.protocol.inputs import missing_capabilities, named
from mcproxy.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MISSING_CLIENT_CAPABILITY,
    InvalidMessage,
    Params,
    json_of,
    parse_object,
    parse_text,
    raw,
)
from mcproxy.protocol.methods import Kind, Subject
from mcproxy.settings.access.approvals import ApprovalSettings
from mcproxy.settings.access.policy import Approver
from mcproxy.telemetry.logs import masking

log = structlog.get_logger()

BY_LINK: Final = "the link of the webhook"
BY_WEBHOOK: Final = "the webhook"
"""The decider in the audit log if the webhook decided rather than a principal."""

NOT_WAITING: Final = "this call waits no more: it was decided, its time is over, or its caller left"
OWN_CALL: Final = "this call is your own: another operator has to decide"
VOID: Final = "this call is void and will not run: what it is about changed, as by a reload; its caller may call again"
"""Tells an operator why the decision comes too late."""
MAX_VOIDED: Final = 256
"""The most void approvals to remember, so that an operator learns why a decision came too late."""


class Webhook(Retirable, Protocol):
    """Sends a message to an operator's service and returns the answer (`access.outgoing.webhooks`)."""

    async def __call__(self, payload: Params, id: str | None = None) -> Params | None:
        """Raises WebhookFailed."""


def webhook_of(settings: ApprovalSettings) -> Webhook | None:
    """The configured webhook, or None."""
    return None if settings.webhook is None else SignedWebhook(settings.webhook)


class _Pending:
    """What survives a reload: waiting calls, approved calls, and void approvals."""

    def __init__(self, latest: CallApprovals, settings: ApprovalSettings, clock: Callable[[], float]) -> None:
        self.latest = latest
        """By the settings in force."""
        self.waiting: dict[str, Approval] = {}
        self.rounds = ApprovedRounds(settings, clock)
        self.generation = 0
        """How many different `access` settings were in force before the current ones."""
        self.voided: deque[str] = deque(maxlen=MAX_VOIDED)
        """Ids of the most recent approvals that became void."""

    def void(self, approval: Approval) -> None:
        """Ends an approval as outdated and frees its slot. The caller learns of it at once or at its next retry."""
        if approval.move(ApprovalEvent.OUTDATED):
            self.voided.append(approval.id)


class CallApprovals(Feature):
    """Holds calls that a person must approve. `webhook` creates the webhook from the settings, if one is configured."""

    name = "approvals"

    def __init__(
        self,
        core: Core,
        webhook: Callable[[ApprovalSettings], Webhook | None] = webhook_of,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._access = core.settings.access
        self._settings = self._access.approvals
        self._is_needed = self._access.policy.approves
        self._kept_upstreams = core.kept
        self._catalogue = core.catalogue
        self._metrics = core.metrics
        self._learn = core.resolver.learn
        self._refetch = core.fetcher.refetched
        self._record = core.audit.note
        self._webhook = webhook(self._settings)
        self._sleep = core.sleep
        self._clock = clock
        self._mask = masking(core.settings.secrets)
        self._pending = _Pending(self, self._settings, clock)
        self.links = ApprovalLinks(core.sealer)
        """The links through which people behind the webhook decide."""
        self._count_waiting()

    def adopt(self, previous: CallApprovals) -> None:
        """Keeps waiting calls, and voids those that the reload affects.

        A pending approval becomes void if the policy would now decide differently, if the call would no longer be the
        same, or if its upstream was replaced: another server may now answer under the same name.
        """
        pending = self._pending = previous._pending
        pending.latest = self
        self.links = previous.links
        self._count_waiting()
        if self._settings.webhook == previous._settings.webhook:
            self._webhook = previous._webhook
        if self._access != previous._access:
            pending.generation += 1
        for approval in pending.waiting.values():
            if approval.upstream not in self._kept_upstreams or not approval.holds():
                pending.void(approval)
        pending.rounds.reconfigure(self._settings, self._kept_upstreams)

    def _count_waiting(self) -> None:
        self._metrics.approvals_waiting.set_function(self._pending.waiting.__len__)

    def stages(self) -> Iterable[Placed]:
        return [Placed(Place.APPROVE, "waits until a person has approved the call", self.approved)]

    def resources(self) -> Iterable[Retirable]:
        return self._webhooks()

    def approved(self, handler: Handler) -> Handler:
        """Holds a call that needs approval until a person has approved it, or refuses the call.

        The policy that applies is the one in force now, not the one at the call's arrival: an earlier stage may have
        held the call for a long time.
        """

        def approving(call: Call) -> Awaitable[Outcome]:
            latest = self._pending.latest
            asks = latest._is_needed and call.row.subject is Subject.TOOL
            return latest._approve(handler, call) if asks else handler(call)

        return approving

    async def _approve(self, handler: Handler, call: Call) -> Outcome:
        route = self._route(call)
        if route is None:
            # Not listed yet: fetch the upstream's list, as the router would. That needs no approval.
            await self._learn(call)
            route = self._route(call)
        if route is None or not route.may_need_approval:
            return await handler(call)
        arguments = _final(route, call)
        decision = route.subject.decision or (route.subject.judge(arguments) if route.subject.judge else None)
        if decision is None or not decision.allowed or decision.approve is None:
            call.notes.approved = True
            return await handler(call)
        subject = self._subject(route, call, arguments)
        if not self._pending.rounds.take(call.notes.approval, subject):
            refusal = await self._ask(self._new(subject, decision.approve, route, arguments, call), call)
            if refusal is not None:
                return refusal
        call.notes.approved = True
        outcome = await handler(call)
        if isinstance(outcome, InputRequired):
            return replace(outcome, approval=self._pending.rounds.keep(subject))
        return outcome

    def _webhooks(self) -> list[Webhook]:
        return [] if self._webhook is None else [self._webhook]

    def waiting(self) -> list[Approval]:
        """The approvals that wait for an operator, oldest first."""
        return [approval for approval in self._pending.waiting.values() if approval.awaits_operator]

    def decide(self, id: str, operator: Principal | None, *, approve: bool) -> str | None:
        """Records a decision. Returns None if it counts, else a sentence that says why it does not.

        `operator` is None for a visitor who followed the webhook's link.
        """
        if id in self._pending.voided:
            return VOID
        approval = self._pending.waiting.get(id)
        if approval is None or not approval.awaits_operator:
            return NOT_WAITING
        if operator is not None and not operator.is_anonymous and operator.name == approval.subject.principal:
            return OWN_CALL
        return self._decide(approval, BY_LINK if operator is None else operator.name, approve=approve)

    def _decide(self, approval: Approval, by: str, *, approve: bool) -> str | None:
        if not approval.holds():
            self._pending.void(approval)
            return VOID
        if not approval.move(ApprovalEvent.APPROVED if approve else ApprovalEvent.DENIED):
            return NOT_WAITING
        action = "approve" if approve else "deny"
        log.info("an operator decided", approval=approval.id, by=by, decision=action)
        self._record(OperatorRecord(self._clock(), by, action, f"{approval.upstream}/{approval.subject.tool}"))
        return None

    def _route(self, call: Call) -> ExposedRoute | None:
        name = parse_text(call.params.get("name", b""))
        return None if name is None else self._catalogue.routes(call.caller).find(Kind.TOOLS, name)

    def _subject(self, route: ExposedRoute, call: Call, arguments: Params) -> ApprovalSubject:
        return ApprovalSubject(
            call.caller.principal.name,
            route.shown.upstream,
            route.shown.own,
            _digest(json_of(arguments)),
            _digest(bytes(route.shown.entry)),
            self._pending.generation,
        )

    def _new(
        self, subject: ApprovalSubject, approver: Approver, route: ExposedRoute, arguments: Params, call: Call
    ) -> Approval:
        """Creates an approval. Raises McpError if too many are already waiting."""
        limits = self._settings
        of_caller = sum(other.subject.principal == subject.principal for other in self._pending.waiting.values())
        if len(self._pending.waiting) >= limits.max_waiting or of_caller >= limits.max_waiting_per_principal:
            sentence = "busy: too many calls wait for approval (access.approvals.max_waiting)"
            raise McpError(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)
        now = self._clock()
        id = secrets.token_urlsafe(12)
        holds = partial(self._holds, subject, call)
        rules = route.shown.arguments
        fixed = () if rules is None else rules.fixed.keys()
        shown = raw(masked(arguments, fixed, self._mask))
        name, given = route.shown.key, raw(_given(call))
        return Approval(
            id, subject, approver, name, given, arguments=shown, asked_at=now, expires=now + limits.timeout, holds=holds
        )

    async def _ask(self, approval: Approval, call: Call) -> Failed | None:
        """Waits for the decision. Returns None if the call may be sent, now and once. Raises McpError."""
        if approval.approver == "caller":
            _check_askable(call)
        call.notes.asked = True
        self._pending.waiting[approval.id] = approval
        deadline = anyio.current_time() + self._settings.timeout
        try:
            await (self._ask_caller if approval.approver == "caller" else self._ask_operator)(approval, call, deadline)
            unlisted = await self._listed_anew(call) if approval.state is ApprovalState.APPROVED else None
            if unlisted is not None:
                approval.move(ApprovalEvent.OUTDATED)
        except BaseException:
            # Cancelled: the caller is gone, or did not retry its parked call in time.
            approval.move(ApprovalEvent.GIVEN_UP)
            raise
        finally:
            del self._pending.waiting[approval.id]
            if approval.state is ApprovalState.APPROVED:
                approval.move(ApprovalEvent.SPENT if approval.holds() else ApprovalEvent.OUTDATED)
            self._metrics.approvals.labels(approval.approver, approval.outcome).inc()
        if approval.state is ApprovalState.USED:
            return None
        return unlisted or approval.refusal

    async def _ask_caller(self, approval: Approval, call: Call, deadline: float) -> None:
        async def put() -> None:
            try:
                answer = await call.client.ask(approval.question)
            except McpError as failure:
                is_late = failure.reason is Reason.TIMEOUT
                approval.move(ApprovalEvent.TIMED_OUT if is_late else ApprovalEvent.GIVEN_UP)
            else:
                approval.move(event_of(answer))

        await _decided(approval, deadline, put)

    async def _ask_operator(self, approval: Approval, call: Call, deadline: float) -> None:
        log.info("a call waits for an operator", approval=approval.id, upstream=approval.subject.upstream)
        telling = [partial(self._tell, webhook, approval) for webhook in self._webhooks()]
        if not isinstance(call.client, ReferringClient):
            await _decided(approval, deadline, *telling)
            return
        with call.client.referred():
            await _decided(approval, deadline, *telling)
            if approval.state is ApprovalState.APPROVED:
                # Nothing is sent for a client that left. A client between two retries has as long as for any parked
                # call: the decision came in time and is not lost.
                await _unless(approval.over, call.client.present)

    def _note_attempt(self, outcome: str) -> None:
        self._metrics.approval_webhook_attempts.labels(outcome).inc()

    async def _tell(self, webhook: Webhook, approval: Approval) -> None:
        """Calls the webhook. If its answer is not a decision, an operator decides on the status page."""
        settings = self._settings.webhook
        attempts = 1 if settings is None else settings.attempts
        told, id = payload(approval, self.links.link(approval.id)), f"msg_{approval.id}"
        try:
            answer = await repeated(lambda: webhook(told, id), attempts, self._note_attempt, self._sleep)
        except WebhookFailed as failed:
            log.warning("the webhook for approvals failed", why=str(failed))
            return
        decision = parse_text((answer or {}).get("decision", b""))
        if decision in {"allow", "deny"}:
            self._decide(approval, BY_WEBHOOK, approve=decision == "allow")

    def _holds(self, subject: ApprovalSubject, call: Call) -> bool:
        """Returns whether the call, if sent now, would still be the one that was approved."""
        route = self._route(call)
        try:
            return route is not None and self._subject(route, call, _final(route, call)) == subject
        except McpError:
            return False  # the policy no longer lets the caller send these arguments

    async def _listed_anew(self, call: Call) -> Failed | None:
        """Fetches the tool's list again if the upstream may have changed the tool. Returns the failure, if any.

        This starts an idle server: after the start, the tool may differ from the one that the person was shown.
        """
        route = self._route(call)
        if route is None:
            return None
        key = ListKey(self._catalogue.link(route.space, call.caller), Kind.TOOLS)
        is_known = self._catalogue.known.freshness(key.link, key.kind) is not DOUBTFUL
        return None if is_known else await self._refetch(key, call)


async def _decided(approval: Approval, deadline: float, *asking: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Waits until anyone has decided, or until the deadline (in seconds of the event loop's clock).

    A decision made after the deadline but before the deadline was noticed counts: the person was told so.
    """
    with anyio.CancelScope(deadline=deadline):
        async with anyio.create_task_group() as tasks:
            for ask in asking:
                tasks.start_soon(ask)
            await approval.decided.wait()
            tasks.cancel_scope.cancel()
    if approval.state is ApprovalState.WAITING:
        approval.move(ApprovalEvent.TIMED_OUT)


async def _unless(over: anyio.Event, wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs `wait`, and cancels it as soon as `over` is set."""
    async with anyio.create_task_group() as tasks:

        async def stop() -> None:
            await over.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(stop)
        await wait()
        tasks.cancel_scope.cancel()


def _check_askable(call: Call) -> None:
    """Raises McpError if the caller's client cannot show a form."""
    missing = missing_capabilities(call.caller.capabilities, "elicitation/create", {})
    if not missing:
        return
    sentence = f"this call needs its caller's approval, and the client cannot ask: it did not declare {named(missing)}"
    stateless = call.caller.version in STATELESS_VERSIONS
    code = MISSING_CLIENT_CAPABILITY if stateless else INVALID_REQUEST
    raise McpError(code, sentence, {"requiredCapabilities": missing}, reason=Reason.APPROVAL_WITHDRAWN)


def _given(call: Call) -> Params:
    """The arguments of a call in its caller's names.

    Arguments that are not an object count as no arguments here; the router refuses them.
    """
    try:
        return parse_object(call.params.get("arguments", b"{}"))
    except InvalidMessage:
        return {}


def _final(route: ExposedRoute, call: Call) -> Params:
    """The arguments that the upstream gets; the policy judges these.

    Raises McpError if callers may not send them.
    """
    final = route.subject.final
    return _given(call) if final is None else final(_given(call), call.caller.principal)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
