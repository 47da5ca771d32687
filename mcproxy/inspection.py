"""What the commands ask of a gateway that runs in their own process: its lists, one call, the state of each upstream.

Everything goes through the whole gateway, as a client's calls do. Returns values; prints nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcproxy.call import ANONYMOUS, Call, Caller, Client, Complete, Failed, Handler, InputRequired, Outcome
from mcproxy.protocol.eras import LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import Params, raw
from mcproxy.protocol.methods import Kind

CALL_TOOL: Final = "tools/call"
READ_RESOURCE: Final = "resources/read"
MAX_PAGES: Final = 10_000

Entry = dict[str, Any]
"""A tool, resource, template or prompt as its list has it."""


class Refused(Exception):
    """The gateway or an upstream answered an error. The text is its message."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Whoever runs a command, as a client of a handshake era: questions come by `Client.ask`, not as results."""

    handler: Handler
    client: Client
    capabilities: Params
    endpoint: str = ""

    def at(self, endpoint: str) -> Visitor:
        """The same, seeing one upstream alone."""
        return replace(self, endpoint=endpoint)

    async def send(self, method: str, params: Params) -> Outcome:
        info = raw({"name": "mcproxy-cli", "version": "1"})
        caller = Caller(ANONYMOUS, LATEST_HANDSHAKE, self.capabilities, info, self.endpoint, log_level="info")
        return await self.handler(Call(method, params, caller, self.client))


async def entries(visitor: Visitor, kind: Kind) -> list[Entry]:
    """A whole list, every page of it. Raises Refused."""
    found: list[Entry] = []
    params: Params = {}
    for _ in range(MAX_PAGES):
        page = result(await visitor.send(kind.list_method, params))
        found += page.get(kind.member, [])
        if page.get("nextCursor") is None:
            break
        params = {"cursor": raw(page["nextCursor"])}
    return found


async def call_tool(visitor: Visitor, name: str, pairs: Iterable[str], whole: Entry) -> Outcome:
    """Calls a tool with `whole`, and with each `key=value` of `pairs` as the tool's schema wants it.

    Raises Refused, and ValueError for a pair that is none.
    """
    pairs = list(pairs)
    schema: object = None
    if pairs:
        schema = next(
            (tool.get("inputSchema") for tool in await entries(visitor, Kind.TOOLS) if tool["name"] == name), {}
        )
    arguments = {**whole, **parse_pairs(pairs, schema)}
    return await visitor.send(CALL_TOOL, {"name": raw(name), "arguments": raw(arguments)})


async def read_resource(visitor: Visitor, uri: str) -> Outcome:
    return await visitor.send(READ_RESOURCE, {"uri": raw(uri)})


def result(outcome: Outcome) -> Entry:
    """The result, decoded. Raises Refused where there is none."""
    match outcome:
        case Complete(result=value):
            return decoded(value)
        case InputRequired():
            raise Refused("the server asks for input in a way that a command cannot answer")
        case Failed(error=error):
            raise Refused(error.message)


def decoded(value: Raw) -> Entry:
    found: object = msgspec.json.decode(value)
    return found if isinstance(found, dict) else {}


def parse_pairs(pairs: Iterable[str], schema: object) -> Entry:
    """`key=value` arguments: JSON where the value is some and the schema does not say string, else text.

    Raises ValueError where a pair has no `=`.
    """
    arguments: Entry = {}
    properties = schema.get("properties") if isinstance(schema, dict) else None
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"{pair!r} should be key=value")
        shape = properties.get(key) if isinstance(properties, dict) else None
        wants_text = isinstance(shape, dict) and shape.get("type") == "string"
        arguments[key] = value if wants_text else _json_or_text(value)
    return arguments


def _json_or_text(value: str) -> object:
    try:
        found: object = json.loads(value)
    except ValueError:
        return value
    return found
