"""The core's own stages: log lines, metrics and audit, errors as outcomes, limits.

A stage wraps a handler and returns one. `gateway.feature.Place` has their order, and `mcproxy explain --pipeline`
prints all of them. Errors become outcomes only in `contained`. Who may use what is decided where a name is looked up,
in the caller's own view (`resolving`), and not in a stage.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, assert_never

import structlog

from mcproxy.access.audit.audit_log import AuditLog
from mcproxy.access.audit.records import Digests, End, recorded, trace_id
from mcproxy.call.calls import (
    Call,
    CallSubject,
    Complete,
    Failed,
    Handler,
    InputRequired,
    Label,
    LoginRequired,
    Outcome,
    Stage,
)
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.concurrency.turns import in_turns
from mcproxy.gateway.resolving.call_subjects import CallSubjects
from mcproxy.protocol.json.repeated_members import find_repeated, is_distinct
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, ErrorObject, size_of
from mcproxy.protocol.methods import Kind
from mcproxy.sealing import Digest
from mcproxy.settings import Settings
from mcproxy.telemetry.logs import about
from mcproxy.telemetry.metrics import UNKNOWN, Metrics

log = structlog.get_logger()

MAX_ID: Final = 64
"""Characters of a request's id that are logged."""

CRASHED: Final = Failed(ErrorObject(INTERNAL_ERROR, "internal error of the gateway: see its log"), Party.GATEWAY)

_TOOLS: Final = Kind.TOOLS
_CANCELLED: Final = Reason.CANCELLED.value


def stack(stages: Sequence[Stage], route: Handler) -> Handler:
    """`route` inside all stages; the first stage is the outermost."""
    for stage in reversed(stages):
        route = stage(route)
    return route


def attributed(handler: Handler) -> Handler:
    """Adds the request's id and trace to every line that is logged during the call."""

    async def attributing(call: Call) -> Outcome:
        token = about.set(lambda: _facts(call))
        try:
            return await handler(call)
        finally:
            about.reset(token)

    return attributing


def _facts(call: Call) -> dict[str, object]:
    """The client's own id of the request, escaped, and its trace id, as in the audit log."""
    id = call.id[:MAX_ID].encode("unicode_escape").decode() if isinstance(call.id, str) else call.id
    facts = {"request": id, "trace": call.notes.trace or trace_id(call.params)}
    return {name: fact for name, fact in facts.items() if fact is not None}


def accounted(
    metrics: Metrics,
    label: Label,
    audit: AuditLog,
    judged_subject: CallSubjects,
    digest: Digest,
    clock: Callable[[], float] = time.perf_counter,
) -> Stage:
    """Counts calls by outcome, times them, and writes each to the audit log, with its outcome or without one.

    One stage for metrics and audit, so that each call is timed and measured once, and both say the same of it.
    """

    calls, is_audited, digests = metrics.calls, audit.on, Digests(digest)

    def stage(handler: Handler) -> Handler:
        async def accounting(call: Call) -> Outcome:
            began = clock()
            seen: CallSubject | None = None  # until the audit waits for the call's record
            outcome: Outcome | None = None
            calls.running += 1
            try:
                if is_audited:
                    at, subject = audit.clock(), judged_subject(call)
                    if not audit.begins():
                        await audit.wait()
                    seen = subject
                outcome = await handler(call)
            except McpError as refusal:  # of the audit: `contained` lets no other pass
                outcome = Failed(refusal.error(), Party.GATEWAY, refusal.reason)
            finally:
                calls.running -= 1
                row, notes, seconds = call.row, call.notes, clock() - began
                outcome_label = _CANCELLED if outcome is None else _label_of(outcome)
                size = size_of(outcome.result) if row.may_fail and type(outcome) is Complete else None
                upstream, name = label(call)
                account = calls.account(upstream, row.name if row.known else UNKNOWN, name)
                elsewhere = notes.upstream_seconds
                own = seconds - elsewhere if elsewhere and not notes.asked else None
                account.count(outcome_label, seconds, own, notes.trace, size)
                if seen is not None:
                    end = End(at, seconds, outcome_label, outcome, size)
                    audit.end(recorded(call, seen, end, audit.arguments, digests))
            return outcome

        return accounting

    return stage


def contained(handler: Handler) -> Handler:
    """Turns refusals into failures, and a crash of ours into one that tells the client nothing.

    Also for what outlives a call's own request: a parked call, and a read that several callers share. An upstream's
    error is an outcome already, and passes.
    """

    async def containing(call: Call) -> Outcome:
        try:
            return await handler(call)
        except LoginRequired as refusal:
            return refusal.failed
        except McpError as refusal:
            party = Party.UPSTREAM if refusal.reason is Reason.UNAVAILABLE else Party.CLIENT
            return Failed(refusal.error(), party, refusal.reason)
        except Exception:
            log.exception("a call crashed", method=call.row.name if call.row.known else UNKNOWN)
            return CRASHED

    return containing


def unambiguous(handler: Handler) -> Handler:
    """Refuses params in which an object names a member twice: who judges them might read another value than the server.

    Of a member that `params` themselves name twice, the edge read one, and only that is judged and sent.
    """

    def checking(call: Call) -> Awaitable[Outcome]:
        if is_distinct(*call.params.values()):
            return handler(call)
        return _look_closely(handler, call)

    return checking


def judges_params(settings: Settings) -> bool:
    """Whether anything but the servers may judge or record what is inside of calls' params."""
    access = settings.access
    rules = (rule for role in access.policy.roles.values() for rule in (*role.allow, *role.deny))
    overrides = (each for spec in settings.upstreams for each in spec.tools.overrides.values())
    is_recorded = access.audit.file is not None and access.audit.arguments != "none"
    return (
        bool(access.hooks)
        or is_recorded
        or access.policy.approves
        or any(rule.arguments for rule in rules)
        or any(override.arguments for override in overrides)
    )


async def _look_closely(handler: Handler, call: Call) -> Outcome:
    for name, value in call.params.items():
        if (flaw := await in_turns(find_repeated(value))) is not None:
            raise McpError(INVALID_PARAMS, f'"{name[:MAX_ID]}" {flaw}: send each member once')
    return await handler(call)


def _label_of(outcome: Outcome) -> str:
    if isinstance(outcome, Complete):
        return "tool_error" if outcome.is_error else "ok"
    match outcome:
        case InputRequired():
            return "input_required"
        case Failed(reason=reason):
            return reason.value
        case _:
            assert_never(outcome)
