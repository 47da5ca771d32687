"""The twin of `mcproxy.gateway.pipeline`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
import structlog.testing
from msgspec.structs import replace

from mcproxy.access.audit.audit_log import AuditLog
from mcproxy.call.calls import Call, CallSubject, Complete, Failed, Handler, InputRequired, Notes, Outcome, Stage
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.call.identity import ANONYMOUS, Caller, Principal
from mcproxy.gateway.pipeline import accounted, attributed, contained, stack
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, LIMIT_EXCEEDED, raw
from mcproxy.protocol.methods import Kind, row_of
from mcproxy.settings import Settings
from mcproxy.settings.access.audit import AuditSettings
from mcproxy.telemetry.logs import about
from mcproxy.telemetry.metrics import Metrics
from tests.fakes.upstream import FakeClient, FakeUpstream, House, complete, error, failed, house, quiet, tool
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


def call(method: str = "tools/call") -> Call:
    return Call(row_of(method), {}, Caller(ANONYMOUS, LATEST), FakeClient())


def answering(outcome: Outcome) -> Handler:
    async def handler(call: Call) -> Outcome:
        return outcome

    return handler


def counted(
    metrics: Metrics, upstream: str = "up", subject: str = "", clock: Callable[[], float] = time.perf_counter
) -> Stage:
    """The stage that counts and times calls, without an audit log."""
    off = AuditLog(AuditSettings(), metrics)
    return accounted(
        metrics, lambda call: (upstream, subject), off, lambda call: CallSubject(), lambda purpose, payload: "", clock
    )


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

    await stack([noting("outer"), noting("inner")], answering(Complete({})))(call())
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
        (Complete({}), "ok"),
        (Complete({}, is_error=True), "tool_error"),
        (InputRequired({}, "s", {}), "input_required"),
        *((failed("", reason=reason), reason.value) for reason in Reason),
    ],
)
async def test_r52_outcomes_are_told_apart(outcome: Outcome, label: str) -> None:
    metrics = Metrics()
    await counted(metrics, subject="x")(answering(outcome))(call())
    labels = {"upstream": "up", "method": "tools/call", "subject": "x", "outcome": label}
    assert metrics.registry.get_sample_value("mcproxy_requests_total", labels) == 1
    assert metrics.registry.get_sample_value("mcproxy_requests_in_flight") == 0


async def test_r52_a_made_up_method_makes_no_label() -> None:
    metrics = Metrics()
    await counted(metrics, upstream="")(answering(Complete({})))(call("made/up"))
    labels = {"upstream": "", "method": "unknown", "subject": "", "outcome": "ok"}
    assert metrics.registry.get_sample_value("mcproxy_requests_total", labels) == 1


async def test_r52_a_cancelled_call_is_counted_so_and_timed() -> None:
    metrics, ticks = Metrics(), iter((1.0, 3.5))

    async def forever(call: Call) -> Outcome:
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.CancelScope() as scope:
        scope.cancel()
        await counted(metrics, clock=lambda: next(ticks))(forever)(call())
    labels = {"upstream": "up", "method": "tools/call"}
    cancelled = {**labels, "subject": "", "outcome": "cancelled"}
    assert metrics.registry.get_sample_value("mcproxy_requests_total", cancelled) == 1
    assert metrics.registry.get_sample_value("mcproxy_request_duration_seconds_sum", labels) == 2.5
    assert metrics.registry.get_sample_value("mcproxy_requests_in_flight") == 0


async def test_lines_of_a_call_say_its_request_and_its_trace_and_others_do_not() -> None:
    facts: list[object] = []

    async def logging(call: Call) -> Outcome:
        facts.append(about.get())
        return Complete({})

    trace = "0af7651916cd43dd8448eb211c80319c"
    meta = {"_meta": raw({"traceparent": f"00-{trace}-b7ad6b7169203331-01"})}
    await attributed(logging)(replace(call(), id="7\x1b[2J", params=meta))
    await attributed(logging)(replace(call(), id=8, notes=Notes(trace="1" * 32)))
    await attributed(logging)(call())
    assert about.get() is None
    assert [fact() for fact in facts if callable(fact)] == [
        {"request": "7\\x1b[2J", "trace": trace},
        {"request": 8, "trace": "1" * 32},
        {},
    ]


@pytest.mark.parametrize(("asked", "own"), [(False, 0.5), (True, None)])
async def test_the_gateways_own_time_is_what_neither_upstream_nor_client_took(asked: bool, own: float | None) -> None:
    metrics, ticks = Metrics(), iter((1.0, 3.5))

    async def upstream(call: Call) -> Outcome:
        call.notes.upstream_seconds += 2
        call.notes.asked = asked
        return Complete({})

    await counted(metrics, clock=lambda: next(ticks))(upstream)(call())
    assert metrics.registry.get_sample_value("mcproxy_own_duration_seconds_sum", {"upstream": "up"}) == own


def busy(name: str = "up") -> FakeUpstream:
    upstream = FakeUpstream(name)
    upstream.lists[Kind.TOOLS] = [tool("push"), tool("pull")]
    upstream.answers["tools/call"] = lambda call: complete(content=[])
    return upstream


def limiting(**rule: object) -> dict[str, object]:
    return {"limits": {"rules": {"the-limit": rule}}}


def refusals(h: House, upstream: str) -> float | None:
    return h.metrics.registry.get_sample_value("mcproxy_limited_total", {"upstream": upstream, "limit": "the-limit"})


async def test_a_call_over_a_limit_is_refused_with_when_to_come_again_and_reaches_nobody() -> None:
    async with house(busy(), access=limiting(rate="1/h", tools=["push"])) as h:
        await h.ready()
        await h.call("tools/call", name="up__push")
        refused = error(await h.call("tools/call", name="push", endpoint="up"))
        assert (refused.code, bytes(refused.data or b"")) == (
            LIMIT_EXCEEDED,
            b'{"retryAfter":3600,"limit":"the-limit"}',
        )
        assert h["up"].count("tools/call") == 1
        assert refusals(h, "up") == 1
        labels = {"upstream": "up", "method": "tools/call", "subject": "push", "outcome": "rate_limited"}
        assert h.metrics.registry.get_sample_value("mcproxy_requests_total", labels) == 1


async def test_a_new_session_or_another_era_brings_no_new_allowance() -> None:
    async with house(busy(), access=limiting(rate="1/h", per=["principal"])) as h:
        await h.ready()
        await h.call("tools/call", name="up__push", session="one")
        for route in ({"session": "two"}, {"version": LATEST}, {"endpoint": "up"}):
            name = "push" if route.get("endpoint") else "up__push"
            assert error(await h.call("tools/call", name=name, **route)).code == LIMIT_EXCEEDED  # type: ignore[arg-type]  # options
        other = await h.call("tools/call", name="up__push", principal=Principal("ann"))
        assert isinstance(other, Complete)


async def test_calls_at_once_are_let_go_of_when_they_are_cancelled() -> None:
    async with house(busy(), access=limiting(at_once=1)) as h:
        await h.ready()
        h["up"].gate.shut()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: h.call("tools/call", name="up__push"))
            await h["up"].gate.holds(1)
            assert error(await h.call("tools/call", name="up__pull")).code == LIMIT_EXCEEDED
            tasks.cancel_scope.cancel()
        h["up"].gate.open()
        assert isinstance(await h.call("tools/call", name="up__pull"), Complete)


async def test_what_asks_for_nothing_is_never_limited() -> None:
    async with house(busy(), access=limiting(rate="1/h")) as h:
        await h.ready()
        await h.call("tools/list")
        assert error(await h.call("tools/list")).code == LIMIT_EXCEEDED
        assert isinstance(await h.call("server/discover"), Complete)


@pytest.mark.parametrize("method", ["tasks/list", "logging/setLevel", "subscriptions/listen"])
async def test_what_has_servers_asked_though_it_names_none_is_limited(method: str) -> None:
    async with house(busy(), access=limiting(rate="1/h")) as h:
        await h.ready()
        await h.call("tools/list")
        assert error(await h.call(method, session="one", level="debug")).code == LIMIT_EXCEEDED


async def test_made_up_tools_of_a_server_whose_list_is_unknown_bring_no_new_quota() -> None:
    limits = limiting(daily=3, per=["principal", "tool"])["limits"]
    assert isinstance(limits, dict)
    async with house(busy("ill"), busy(), access={"limits": {**limits, "max_keys": 10}}) as h:
        h["ill"].reachable = False
        bob = Principal("bob")
        h["up"].connect(None)
        await h.call("tools/list", principal=bob)
        for _ in range(3):
            assert isinstance(await h.call("tools/call", name="up__push", principal=bob), Complete)
        codes = [
            error(await h.call("tools/call", name=f"ill__{number}", principal=Principal("ann"))).code
            for number in range(50)
        ]
        assert codes.count(LIMIT_EXCEEDED) == 50 - 3
        assert error(await h.call("tools/call", name="up__push", principal=bob)).code == LIMIT_EXCEEDED


async def test_r49_limits_are_others_after_a_reload_and_count_on() -> None:
    async with house(busy(), access=limiting(rate="1/h")) as h:
        await h.ready()
        await h.call("tools/list")
        loose = Settings.model_validate({**h.settings.model_dump(), "access": {}})
        h.gateway.reconfigure(loose, dict(h.upstreams))
        assert isinstance(await h.call("tools/list"), Complete)
        h.gateway.reconfigure(h.settings, dict(h.upstreams))
        assert error(await h.call("tools/list")).code == LIMIT_EXCEEDED


SENTINEL = "s3ntinel-0xDEADBEEF"
POLICY = {"roles": {"reader": {"allow": [{"tools": ["push"]}], "deny": [{"tools": ["pull"]}]}}}


def audited_by(path: Path, **access: object) -> dict[str, object]:
    return {"audit": {"file": str(path), "arguments": "redacted"}, **access}


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_every_call_leaves_a_record_whatever_becomes_of_it(tmp_path: Path) -> None:
    limits = {"rules": {"r": {"rate": "1/h", "upstreams": ["other"]}}}
    async with (
        house(busy(), busy("other"), access=audited_by(tmp_path / "audit", policy=POLICY, limits=limits)) as h,
        h.gateway.audit.running(),
    ):
        await h.ready()
        ann = Principal("ann", frozenset({"reader"}))
        await h.call("tools/list", principal=ann)
        await h.call("tools/call", principal=ann, name="up__push")
        await h.call("tools/call", principal=ann, name="up__pull")
        await h.call("tools/call", principal=ann, name="up__none")
        await h.call("made/up", principal=ann)
        await h.call("tools/call", principal=ann, name="other__push")
        await h.call("tools/call", principal=ann, name="push", endpoint="other")
    assert [(r["method"], r.get("upstream"), r.get("subject"), r["outcome"]) for r in records(tmp_path / "audit")] == [
        ("tools/list", None, None, "ok"),
        ("tools/call", "up", "push", "ok"),
        ("tools/call", "up", "pull", "denied"),
        ("tools/call", None, "up__none", "protocol_error"),
        ("made/up", None, None, "protocol_error"),
        ("tools/call", "other", "push", "ok"),
        ("tools/call", "other", "push", "rate_limited"),
    ]


async def test_a_record_of_a_call_says_by_which_rule_it_was_decided(tmp_path: Path) -> None:
    async with house(busy(), access=audited_by(tmp_path / "audit", policy=POLICY)) as h, h.gateway.audit.running():
        await h.ready()
        for role, name in (("reader", "push"), ("reader", "pull"), ("nobody", "push")):
            await h.call("tools/call", principal=Principal("ann", frozenset({role})), name=f"up__{name}")
    assert [(r["allowed"], r.get("rule")) for r in records(tmp_path / "audit")] == [
        (True, "roles.reader.allow, rule 1"),
        (False, "roles.reader.deny, rule 1"),
        (False, None),
    ]


async def test_a_cancelled_call_leaves_a_record(tmp_path: Path) -> None:
    async with house(busy(), access=audited_by(tmp_path / "audit")) as h, h.gateway.audit.running():
        await h.ready()
        h["up"].gate.shut()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: h.call("tools/call", name="up__push"))
            await h["up"].gate.holds(1)
            tasks.cancel_scope.cancel()
    assert [record["outcome"] for record in records(tmp_path / "audit")] == ["cancelled"]


async def test_r44_no_planted_secret_reaches_the_audit(tmp_path: Path) -> None:
    up = busy()
    up.answers["tools/call"] = lambda call: failed(f"wrong password {SENTINEL}")
    async with house(up, access=audited_by(tmp_path / "audit")) as h, h.gateway.audit.running():
        await h.ready()
        await h.call("tools/call", name="up__push", arguments={"password": SENTINEL, "url": f"x://a:{SENTINEL}@b"})
        await h.call("resources/read", uri=f"up+https://user:{SENTINEL}@host/x?token={SENTINEL}")
        await h.call("prompts/get", name=f"Bearer {SENTINEL}")
        await h.call("tools/list", session=SENTINEL)
    assert len(records(tmp_path / "audit")) == 4
    assert SENTINEL not in (tmp_path / "audit").read_text()


async def test_where_the_audit_must_not_fail_no_upstream_sees_a_call_that_cannot_be_written_down(
    tmp_path: Path,
) -> None:
    audit = {"file": str(tmp_path), "fail": "closed", "patience": 0.01}
    async with house(busy(), access={"audit": audit}) as h, h.gateway.audit.running():
        await h.ready()
        await h.call("tools/call", name="up__push")
        with anyio.fail_after(GUARD):
            while not isinstance(outcome := await h.call("tools/call", name="up__push"), Failed):
                await quiet()
        before = h["up"].count("tools/call")
        assert outcome.reason is Reason.UNAVAILABLE
        assert error(await h.call("tools/call", name="up__push")).code == INTERNAL_ERROR
        assert h["up"].count("tools/call") == before


async def test_a_call_that_is_cancelled_while_it_waits_for_the_audit_is_counted_and_leaves_no_record(
    tmp_path: Path,
) -> None:
    audit = {"file": str(tmp_path / "audit"), "fail": "closed", "patience": 60, "max_queued": 1}
    async with house(busy(), access={"audit": audit}) as h:
        await h.ready()
        await h.call("tools/call", name="up__push")  # its record waits: nobody writes yet
        with anyio.CancelScope() as scope:
            scope.cancel()
            await h.call("tools/call", name="up__push")
        async with h.gateway.audit.running():
            assert isinstance(await h.call("tools/call", name="up__push"), Complete)
    assert [record["outcome"] for record in records(tmp_path / "audit")] == ["ok", "ok"]
    labels = {"upstream": "up", "method": "tools/call", "subject": "up__push", "outcome": "cancelled"}
    assert h.metrics.registry.get_sample_value("mcproxy_requests_total", labels) == 1


async def test_what_the_audit_and_the_metrics_say_of_a_call_is_measured_once(tmp_path: Path) -> None:
    async with house(busy(), access=audited_by(tmp_path / "audit")) as h, h.gateway.audit.running():
        await h.ready()
        await h.call("tools/call", name="up__push")
    (record,) = records(tmp_path / "audit")
    labels = {"upstream": "up", "method": "tools/call"}
    seconds = h.metrics.registry.get_sample_value("mcproxy_request_duration_seconds_sum", labels)
    assert seconds is not None
    assert record["ms"] == round(seconds * 1_000_000) / 1000
    subject = {"upstream": "up", "subject": "up__push"}
    assert record["bytes_out"] == h.metrics.registry.get_sample_value("mcproxy_result_bytes_sum", subject)
