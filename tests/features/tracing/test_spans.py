"""`mcproxy.telemetry.tracing` and `mcproxy.telemetry.trace_context`: what is recorded, and what goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from aiohttp import web
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, TraceFlags, format_span_id, format_trace_id
from pydantic import ValidationError

from mcproxy.call.calls import Call, Outcome
from mcproxy.call.errors import Reason
from mcproxy.features.tracing.feature import CallTracing
from mcproxy.features.tracing.spans import Tracing, provider
from mcproxy.gateway.feature import Core, Feature, Listed
from mcproxy.protocol.methods import Kind
from mcproxy.settings.tracing import TracingSettings as Settings
from mcproxy.settings.tracing import is_installed
from mcproxy.telemetry.trace_context import NOTHING, arrived, departing, picked
from tests.fakes.servers.web import serving
from tests.fakes.upstream import FakeUpstream, House, complete, decoded, failed, house, resource, tool
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
CONTEXT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1", "baggage": "user=alice"}


class Recorder:
    """Spans that are over, and a gateway that makes them."""

    def __init__(self, spans: InMemorySpanExporter, house: House) -> None:
        self._spans = spans
        self.house = house

    def of(self, kind: SpanKind) -> ReadableSpan:
        (span,) = [span for span in self._spans.get_finished_spans() if span.kind is kind]
        return span

    def clear(self) -> None:
        self._spans.clear()

    def meta(self) -> dict[str, object]:
        """What the upstream was told in `_meta`."""
        (call,) = [call for call in self.house["up"].calls if call.method == "tools/call"]
        return decoded(call.params["_meta"])


class Given(Listed, frozen=True):
    """The feature, with spans that a test looks at."""

    tracing: Tracing

    def load(self) -> Callable[[Core], Feature]:
        return lambda core: CallTracing(core, self.tracing)


@asynccontextmanager
async def recording(
    upstream: FakeUpstream | None = None, made: TracerProvider | None = None
) -> AsyncIterator[Recorder]:
    spans, made = InMemorySpanExporter(), made or TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(SimpleSpanProcessor(spans))
    given = Given("tracing", "", lambda settings: True, Tracing(made, lambda purpose, payload: "a-digest"))
    async with house(upstream or busy(), features=lambda settings: [given]) as it:
        await it.ready()
        spans.clear()
        yield Recorder(spans, it)


def busy() -> FakeUpstream:
    upstream = FakeUpstream("up")
    upstream.lists[Kind.TOOLS] = [tool("push")]
    upstream.lists[Kind.RESOURCES] = [resource("file:///a")]
    upstream.answers["tools/call"] = lambda call: complete(content=[])
    upstream.answers["resources/read"] = lambda call: complete(contents=[])
    return upstream


def parent_of(span: ReadableSpan) -> tuple[str, str]:
    assert span.parent is not None
    return format_trace_id(span.parent.trace_id), format_span_id(span.parent.span_id)


def id_of(span: ReadableSpan) -> tuple[str, str]:
    assert span.context is not None
    return format_trace_id(span.context.trace_id), format_span_id(span.context.span_id)


async def test_a_call_is_a_span_in_its_clients_trace_and_one_within_it_for_its_upstream() -> None:
    async with recording() as it:
        await it.house.call("tools/call", name="up__push", session="s", transport="sse", _meta=CONTEXT)
        server, client = it.of(SpanKind.SERVER), it.of(SpanKind.CLIENT)
    assert (parent_of(server), parent_of(client)) == ((TRACE, PARENT), id_of(server))
    assert (server.name, client.name) == ("tools/call up__push", "tools/call push")
    assert dict(server.attributes or {}) == {
        "mcp.method.name": "tools/call",
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "mcp.protocol.version": "2025-11-25",
        "mcp.session.id": "a-digest",
        "mcproxy.upstream": "up",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "up__push",
    }
    assert dict(client.attributes or {}) == {
        "mcp.method.name": "tools/call",
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "mcproxy.upstream": "up",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "push",
    }


@pytest.mark.parametrize(("transport", "network"), [("http", "tcp"), ("sse", "tcp"), ("stdio", "pipe"), ("", None)])
async def test_what_carried_a_call_is_told_where_anything_did(transport: str, network: str | None) -> None:
    async with recording() as it:
        await it.house.call("tools/call", name="up__push", transport=transport)
        attributes = it.of(SpanKind.SERVER).attributes or {}
    assert attributes.get("network.transport") == network
    assert attributes.get("network.protocol.name") == ("http" if network == "tcp" else None)


async def test_the_upstream_is_told_of_the_gateways_span_and_of_the_clients_baggage() -> None:
    async with recording() as it:
        await it.house.call("tools/call", name="up__push", _meta={**CONTEXT, "com.example/x": 1})
        trace, span = id_of(it.of(SpanKind.CLIENT))
        assert it.meta() == {**CONTEXT, "traceparent": f"00-{trace}-{span}-01", "com.example/x": 1}


async def test_what_headers_say_counts_where_the_message_says_nothing() -> None:
    async with recording() as it:
        token = arrived.set(picked({"traceparent": CONTEXT["traceparent"], "cookie": "none of it"}))
        await it.house.call("tools/call", name="up__push")
        assert parent_of(it.of(SpanKind.SERVER)) == (TRACE, PARENT)
        it.clear()
        other = CONTEXT["traceparent"].replace(PARENT, "1" * 16)
        await it.house.call("tools/call", name="up__push", _meta={"traceparent": other})
        span = it.of(SpanKind.SERVER)
        assert parent_of(span) == (TRACE, "1" * 16)
        (link,) = span.links
        assert (link.context.trace_id, format_span_id(link.context.span_id)) == (int(TRACE, 16), PARENT)
        it.clear()
        await it.house.call("tools/call", name="up__push", _meta={"traceparent": CONTEXT["traceparent"]})
        arrived.reset(token)
        assert it.of(SpanKind.SERVER).links == ()


async def test_requests_over_http_carry_the_context_while_the_call_lasts_and_no_longer() -> None:
    seen: list[object] = []
    upstream = busy()

    def answer(call: Call) -> Outcome:
        seen.append(departing.get()["traceparent"])
        return complete(content=[])

    upstream.answers["tools/call"] = answer
    async with recording(upstream) as it:
        await it.house.call("tools/call", name="up__push")
        assert seen == [it.meta()["traceparent"]]
        assert departing.get() is NOTHING


@pytest.mark.parametrize("context", ["00-1-1-01", 7, None, "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
async def test_a_trace_context_that_is_none_begins_a_trace_and_goes_no_further(context: object) -> None:
    async with recording() as it:
        await it.house.call("tools/call", name="up__push", _meta={"traceparent": context, "tracestate": "a=1"})
        assert it.of(SpanKind.SERVER).parent is None
        assert it.meta().keys() == {"traceparent"}


@pytest.mark.parametrize(
    ("outcome", "error", "code"),
    [
        (complete(content=[], isError=True), "tool_error", None),
        (failed("it is broken", -32099), "-32099", "-32099"),
        (failed("too late", reason=Reason.TIMEOUT), "timeout", "-32603"),
    ],
)
async def test_what_went_wrong_is_told_by_its_kind(outcome: Outcome, error: str, code: str | None) -> None:
    upstream = busy()
    upstream.answers["tools/call"] = lambda call: outcome
    async with recording(upstream) as it:
        await it.house.call("tools/call", name="up__push")
        span = it.of(SpanKind.SERVER)
    attributes = span.attributes or {}
    assert (attributes["error.type"], attributes.get("rpc.response.status_code")) == (error, code)
    assert span.status.status_code is StatusCode.ERROR
    assert "broken" not in span.to_json()


async def test_a_cancelled_call_is_one_that_failed() -> None:
    upstream = busy()
    async with recording(upstream) as it, anyio.create_task_group() as tasks:
        upstream.gate.shut()
        tasks.start_soon(lambda: it.house.call("tools/call", name="up__push"))
        await upstream.gate.holds(1)
        tasks.cancel_scope.cancel()
    assert (it.of(SpanKind.SERVER).attributes or {})["error.type"] == "cancelled"
    assert (it.of(SpanKind.CLIENT).attributes or {})["error.type"] == "cancelled"


async def test_r52_a_made_up_name_names_no_span_and_a_resource_is_an_attribute() -> None:
    async with recording() as it:
        await it.house.call("tools/call", name="made-up")
        assert it.of(SpanKind.SERVER).name == "tools/call unknown"
        it.clear()
        await it.house.call("made/up")
        assert it.of(SpanKind.SERVER).name == "unknown"
        it.clear()
        await it.house.call("resources/read", uri="up+file:///a")
        span = it.of(SpanKind.CLIENT)
        assert (span.name, (span.attributes or {})["mcp.resource.uri"]) == ("resources/read", "file:///a")


async def test_what_is_not_sampled_goes_on_so_and_is_no_example() -> None:
    async with recording(made=provider(Settings(sample=0), "mcproxy")) as it:
        await it.house.call("tools/call", name="up__push")
        *_, flags = str(it.meta()["traceparent"]).split("-")
        assert not int(flags, 16) & TraceFlags.SAMPLED
        assert it.house["up"].calls[-1].notes.trace is None


async def test_the_service_is_named_as_the_gateway_calls_itself() -> None:
    assert provider(Settings(), "our-gateway").resource.attributes["service.name"] == "our-gateway"


def test_tracing_without_its_packages_is_refused_with_what_to_install() -> None:
    assert Settings(enabled=True).enabled
    assert not is_installed("not_there_at_all.at_all")
    with pytest.raises(ValidationError):
        Settings(sample=2)


async def test_a_collector_that_takes_nothing_does_not_hold_up_the_end() -> None:
    asked = anyio.Event()

    async def mute(request: web.Request) -> web.Response:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with serving(mute) as url:
        made = provider(Settings(), "mcproxy")
        settings = Settings(enabled=True, endpoint=f"{url}/v1/traces", timeout=0.2)
        with anyio.fail_after(GUARD):
            tracing = Tracing(made, lambda purpose, payload: "")
            tracing.export(settings)
            made.get_tracer("a test").start_span("a span").end()
            await tracing.aclose()
            await asked.wait()


def test_without_tracing_nothing_of_it_is_imported() -> None:
    code = "import sys, mcproxy.app; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
