"""`mcproxy list`, `call` and `read`: requests to the whole gateway, which runs in this process meanwhile."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from msgspec import Raw
from rich.console import Console

from mcproxy import __version__
from mcproxy.app import running
from mcproxy.call.calls import Call, Complete, Failed, Handler, InputRequired, Outcome
from mcproxy.call.clients import Client
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.cli.output import print_err, print_json, print_out, print_table
from mcproxy.cli.runtime import ExitCode
from mcproxy.cli.terminal import Terminal, line_reader
from mcproxy.protocol.eras import LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import Params, raw
from mcproxy.protocol.methods import Kind, row_of
from mcproxy.settings import PolicySettings, Settings

CALL_TOOL: Final = "tools/call"
READ_RESOURCE: Final = "resources/read"
MAX_PAGES: Final = 10_000
COLUMNS: Final = ("name", "description")
KINDS: Final = {
    "tools": (Kind.TOOLS,),
    "resources": (Kind.RESOURCES, Kind.TEMPLATES),
    "prompts": (Kind.PROMPTS,),
}
"""The lists that `mcproxy list` prints together, by its argument."""

ListedEntry = dict[str, Any]
"""A tool, resource, template or prompt as its list has it."""


class RequestRefused(Exception):
    """The gateway or an upstream answered with an error; the text is its message."""


@dataclass(frozen=True, slots=True)
class LocalClient:
    """The person at the command line, as a handshake client: questions arrive by `Client.ask`, not as results."""

    handler: Handler
    terminal: Client
    capabilities: Params
    endpoint: str = ""

    def at(self, endpoint: str) -> LocalClient:
        """The same client at the endpoint of one upstream."""
        return replace(self, endpoint=endpoint)

    async def send(self, method: str, params: Params) -> Outcome:
        info = raw({"name": "mcproxy-cli", "version": __version__})
        caller = Caller(ANONYMOUS, LATEST_HANDSHAKE, self.capabilities, info, self.endpoint, log_level="info")
        return await self.handler(Call(row_of(method), params, caller, self.terminal))


async def entries(client: LocalClient, kind: Kind) -> list[ListedEntry]:
    """A whole list, with all its pages. Raises RequestRefused."""
    found: list[ListedEntry] = []
    params: Params = {}
    for _ in range(MAX_PAGES):
        page = result(await client.send(kind.list_method, params))
        found += page.get(kind.member, [])
        if page.get("nextCursor") is None:
            break
        params = {"cursor": raw(page["nextCursor"])}
    return found


async def call_tool(client: LocalClient, name: str, pairs: Mapping[str, str], whole: ListedEntry) -> Outcome:
    """Calls a tool with the arguments `whole`, and `pairs` converted by the tool's schema. Raises RequestRefused."""
    schema = await _input_schema(client, name) if pairs else {}
    arguments = {**whole, **read_pairs(pairs, schema)}
    return await client.send(CALL_TOOL, {"name": raw(name), "arguments": raw(arguments)})


async def read_resource(client: LocalClient, uri: str) -> Outcome:
    return await client.send(READ_RESOURCE, {"uri": raw(uri)})


def result(outcome: Outcome) -> ListedEntry:
    """The result, decoded. Raises RequestRefused where there is none."""
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
    """Each value as JSON if it is valid JSON and the schema does not want a string, else as text."""
    properties = schema.get("properties")
    shapes = properties if isinstance(properties, dict) else {}
    return {key: value if _is_text(shapes.get(key)) else _json_or_text(value) for key, value in pairs.items()}


async def _input_schema(client: LocalClient, name: str) -> ListedEntry:
    tool: ListedEntry = next((tool for tool in await entries(client, Kind.TOOLS) if tool.get("name") == name), {})
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


async def list_entries(settings: Settings, what: str, *, as_json: bool) -> int:
    """Prints the tools, resources or prompts that clients see."""
    return await _with_client(settings, lambda client: _list(client, KINDS[what], as_json))


async def call(settings: Settings, name: str, pairs: dict[str, str], whole: ListedEntry, *, as_json: bool) -> int:
    """Calls a tool and prints its result."""
    return await _with_client(settings, lambda client: _call(client, name, pairs, whole, as_json))


async def read(settings: Settings, uri: str, *, as_json: bool) -> int:
    """Reads a resource and prints its contents."""
    return await _with_client(settings, lambda client: _read(client, uri, as_json))


async def _with_client(settings: Settings, action: Callable[[LocalClient], Awaitable[int]]) -> int:
    """Runs `action` once every upstream has connected or failed to.

    The policy does not apply: the person has the configuration, with all its secrets.
    """
    console = Console(stderr=True, highlight=False)
    terminal = Terminal(console, line_reader(console))
    access = settings.access.model_copy(update={"policy": PolicySettings()})
    async with running(settings.model_copy(update={"access": access})) as app:
        await app.settled()
        try:
            return await action(LocalClient(app.handler, terminal, terminal.capabilities))
        except RequestRefused as refused:
            print_err(str(refused))
            return ExitCode.FAILED
        finally:
            terminal.close()


async def _list(client: LocalClient, kinds: Sequence[Kind], as_json: bool) -> int:
    found = [(kind, entry) for kind in kinds for entry in await entries(client, kind)]
    if as_json:
        print_json([entry for _, entry in found])
    else:
        print_table(COLUMNS, [entry_row(kind, entry) for kind, entry in found])
    return ExitCode.OK


async def _call(client: LocalClient, name: str, pairs: dict[str, str], whole: ListedEntry, as_json: bool) -> int:
    found = result(await call_tool(client, name, pairs, whole))
    if as_json:
        print_json(found)
    else:
        print_out(tool_text(found))
    return ExitCode.FAILED if found.get("isError") is True else ExitCode.OK


async def _read(client: LocalClient, uri: str, as_json: bool) -> int:
    found = result(await read_resource(client, uri))
    if as_json:
        print_json(found)
    else:
        print_contents(found)
    return ExitCode.OK


def entry_row(kind: Kind, entry: ListedEntry) -> tuple[str, str]:
    lines = str(entry.get("description") or entry.get("title") or "").strip().splitlines()
    return str(entry.get(kind.key, "")), lines[0] if lines else ""


def tool_text(result: ListedEntry) -> str:
    """A tool's result as text: its content, or its structured content if it has no other."""
    blocks = [block for block in result.get("content", []) if isinstance(block, dict)]
    if not blocks and "structuredContent" in result:
        return json.dumps(result["structuredContent"], indent=2, ensure_ascii=False)
    return "\n".join(map(_block_text, blocks))


def print_contents(result: ListedEntry) -> None:
    """Prints a resource's contents: text as text, bytes unchanged but never to a terminal."""
    for content in result.get("contents", []):
        if "text" in content:
            print_out(str(content["text"]))
            continue
        data = _bytes(content.get("blob", ""))
        if sys.stdout.isatty():
            print_out(f"[{len(data)} bytes of {content.get('mimeType', 'unknown type')}]")
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)


def _block_text(block: dict[str, Any]) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "image" | "audio" as kind:
            return f"[{kind} {block.get('mimeType', '')}, {len(_bytes(block.get('data', '')))} bytes]"
        case "resource_link":
            return f"[resource {block.get('uri', '')}]"
        case "resource":
            resource = block.get("resource")
            resource = resource if isinstance(resource, dict) else {}
            return str(resource["text"]) if "text" in resource else f"[resource {resource.get('uri', '')}]"
        case kind:
            return f"[{kind}]"


def _bytes(data: object) -> bytes:
    try:
        return base64.b64decode(str(data))
    except binascii.Error:
        return b""
