"""The twin of `mcproxy.gateway.pipeline`."""

from __future__ import annotations

import anyio
import pytest
import structlog.testing

from mcproxy.call import (
    ANONYMOUS,
    Call,
    Caller,
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
from mcproxy.gateway.pipeline import contained, counted, stack
from mcproxy.metrics import Metrics
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import EMPTY_OBJECT, INTERNAL_ERROR, INVALID_PARAMS
from tests.fakes.upstream import FakeClient, failed

pytestmark = pytest.mark.anyio


def call(method: str = "tools/call") -> Call:
    return Call(method, {}, Caller(ANONYMOUS, LATEST), FakeClient())


def answering(outcome: Outcome) -> Handler:
    async def handler(call: Call) -> Outcome:
        return outcome

    return handler


def raising(error: BaseException) -> Handler:
    async def handler(call: Call) -> Outcome:
        raise error

    return handler


async def test_stages_wrap_in_the_order_in_which_they_are_read() -> None:
    passed: list[str] = []

    def noting(name: str) -> Stage:
        def stage(handler: Handler) -> Handler:
            async def noting(call: Call) -> Outcome:
                passed.append(name)
                return await handler(call)

            return noting

        return stage

    await stack([noting("outer"), noting("inner")], answering(Complete(EMPTY_OBJECT)))(call())
    assert passed == ["outer", "inner"]


async def test_a_refusal_becomes_a_failure_with_its_code_sentence_and_data() -> None:
    outcome = await contained(raising(McpError(INVALID_PARAMS, "no such tool", {"name": "x"})))(call())
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, outcome.error.message, bytes(outcome.error.data or b"")) == (
        INVALID_PARAMS,
        "no such tool",
        b'{"name":"x"}',
    )
    assert outcome.party is Party.CLIENT


async def test_an_unavailable_upstream_is_the_upstreams_affair() -> None:
    outcome = await contained(raising(McpError(INTERNAL_ERROR, "away", reason=Reason.UNAVAILABLE)))(call())
    assert isinstance(outcome, Failed)
    assert (outcome.party, outcome.reason) == (Party.UPSTREAM, Reason.UNAVAILABLE)


async def test_r44_a_crash_is_logged_and_tells_the_client_nothing() -> None:
    with structlog.testing.capture_logs() as logs:
        outcome = await contained(raising(ZeroDivisionError("the secret")))(call())
    assert isinstance(outcome, Failed)
    assert outcome.error.code == INTERNAL_ERROR
    assert "secret" not in outcome.error.message
    assert outcome.party is Party.GATEWAY
    assert [entry["event"] for entry in logs] == ["a call crashed"]


@pytest.mark.parametrize(
    ("outcome", "label"),
    [
        (Complete(EMPTY_OBJECT), "ok"),
        (Complete(EMPTY_OBJECT, is_error=True), "tool_error"),
        (InputRequired({}, "s", EMPTY_OBJECT), "input_required"),
        *((failed("", reason=reason), reason.value) for reason in Reason),
    ],
)
async def test_r52_outcomes_are_told_apart(outcome: Outcome, label: str) -> None:
    metrics = Metrics()
    await counted(metrics, lambda call: ("up", "x"))(answering(outcome))(call())
    labels = {"upstream": "up", "method": "tools/call", "subject": "x", "outcome": label}
    assert metrics.registry.get_sample_value("mcproxy_requests_total", labels) == 1
    assert metrics.registry.get_sample_value("mcproxy_requests_in_flight") == 0


async def test_r52_a_made_up_method_makes_no_label() -> None:
    metrics = Metrics()
    await counted(metrics, lambda call: ("", ""))(answering(Complete(EMPTY_OBJECT)))(call("made/up"))
    labels = {"upstream": "", "method": "unknown", "subject": "", "outcome": "ok"}
    assert metrics.registry.get_sample_value("mcproxy_requests_total", labels) == 1


async def test_r52_a_cancelled_call_is_counted_so_and_timed() -> None:
    metrics, ticks = Metrics(), iter((1.0, 3.5))

    async def forever(call: Call) -> Outcome:
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.CancelScope() as scope:
        scope.cancel()
        await counted(metrics, lambda call: ("up", ""), lambda: next(ticks))(forever)(call())
    labels = {"upstream": "up", "method": "tools/call"}
    cancelled = {**labels, "subject": "", "outcome": "cancelled"}
    assert metrics.registry.get_sample_value("mcproxy_requests_total", cancelled) == 1
    assert metrics.registry.get_sample_value("mcproxy_request_duration_seconds_sum", labels) == 2.5
    assert metrics.registry.get_sample_value("mcproxy_requests_in_flight") == 0
