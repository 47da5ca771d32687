"""Traces through the whole gateway: in by headers and messages, out to the upstream and to a collector."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.fakes.servers.stateless import FakeStateless
from tests.fakes.servers.web import serving
from tests.system.running import Json, configuration, gateway

pytestmark = pytest.mark.anyio

TRACE = "0af7651916cd43dd8448eb211c80319c"
ACCEPT = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28"}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}


class Collector:
    """An OTLP/HTTP receiver that keeps what it is sent."""

    def __init__(self) -> None:
        self.batches: list[ExportTraceServiceRequest] = []

    async def __call__(self, request: web.Request) -> web.Response:
        self.batches.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response(content_type="application/x-protobuf")

    def spans(self) -> Iterable[Any]:
        for batch in self.batches:
            for resource in batch.resource_spans:
                for scope in resource.scope_spans:
                    yield from scope.spans

    def services(self) -> set[str]:
        found = [one for batch in self.batches for one in batch.resource_spans]
        attributes = [one for resource in found for one in resource.resource.attributes]
        return {one.value.string_value for one in attributes if one.key == "service.name"}


def attributes(span: Any) -> Json:
    found = ((one.key, one.value) for one in span.attributes)
    return {key: value.int_value if value.HasField("int_value") else value.string_value for key, value in found}


def call(**meta: object) -> dict[str, object]:
    params = {"name": "web__echo", "arguments": {}, "_meta": {**ENVELOPE, **meta}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


async def test_one_trace_leads_from_the_client_through_the_gateway_to_the_upstream(tmp_path: Path) -> None:
    collector = Collector()
    upstream = FakeStateless(pages=[[{"name": "echo", "inputSchema": {"type": "object"}}]])
    headers = {**ACCEPT, "Mcp-Method": "tools/call", "Mcp-Name": "web__echo"}
    async with serving(collector) as otlp, serving(upstream) as url:
        settings = configuration(
            {"web": {"type": "http", "url": url}},
            name="traced-gateway",
            tracing={"enabled": True, "endpoint": f"{otlp}/v1/traces", "max_queued": 100},
        )
        async with gateway(tmp_path, settings) as running, aiohttp.ClientSession() as http:
            parent = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
            async with http.post(f"{running.url}/mcp", json=call(), headers={**headers, **parent}) as response:
                assert response.status == 200, await response.text()
            async with http.get(
                f"{running.url}/metrics", headers={"Accept": "application/openmetrics-text"}
            ) as metrics:
                assert f'trace_id="{TRACE}"' in await metrics.text()
    # What was queued is sent before the gateway ends.
    mine = [span for span in collector.spans() if span.trace_id.hex() == TRACE]
    server, client = sorted(mine, key=lambda span: span.kind)
    assert (server.name, client.name) == ("tools/call web__echo", "tools/call echo")
    assert (server.parent_span_id.hex(), client.parent_span_id) == ("b7ad6b7169203331", server.span_id)
    port = int(url.rpartition(":")[2])
    network = {"network.transport": "tcp", "network.protocol.name": "http"}
    assert network.items() <= attributes(server).items()
    assert {**network, "server.address": "127.0.0.1", "server.port": port}.items() <= attributes(client).items()
    told = f"00-{TRACE}-{client.span_id.hex()}-01"
    (sent,) = upstream.sent("tools/call")
    assert sent["params"]["_meta"]["traceparent"] == told
    assert upstream.headers[upstream.heard.index(sent)]["traceparent"] == told
    assert collector.services() == {"traced-gateway"}
