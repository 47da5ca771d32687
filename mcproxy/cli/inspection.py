"""What the commands ask of a gateway that runs in their own process: its lists, one call, the state of each upstream.

Everything goes through the whole gateway, as a client's calls do. Returns values; prints nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcproxy import __version__
from mcproxy.call.calls import Call, Complete, Failed, Handler, InputRequired, Outcome
from mcproxy.call.clients import Client
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.call.upstreams import LinkState, UpstreamStatus
from mcproxy.catalog.merging import View
from mcproxy.protocol.eras import LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import Params, raw
from mcproxy.protocol.methods import Kind, row_of

CALL_TOOL: Final = "tools/call"
READ_RESOURCE: Final = "resources/read"
MAX_PAGES: Final = 10_000

ListedEntry = dict[str, Any]
"""A tool, resource, template or prompt as its list has it."""


class RequestRefused(Exception):
    """The gateway or an upstream answered an error. The text is its message."""


@dataclass(frozen=True, slots=True)
class LocalClient:
    """Whoever runs a command, as a client of a handshake era: questions come by `Client.ask`, not as results."""

    handler: Handler
    client: Client
    capabilities: Params
    endpoint: str = ""

    def at(self, endpoint: str) -> LocalClient:
        """The same, seeing one upstream alone."""
        return replace(self, endpoint=endpoint)

    async def send(self, method: str, params: Params) -> Outcome:
        info = raw({"name": "mcproxy-cli", "version": __version__})
        caller = Caller(ANONYMOUS, LATEST_HANDSHAKE, self.capabilities, info, self.endpoint, log_level="info")
        return await self.handler(Call(row_of(method), params, caller, self.client))


async def entries(visitor: LocalClient, kind: Kind) -> list[ListedEntry]:
    """A whole list, every page of it. Raises Refused."""
    found: list[ListedEntry] = []
    params: Params = {}
    for _ in range(MAX_PAGES):
        page = result(await visitor.send(kind.list_method, params))
        found += page.get(kind.member, [])
        if page.get("nextCursor") is None:
            break
        params = {"cursor": raw(page["nextCursor"])}
    return found


async def call_tool(visitor: LocalClient, name: str, pairs: Mapping[str, str], whole: ListedEntry) -> Outcome:
    """Calls a tool with `whole`, and with `pairs` read as the tool's schema wants them. Raises Refused."""
    schema = await _input_schema(visitor, name) if pairs else {}
    arguments = {**whole, **read_pairs(pairs, schema)}
    return await visitor.send(CALL_TOOL, {"name": raw(name), "arguments": raw(arguments)})


async def read_resource(visitor: LocalClient, uri: str) -> Outcome:
    return await visitor.send(READ_RESOURCE, {"uri": raw(uri)})


def result(outcome: Outcome) -> ListedEntry:
    """The result, decoded. Raises Refused where there is none."""
    match outcome:
        case Complete(result=value):
            return decoded(raw(value))
        case InputRequired():
            raise RequestRefused("the server asks for input in a way that a command cannot answer")
        case Failed(error=error):
            raise RequestRefused(error.message)


def decoded(value: Raw) -> ListedEntry:
    found: object = msgspec.json.decode(value)
    return found if isinstance(found, dict) else {}


def read_pairs(pairs: Mapping[str, str], schema: ListedEntry) -> ListedEntry:
    """Each value as JSON where it is some and the schema does not say string, else as text."""
    properties = schema.get("properties")
    shapes = properties if isinstance(properties, dict) else {}
    return {key: value if _is_text(shapes.get(key)) else _json_or_text(value) for key, value in pairs.items()}


async def _input_schema(visitor: LocalClient, name: str) -> ListedEntry:
    tool: ListedEntry = next((tool for tool in await entries(visitor, Kind.TOOLS) if tool.get("name") == name), {})
    schema = tool.get("inputSchema")
    return schema if isinstance(schema, dict) else {}


def _is_text(shape: object) -> bool:
    return isinstance(shape, dict) and shape.get("type") == "string"


def _json_or_text(value: str) -> object:
    try:
        found: object = json.loads(value)
    except ValueError:
        return value
    return found


@dataclass(frozen=True, slots=True)
class UpstreamReport:
    """What `mcproxy check --connect` says of one upstream. `latency` is from the start to being connected."""

    name: str
    ok: bool
    transport: str
    version: str | None
    era: str | None
    latency: float | None
    tools: int
    resources: int
    templates: int
    prompts: int
    error: str | None
    renamed: dict[str, str]
    """Names that callers see otherwise than `{prefix}__{name}`, by the upstream's own."""
    refused: dict[str, str]
    """Entries that callers do not see, and why."""


def reports(statuses: Iterable[UpstreamStatus], view: View, latencies: Mapping[str, float]) -> list[UpstreamReport]:
    """One for each upstream, from its state and from what callers see of it."""
    counts = Counter((shown.upstream, kind) for kind, list_ in view.lists.items() for shown in list_)
    return [
        UpstreamReport(
            name=status.name,
            ok=status.state is LinkState.READY,
            transport=status.transport,
            version=status.identity.version if status.identity else None,
            era=status.identity.era.value if status.identity else None,
            latency=latencies.get(status.name),
            tools=counts[status.name, Kind.TOOLS],
            resources=counts[status.name, Kind.RESOURCES],
            templates=counts[status.name, Kind.TEMPLATES],
            prompts=counts[status.name, Kind.PROMPTS],
            error=status.error,
            renamed={entry.name: entry.exposed for entry in view.renamed if entry.upstream == status.name},
            refused={entry.name: entry.why for entry in view.refused if entry.upstream == status.name},
        )
        for status in statuses
    ]
