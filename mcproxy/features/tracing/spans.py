"""Records calls as OpenTelemetry spans: one for each call of a client, and within it one for each upstream call.

Names and attributes are those of OpenTelemetry's conventions for MCP. Params, results and error messages are never
recorded. Imported only if tracing is on: the packages that it needs are an extra.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final, assert_never

import anyio
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, attach, detach
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, format_trace_id, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mcproxy import __version__
from mcproxy.call.calls import Call, Complete, Failed, Handler, InputRequired, Label, Outcome, Stage
from mcproxy.call.errors import Reason
from mcproxy.call.upstreams import Upstream, UpstreamStatus
from mcproxy.features.tracing.exporting import session
from mcproxy.protocol.jsonrpc import InvalidMessage, Params, parse_object, parse_text, raw
from mcproxy.protocol.methods import Subject
from mcproxy.sealing import Digest
from mcproxy.settings.tracing import TracingSettings as Settings
from mcproxy.telemetry.metrics import UNKNOWN
from mcproxy.telemetry.trace_context import FIELDS, arrived, departing

BATCH: Final = 512
"""The most spans to send at once."""

MAX_TEXT: Final = 256
"""The most characters of a URI or an id to record."""

_TARGETS: Final[Mapping[Subject, str]] = {Subject.TOOL: "gen_ai.tool.name", Subject.PROMPT: "gen_ai.prompt.name"}

_PROPAGATOR: Final = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])


_CREDENTIAL_PROVIDERS: Final = frozenset(
    {
        "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
        "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
    }
)


class Tracing:
    """`provider` makes the spans. `digest` is applied to session keys, which are secrets."""

    def __init__(self, provider: TracerProvider, digest: Digest) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("mcproxy", __version__)
        self._digest = digest
        self._timeout: float | None = None
        """The most seconds that the collector may take; set once sending begins."""

    def export(self, settings: Settings) -> None:
        """Starts sending spans to the collector, in the SDK's own thread. Idempotent."""
        if self._timeout is not None:
            return
        self._timeout = settings.timeout
        # None: a credential provider of OpenTelemetry that the operator named brings its own session.
        own = None if _CREDENTIAL_PROVIDERS & os.environ.keys() else session(settings.leaving)
        exporter = OTLPSpanExporter(settings.endpoint, timeout=settings.timeout, session=own)
        most = settings.max_queued
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=most, max_export_batch_size=min(most, BATCH))
        )

    async def retire(self) -> None:
        """Same as `aclose`."""
        await self.aclose()

    async def aclose(self) -> None:
        """Sends what is queued, for as long as the collector's timeout allows."""
        if self._timeout is None:
            return
        # A thread that is left running would keep the process from exiting.
        with anyio.move_on_after(2 * self._timeout, shield=True):
            await anyio.to_thread.run_sync(self._provider.shutdown, abandon_on_cancel=True)

    def served(self, label: Label) -> Stage:
        """Records each call as a server span: within the client's trace, if the client names one."""

        def stage(handler: Handler) -> Handler:
            async def serving(call: Call) -> Outcome:
                outcome: Outcome | None = None
                context, beside = _whence(call.params)
                with _within(context), self._span(call, SpanKind.SERVER, beside) as span:
                    self._describe(span, call)
                    if span.is_recording():
                        call.notes.trace = format_trace_id(span.get_span_context().trace_id)
                    try:
                        outcome = await handler(call)
                        return outcome
                    finally:
                        _name(span, call, *label(call))
                        if call.notes.verdicts:
                            said = [f"{one.phase} {one.mode} {one.decision}" for one in call.notes.verdicts]
                            span.set_attribute("mcproxy.hooks", said)
                        _conclude(span, outcome)

            return serving

        return stage

    def sent(self, upstream: Upstream) -> Upstream:
        """Wraps `upstream` so that each call to it is recorded and carries the trace context."""
        return _Traced(upstream, upstream.name, self._send)

    async def _send(self, upstream: Upstream, call: Call) -> Outcome:
        outcome: Outcome | None = None
        with self._span(call, SpanKind.CLIENT) as span:
            _describe_upstream(span, upstream.status)
            _name(span, call, upstream.name, _own_name(call))
            carrier: dict[str, str] = {}
            _PROPAGATOR.inject(carrier)
            token = departing.set(carrier)
            try:
                outcome = await upstream(call.with_params(_carrying(call.params, carrier)))
                return outcome
            finally:
                departing.reset(token)
                _conclude(span, outcome)

    def _span(self, call: Call, kind: SpanKind, links: Sequence[Link] = ()) -> AbstractContextManager[Span]:
        method = _method(call)
        return self._tracer.start_as_current_span(
            method,
            None,
            kind,
            {"mcp.method.name": method},
            links,
            record_exception=False,
            set_status_on_exception=False,
        )

    def _describe(self, span: Span, call: Call) -> None:
        if not span.is_recording():
            return
        span.set_attributes(_network(call.caller.transport))
        span.set_attribute("mcp.protocol.version", call.caller.version)
        if call.caller.session is not None:
            span.set_attribute("mcp.session.id", self._digest("audit session", call.caller.session.encode()))
        if call.id is not None:
            span.set_attribute("jsonrpc.request.id", str(call.id)[:MAX_TEXT])


@dataclass(frozen=True, slots=True)
class _Traced:
    """Implements `call.upstreams.Upstream`."""

    upstream: Upstream
    name: str
    send: Callable[[Upstream, Call], Awaitable[Outcome]]

    @property
    def status(self) -> UpstreamStatus:
        return self.upstream.status

    def __call__(self, call: Call) -> Awaitable[Outcome]:
        return self.send(self.upstream, call)

    def release(self, owner: str) -> None:
        self.upstream.release(owner)


def provider(settings: Settings, name: str) -> TracerProvider:
    """A provider of spans for a service of this name, unless the environment sets another name."""
    service = {"service.name": os.environ.get("OTEL_SERVICE_NAME", name), "service.version": __version__}
    sampler = None if settings.sample is None else ParentBased(TraceIdRatioBased(settings.sample))
    return TracerProvider(sampler, Resource.create(service), shutdown_on_exit=False)


@contextmanager
def _within(context: Context) -> Iterator[None]:
    """Makes spans that begin inside part of another's trace, with its baggage."""
    token = attach(context)
    try:
        yield
    finally:
        detach(token)


def _method(call: Call) -> str:
    return call.row.name if call.row.known else UNKNOWN


def _own_name(call: Call) -> str:
    key = call.row.subject_key
    return "" if key is None else parse_text(call.params.get(key, b"")) or ""


def _describe_upstream(span: Span, status: UpstreamStatus) -> None:
    if not span.is_recording():
        return
    span.set_attributes(_network(status.transport))
    if status.address is not None:
        host, port = status.address
        span.set_attributes({"server.address": host, "server.port": port})
    if status.identity is not None:
        span.set_attribute("mcp.protocol.version", status.identity.version)


def _network(transport: str) -> Mapping[str, str]:
    """The transport's attributes; none if no message was sent."""
    match transport:
        case "":
            return {}
        case "stdio":
            return {"network.transport": "pipe"}
        case _:
            return {"network.transport": "tcp", "network.protocol.name": "http"}


def _name(span: Span, call: Call, upstream: str, target: str) -> None:
    """Records the subject of the call on the span: a tool or a prompt by its name, a resource by its URI."""
    if not span.is_recording():
        return
    if upstream:
        span.set_attribute("mcproxy.upstream", upstream)
    row = call.row
    if row.subject is None or row.subject_key is None:
        return
    if row.subject in _TARGETS and target:
        # Low cardinality: a listed name, or one fixed word for all others.
        span.update_name(f"{row.name} {target}")
        span.set_attribute(_TARGETS[row.subject], target)
    if row.subject is Subject.TOOL:
        span.set_attribute("gen_ai.operation.name", "execute_tool")
    if row.subject is Subject.RESOURCE and (uri := parse_text(call.params.get(row.subject_key, b""))) is not None:
        span.set_attribute("mcp.resource.uri", uri[:MAX_TEXT])


def _conclude(span: Span, outcome: Outcome | None) -> None:
    """`None` for a call that was cancelled."""
    match outcome:
        case None:
            _fail(span, Reason.CANCELLED.value)
        case Complete(is_error=True):
            _fail(span, "tool_error")
        case Complete() | InputRequired():
            return
        case Failed(error=error, reason=reason):
            span.set_attribute("rpc.response.status_code", str(error.code))
            _fail(span, str(error.code) if reason is Reason.PROTOCOL_ERROR else reason.value)
        case _:
            assert_never(outcome)


def _fail(span: Span, why: str) -> None:
    span.set_attribute("error.type", why)
    span.set_status(StatusCode.ERROR)


def _whence(params: Params) -> tuple[Context, Sequence[Link]]:
    """The trace context of a client's request: from `_meta`, with a link to that of the HTTP headers; else the latter.

    The two are independent: one HTTP request may carry several messages, each in its own trace.
    """
    meta, carrier = _meta(params), arrived.get()
    ambient = _PROPAGATOR.extract(carrier)
    if "traceparent" not in meta:
        return ambient, ()
    said = {name: text for name in FIELDS if name in meta and (text := parse_text(meta[name])) is not None}
    beside = get_current_span(ambient).get_span_context()
    is_another = beside.is_valid and carrier["traceparent"] != said.get("traceparent")
    return _PROPAGATOR.extract(said), [Link(beside)] if is_another else ()


def _carrying(params: Params, carrier: Mapping[str, str]) -> Params:
    """`params` with this trace context, and no other."""
    meta = {key: value for key, value in _meta(params).items() if key not in FIELDS}
    return {**params, "_meta": raw({**meta, **carrier})}


def _meta(params: Params) -> Params:
    try:
        return parse_object(params["_meta"]) if "_meta" in params else {}
    except InvalidMessage:
        return {}
