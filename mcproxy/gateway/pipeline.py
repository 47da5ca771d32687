"""What happens to a call, in order: the list in `build`. Read it first.

A stage wraps a handler and returns one. Errors become outcomes here, and in no other place of the gateway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, assert_never

import structlog

from mcproxy.call import (
    Call,
    Complete,
    Failed,
    Handler,
    InputRequired,
    McpError,
    Outcome,
    Party,
    Reason,
    Stage,
)
from mcproxy.metrics import UNKNOWN, Metrics
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, ErrorObject
from mcproxy.protocol.methods import METHODS

log = structlog.get_logger()

Label = Callable[[Call], tuple[str, str]]
"""The names of a call's upstream and subject, as far as they are known (requirement R52)."""

CRASHED: Final = Failed(ErrorObject(INTERNAL_ERROR, "internal error of the gateway: see its log"), Party.GATEWAY)


def build(route: Handler, *, metrics: Metrics, label: Label, bridged: Stage) -> Handler:
    """The whole way of a call."""
    return stack([counted(metrics, label), contained, bridged], route)


def stack(stages: Sequence[Stage], route: Handler) -> Handler:
    """`route` inside all stages; the first stage is the outermost."""
    for stage in reversed(stages):
        route = stage(route)
    return route


def counted(metrics: Metrics, label: Label, clock: Callable[[], float] = time.perf_counter) -> Stage:
    """Counts calls by outcome, and times them."""

    def stage(handler: Handler) -> Handler:
        async def counting(call: Call) -> Outcome:
            method = call.method if call.method in METHODS else UNKNOWN
            began, outcome_label = clock(), Reason.CANCELLED.value
            metrics.in_flight.inc()
            try:
                outcome = await handler(call)
                outcome_label = _label_of(outcome)
            finally:
                upstream, subject = label(call)
                metrics.in_flight.dec()
                metrics.requests.labels(upstream, method, subject, outcome_label).inc()
                metrics.duration.labels(upstream, method).observe(clock() - began)
            return outcome

        return counting

    return stage


def contained(handler: Handler) -> Handler:
    """Turns refusals into failures, and a crash of ours into one that tells the client nothing."""

    async def containing(call: Call) -> Outcome:
        try:
            return await handler(call)
        except McpError as refusal:
            party = Party.UPSTREAM if refusal.reason is Reason.UNAVAILABLE else Party.CLIENT
            return Failed(refusal.error(), party, refusal.reason)
        except Exception:
            log.exception("a call crashed", method=call.method if call.method in METHODS else UNKNOWN)
            return CRASHED

    return containing


def _label_of(outcome: Outcome) -> str:
    match outcome:
        case Complete(is_error=True):
            return "tool_error"
        case Complete():
            return "ok"
        case InputRequired():
            return "input_required"
        case Failed(reason=reason):
            return reason.value
        case _:
            assert_never(outcome)
