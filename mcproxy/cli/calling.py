"""`mcproxy list`, `call` and `read`: requests to the whole gateway, which runs in this process meanwhile."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console

from mcproxy import __version__
from mcproxy.app import running
from mcproxy.call.calls import Call, Complete, Failed, Handler, InputRequired, Outcome
from mcproxy.call.clients import Client
from mcproxy.call.identity import AGGREGATE, ANONYMOUS, Caller
from mcproxy.call.upstreams import SERVING, LinkState, UpstreamStatus
from mcproxy.catalog.naming import SEPARATOR, layouts
from mcproxy.cli.output import print_err, print_json, print_out, print_table
from mcproxy.cli.running.through import KEY_VARIABLE, THE_GATEWAY
from mcproxy.cli.runtime import ExitCode, printing
from mcproxy.cli.terminal import Terminal, line_reader
from mcproxy.configuration.references import meant, suggestion
from mcproxy.protocol.eras import LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    Params,
    decode_object,
    raw,
)
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

_MISSING_RESOURCE: Final = frozenset({RESOURCE_NOT_FOUND, METHOD_NOT_FOUND, INVALID_PARAMS})
"""What servers say of a resource that there is not: of 2026-07-28 the last one, which a running gateway says too."""

ListedEntry = dict[str, Any]
"""A tool, resource, template or prompt as its list has it."""


class RequestRefused(Exception):
    """The gateway or an upstream answered with an error; the text is its message."""

    def __init__(self, message: str, code: int = INTERNAL_ERROR) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class LocalClient:
    """The person at the command line, as a handshake client: questions arrive by `Client.ask`, not as results."""

    handler: Handler
    terminal: Client
    capabilities: Params
    endpoint: str = ""

    async def send(self, method: str, params: Params) -> Outcome:
        """The outcome of a request; its messages and questions go to the terminal."""
        info = raw({"name": "mcproxy-cli", "version": __version__})
        caller = Caller(ANONYMOUS, LATEST_HANDSHAKE, self.capabilities, info, self.endpoint, log_level="info")
        return await self.handler(Call(row_of(method), params, caller, self.terminal))


async def entries(client: LocalClient, kind: Kind) -> list[ListedEntry]:
    """A whole list, with all its pages; empty where no server offers such entries. Raises RequestRefused."""
    found: list[ListedEntry] = []
    params: Params = {}
    for _ in range(MAX_PAGES):
        try:
            page = result(await client.send(kind.list_method, params))
        except RequestRefused as refused:
            if refused.code == METHOD_NOT_FOUND:
                return []
            raise
        found += page.get(kind.member, [])
        if page.get("nextCursor") is None:
            break
        params = {"cursor": raw(page["nextCursor"])}
    return found


async def call_tool(client: LocalClient, name: str, pairs: Mapping[str, str], whole: ListedEntry) -> Outcome:
    """Calls a tool with the arguments `whole`, and `pairs` converted by the tool's schema. Raises RequestRefused."""
    schema = await _input_schema(client, name) if pairs else {}
    for unknown in _unknown_arguments(pairs, schema):
        print_err(f"warning: {name} lists no argument {unknown!r}{meant(unknown, schema['properties'])}")
    arguments = {**whole, **read_pairs(pairs, schema)}
    return await client.send(CALL_TOOL, {"name": raw(name), "arguments": raw(arguments)})


async def read_resource(client: LocalClient, uri: str) -> Outcome:
    """Reads a resource by the URI that clients see."""
    return await client.send(READ_RESOURCE, {"uri": raw(uri)})


def result(outcome: Outcome) -> ListedEntry:
    """The result, decoded. Raises RequestRefused where there is none."""
    match outcome:
        case Complete(result=value):
            return decode_object(raw(value))
        case InputRequired():
            raise RequestRefused("the server asks for input in a way that a command cannot answer")
        case Failed(error=error):
            raise RequestRefused(error.message, error.code)


def read_pairs(pairs: Mapping[str, str], schema: ListedEntry) -> ListedEntry:
    """Each value as JSON if it is valid JSON and the schema does not want a string, else as text."""
    properties = schema.get("properties")
    shapes = properties if isinstance(properties, dict) else {}
    return {key: value if _is_text(shapes.get(key)) else _json_or_text(value) for key, value in pairs.items()}


async def _input_schema(client: LocalClient, name: str) -> ListedEntry:
    tool: ListedEntry = next((tool for tool in await entries(client, Kind.TOOLS) if tool.get("name") == name), {})
    schema = tool.get("inputSchema")
    return schema if isinstance(schema, dict) else {}


def _unknown_arguments(pairs: Mapping[str, str], schema: ListedEntry) -> list[str]:
    """Arguments that are probably misspelt: the schema lists others, and does not say that there may be more."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or schema.get("additionalProperties") or "patternProperties" in schema:
        return []
    return [key for key in pairs if properties and key not in properties]


def _is_text(shape: object) -> bool:
    return isinstance(shape, dict) and shape.get("type") == "string"


def _json_or_text(value: str) -> object:
    try:
        found: object = json.loads(value)
    except ValueError:
        return value
    return found


async def list_entries(settings: Settings, what: str, *, as_json: bool) -> int:
    """Prints the tools, resources or prompts that clients see, and to stderr why servers are not connected.

    Nothing to list is FAILED if a server is not connected, else NOT_FOUND.
    """
    async with _gateway(settings) as local:
        found = [(kind, entry) for kind in KINDS[what] for entry in await entries(local.client, kind)]
        local.terminal.close()
        if as_json:
            print_json([entry for _, entry in found])
        else:
            print_table(COLUMNS, [entry_row(kind, entry) for kind, entry in found])
        failures = local.failures()
        for failure in failures:
            print_err(failure)
        if found:
            return ExitCode.OK
        if not failures:
            print_err(f"no {what}")
        return ExitCode.FAILED if failures else ExitCode.NOT_FOUND


async def call(settings: Settings, name: str, pairs: dict[str, str], whole: ListedEntry, *, as_json: bool) -> int:
    """Calls a tool and prints its result."""

    async def request(client: LocalClient) -> ListedEntry:
        return result(await call_tool(client, name, pairs, whole))

    def show(found: ListedEntry) -> int:
        if as_json:
            print_json(found)
        else:
            print_out(tool_text(found), lines=True)
        return ExitCode.FAILED if found.get("isError") is True else ExitCode.OK

    return await _ask(settings, Kind.TOOLS, name, request, show)


async def print_resource(settings: Settings, uri: str, *, as_json: bool) -> int:
    """Reads a resource and prints its contents."""

    async def request(client: LocalClient) -> ListedEntry:
        return result(await read_resource(client, uri))

    def show(found: ListedEntry) -> int:
        (print_json if as_json else print_contents)(found)
        return ExitCode.OK

    return await _ask(settings, Kind.RESOURCES, uri, request, show)


def needed(settings: Settings, kind: Kind, subject: str) -> Settings:
    """The settings with all servers disabled but those that the subject's name, or URI, can be of."""
    layout = layouts(settings.upstreams, settings.proxy.naming.max_name_length)[AGGREGATE]
    if kind is Kind.RESOURCES:
        located = layout.locate(subject)
        names = set() if located is None else {located[0].upstream}
    else:
        names = {space.upstream for space in layout.spaces if space.may_own_name(subject)}
    # Disabled and not left out: their prefixes stay taken, and names lead where they always do.
    upstreams = [
        spec if spec.name in names else spec.model_copy(update={"enabled": False}) for spec in settings.upstreams
    ]
    return settings.model_copy(update={"upstreams": tuple(upstreams)})


async def _ask(
    settings: Settings,
    kind: Kind,
    subject: str,
    request: Callable[[LocalClient], Awaitable[ListedEntry]],
    show: Callable[[ListedEntry], int],
) -> int:
    """Starts the servers that the subject can be of, and shows the result once the terminal is clear of progress."""
    started = needed(settings, kind, subject)
    if not any(spec.enabled for spec in started.upstreams):
        print_err(_of_no_server(settings, kind, subject))
        return ExitCode.NOT_FOUND
    async with _gateway(started) as local:
        try:
            found = await request(local.client)
        except RequestRefused as refused:
            local.terminal.close()
            for failure in (failures := local.failures()):
                print_err(failure)
            if failures:
                return ExitCode.FAILED
            listed = [str(entry.get(kind.key)) for entry in await entries(local.client, kind)]
            missing = subject not in listed and (kind is Kind.TOOLS or refused.code in _MISSING_RESOURCE)
            print_err(str(refused) + (suggestion(subject, listed) if missing else ""))
            return ExitCode.NOT_FOUND if missing else ExitCode.FAILED
        local.terminal.close()
        return show(found)


def _of_no_server(settings: Settings, kind: Kind, subject: str) -> str:
    """The refusal if the subject begins with no server's prefix: no server is asked."""
    mark, names = (SEPARATOR, "names begin") if kind is Kind.TOOLS else ("+", "URIs begin")
    known = [f"{spec.prefix}{mark}" for spec in settings.upstreams if spec.enabled and spec.prefix]
    written = subject.partition(mark)[0] + mark
    return f"{subject!r} is of no server: {names} with {', '.join(known)}{suggestion(written, known)}"


@dataclass(frozen=True, slots=True)
class LocalGateway:
    """A gateway in this process, with the person at the terminal as its client."""

    client: LocalClient
    terminal: Terminal
    statuses: Callable[[], list[UpstreamStatus]]

    def failures(self) -> list[str]:
        """Why servers are not connected."""
        return [
            f"{status.name}: {_why(status)}"
            for status in self.statuses()
            if status.state not in {*SERVING, LinkState.RETIRED}
        ]


def _why(status: UpstreamStatus) -> str:
    """Why a server is not connected; of the gateway that runs, in terms of the command line."""
    if status.name == THE_GATEWAY and str(status.error).startswith("HTTP 401"):
        return f"HTTP 401 Unauthorized: it wants an API key that it knows: --key, or {KEY_VARIABLE}"
    return status.error or "not connected"


@asynccontextmanager
async def _gateway(settings: Settings) -> AsyncIterator[LocalGateway]:
    """Yields once every server has connected or failed to.

    The policy does not apply: the person has the configuration, with all its secrets.
    """
    console = Console(stderr=True, highlight=False)
    terminal = Terminal(console, line_reader(console))
    access = settings.access.model_copy(update={"policy": PolicySettings()})
    async with running(settings.model_copy(update={"access": access})) as app:
        await app.settled()
        try:
            yield LocalGateway(LocalClient(app.handler, terminal, terminal.capabilities), terminal, app.statuses)
        finally:
            terminal.close()


def entry_row(kind: Kind, entry: ListedEntry) -> tuple[str, str]:
    """The name of an entry, and the first line of its description."""
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
            print_out(str(content["text"]), lines=True)
            continue
        data = _bytes(content.get("blob", ""))
        if sys.stdout.isatty():
            print_out(f"[{len(data)} bytes of {content.get('mimeType', 'unknown type')}]")
        else:
            with printing():
                sys.stdout.flush()
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()


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
