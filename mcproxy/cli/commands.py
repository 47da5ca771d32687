"""The command line. Exit codes: 0 it worked, 1 what was asked for failed, 2 the command line or a file is wrong.

Says which commands there are and puts them together; `app` runs the gateway, `inspection` asks it, `presentation`
prints. Nothing but MCP, or the result, is ever written to stdout.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import anyio
import structlog
import typer

from mcproxy import __version__
from mcproxy import rlimits as descriptors
from mcproxy.app import App, running, serve_http, serve_stdio
from mcproxy.call.identity import ANONYMOUS, Principal
from mcproxy.call.upstreams import Connected, UpstreamEvent
from mcproxy.cli.explain import endpoint_key, explained, known_roles, present
from mcproxy.cli.inspection import (
    ListedEntry,
    LocalClient,
    RequestRefused,
    call_tool,
    entries,
    read_resource,
    reports,
    result,
)
from mcproxy.cli.keys import keys
from mcproxy.cli.lock import LockMode, lock
from mcproxy.cli.policies import policies
from mcproxy.cli.presentation import (
    ENTRY_COLUMNS,
    REPORT_COLUMNS,
    banner,
    entry_row,
    remarks,
    report_row,
    say,
    show,
    show_contents,
    show_json,
    show_table,
    stderr,
    told,
    tool_text,
)
from mcproxy.cli.terminal import Terminal, line_reader
from mcproxy.configuration.documents import ConfigurationError
from mcproxy.configuration.importing import import_servers
from mcproxy.configuration.loading import Configuration, find, read
from mcproxy.configuration.schema import schema as schema_of_configuration
from mcproxy.protocol.jsonrpc import Params, raw
from mcproxy.protocol.methods import Kind
from mcproxy.service import systemd
from mcproxy.service.reloading import Reloading
from mcproxy.settings import PolicySettings, Settings
from mcproxy.telemetry import logs

OK, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130

log = structlog.get_logger()

commands = typer.Typer(
    name="mcproxy",
    help="One endpoint in front of many Model Context Protocol servers.",
    epilog="Exit codes: 0 it worked; 1 what was asked for failed; 2 the command line or the configuration is wrong.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    pretty_exceptions_enable=False,
)
commands.add_typer(keys, name="keys")
commands.add_typer(policies, name="policy")

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="The configuration; else MCPROXY_CONFIG, else mcproxy.yaml here or in yours."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class ListName(Enum):
    TOOLS = "tools"
    RESOURCES = "resources"
    PROMPTS = "prompts"
    UPSTREAMS = "upstreams"


ROUND: Final = 10_000
"""Objects that come, less those that go, before the garbage collector looks through the youngest."""
KINDS: Final = {
    ListName.TOOLS: (Kind.TOOLS,),
    ListName.RESOURCES: (Kind.RESOURCES, Kind.TEMPLATES),
    ListName.PROMPTS: (Kind.PROMPTS,),
}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs one command and exits with its code."""
    try:
        commands(arguments)
    except ConfigurationError as error:
        say(str(error))
        sys.exit(WRONG)
    sys.exit(OK)


def _version(wanted: bool) -> None:
    if wanted:
        show(f"mcproxy {__version__}")
        raise typer.Exit(OK)


@commands.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@commands.command()
def serve(
    config: Config = None,
    stdio: Annotated[bool, typer.Option("--stdio", help="Serve one client on stdin and stdout.")] = False,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="In place of proxy.port.")] = None,
) -> None:
    """Run the gateway: over HTTP, or with --stdio for a host that starts it.

    It reloads the configuration when it changes, and on SIGHUP; SIGUSR1 turns debug logs on, and off again.
    """
    path = config or find()

    def load() -> Configuration:
        return _on_port(read(path), port)

    configuration = load()
    _set_up_logs(configuration)
    descriptors.raise_limit()
    _run((_serve_stdio if stdio else _serve_http)(configuration, load))


@commands.command()
def check(
    config: Config = None,
    connect: Annotated[bool, typer.Option("--connect", help="Connect to every upstream as well.")] = False,
    as_json: Json = False,
) -> None:
    """Validate the configuration; with --connect, every upstream behind it."""
    settings = _settings(config, quiet=True)
    if connect:
        _run(_check(settings, as_json, strict=True))
    names = [upstream.name for upstream in settings.upstreams if upstream.enabled]
    if as_json:
        show_json({"valid": True, "upstreams": names})
    else:
        show(f"valid, {len(names)} upstreams")


@commands.command("list")
def list_(what: ListName, config: Config = None, as_json: Json = False) -> None:
    """Show the tools, resources or prompts that clients see, or the upstreams."""
    settings = _settings(config, quiet=True)
    if what is ListName.UPSTREAMS:
        _run(_check(settings, as_json, strict=False))
    _run(_visit(settings, lambda visitor: _list(visitor, KINDS[what], as_json)))


@commands.command()
def call(
    name: Annotated[str, typer.Argument(help="The tool, as `mcproxy list tools` names it.")],
    arg: Annotated[list[str] | None, typer.Option("--arg", help="key=value, as often as needed.")] = None,
    json_args: Annotated[str, typer.Option("--json-args", help="The arguments as a JSON object.")] = "{}",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Call a tool through the whole gateway."""
    whole, pairs = _json_object(json_args), _pairs(arg or [])
    _run(_visit(_settings(config, quiet=True), lambda visitor: _call(visitor, name, pairs, whole, as_json)))


@commands.command("read")
def read_(
    uri: Annotated[str, typer.Argument(help="The resource, as `mcproxy list resources` names it.")],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Read a resource through the whole gateway."""
    _run(_visit(_settings(config, quiet=True), lambda visitor: _read(visitor, uri, as_json)))


@commands.command("lock")
def lock_(
    config: Config = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail where anything is another.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Write nothing; tell what is another.")] = False,
) -> None:
    """Approve the tools, prompts, templates and instructions that upstreams offer now (access.pins)."""
    path = config or find()
    task = LockMode.CHECK if check else LockMode.DIFF if diff else LockMode.WRITE
    _run(_lock(_settings(path, quiet=True), path.absolute().parent, task))


@commands.command("explain")
def explain_(
    method: Annotated[str, typer.Argument(help="What is asked for, such as tools/call or resources/read.")],
    subject: Annotated[str, typer.Argument(help="The tool, prompt or URI, as `mcproxy list` names it.")],
    principal: Annotated[str, typer.Option("--principal", "-p", help="Who asks.")] = ANONYMOUS.name,
    role: Annotated[list[str] | None, typer.Option("--role", "-r", help="A role that it comes with.")] = None,
    endpoint: Annotated[str, typer.Option(help="/mcp, /mcp/NAME or /servers/NAME.")] = "/mcp",
    json_args: Annotated[str, typer.Option("--json-args", help="A tool's arguments as a JSON object.")] = "{}",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Say why somebody may do something, or may not: endpoint, upstream, filter, name, policy."""
    settings = _settings(config, quiet=True)
    who = Principal(principal, known_roles(settings, principal).union(role or ()))
    arguments = {name: raw(value) for name, value in _json_object(json_args).items()}
    _run(_explain(settings, who, endpoint, method, subject, arguments, as_json=as_json))


@commands.command("import")
def import_(
    source: Annotated[
        str, typer.Argument(help="claude, claude-code, cursor, vscode, windsurf, cline, gemini, or a file.")
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A new file; else stdout.")] = None,
) -> None:
    """Make a configuration from a host's own; its secrets become ${VARIABLES}."""
    imported = import_servers(source, Path.cwd())
    if output is None:
        show(imported.render().rstrip())
    else:
        _write_new(output, imported.render())
    say(told(imported, output))


@commands.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors."""
    show_json(schema_of_configuration())


async def _serve_http(configuration: Configuration, load: Callable[[], Configuration]) -> int:
    code, tell = OK, systemd.notifier()
    try:
        async with running(configuration.settings) as app:
            reloading = Reloading(configuration, load, app.reconfigure, app.metrics, tell=tell)
            await serve_http(app, started=partial(_started, app), reloading=reloading, tell=tell)
    except* OSError as group:
        say(f"mcproxy stopped: {_first(group)}")
        code = FAILED
    return code


async def _serve_stdio(configuration: Configuration, load: Callable[[], Configuration]) -> int:
    async with running(configuration.settings) as app:
        await serve_stdio(app, reloading=Reloading(configuration, load, app.reconfigure, app.metrics))
    return OK


def _started(app: App, url: str, status_page: str | None) -> None:
    settings = app.settings
    if stderr().is_terminal or settings.proxy.log_format == "console":
        say(banner(url, settings, status_page))
    else:
        log.info("serving", url=url + settings.proxy.paths.mcp, **({"status_page": status_page} if status_page else {}))
    _spare_what_stays()


def _spare_what_stays() -> None:
    """Takes what there is by now out of the rounds of the garbage collector, and has them come seldom.

    They hold up calls, find nothing that calls leave behind, and count all that is in flight as if it were to stay: so
    often did they come that each went through everything, the sessions too.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(ROUND, *gc.get_threshold()[1:])


async def _check(settings: Settings, as_json: bool, *, strict: bool) -> int:
    """Reports on every upstream; where `strict`, one that is not connected is a failure."""
    start = time.monotonic()
    latencies: dict[str, float] = {}

    def note(event: UpstreamEvent) -> None:
        if isinstance(event, Connected):
            latencies.setdefault(event.upstream, time.monotonic() - start)

    async with running(settings, on_event=note) as app:
        await app.settled()
        found = reports(app.statuses(), app.catalogue(), latencies)
    if as_json:
        show_json([dataclasses.asdict(report) for report in found])
    else:
        show_table(REPORT_COLUMNS, [report_row(report) for report in found])
        for remark in (remark for report in found for remark in remarks(report)):
            say(remark)
    return FAILED if strict and not all(report.ok for report in found) else OK


async def _visit(settings: Settings, errand: Callable[[LocalClient], Awaitable[int]]) -> int:
    """Runs an errand at a gateway whose upstreams had their chance to connect.

    No policy holds for who has the file, and all the secrets in it.
    """
    console = stderr()
    terminal = Terminal(console, line_reader(console))
    access = settings.access.model_copy(update={"policy": PolicySettings()})
    async with running(settings.model_copy(update={"access": access})) as app:
        await app.settled()
        try:
            return await errand(LocalClient(app.handler, terminal, terminal.capabilities))
        except RequestRefused as refused:
            say(str(refused))
            return FAILED
        finally:
            terminal.close()


async def _lock(settings: Settings, folder: Path, task: LockMode) -> int:
    return OK if await lock(settings, folder, task) else FAILED


async def _explain(
    settings: Settings, who: Principal, endpoint: str, method: str, subject: str, arguments: Params, *, as_json: bool
) -> int:
    try:
        explanation = await explained(settings, who, endpoint_key(endpoint), method, subject, arguments)
    except ValueError as error:
        say(str(error))
        return WRONG
    present(explanation, as_json=as_json)
    return OK if explanation.allowed else FAILED


async def _list(visitor: LocalClient, kinds: Sequence[Kind], as_json: bool) -> int:
    found = [(kind, entry) for kind in kinds for entry in await entries(visitor, kind)]
    if as_json:
        show_json([entry for _, entry in found])
    else:
        show_table(ENTRY_COLUMNS, [entry_row(kind, entry) for kind, entry in found])
    return OK


async def _call(visitor: LocalClient, name: str, pairs: dict[str, str], whole: ListedEntry, as_json: bool) -> int:
    found = result(await call_tool(visitor, name, pairs, whole))
    if as_json:
        show_json(found)
    else:
        show(tool_text(found))
    return FAILED if found.get("isError") is True else OK


async def _read(visitor: LocalClient, uri: str, as_json: bool) -> int:
    found = result(await read_resource(visitor, uri))
    if as_json:
        show_json(found)
    else:
        show_contents(found)
    return OK


def _settings(config: Path | None, *, quiet: bool = False) -> Settings:
    """Reads the configuration and sets up the logs; `quiet` commands tell of errors themselves."""
    configuration = read(config or find())
    _set_up_logs(configuration, quiet=quiet)
    return configuration.settings


def _set_up_logs(configuration: Configuration, *, quiet: bool = False) -> None:
    proxy = configuration.settings.proxy
    level = "critical" if quiet else proxy.log_level
    logs.configure("console" if quiet else proxy.log_format, level, configuration.secrets)


def _on_port(configuration: Configuration, port: int | None) -> Configuration:
    """The configuration, with the port of the command line in place of its own."""
    if port is None:
        return configuration
    settings = configuration.settings
    proxy = settings.proxy.model_copy(update={"port": port})
    return dataclasses.replace(configuration, settings=settings.model_copy(update={"proxy": proxy}))


def _run(work: Coroutine[Any, Any, int]) -> NoReturn:
    """Runs to the end, on uvloop where there is one. Ctrl-C is how commands are stopped: it needs no traceback."""

    async def whole() -> int:
        return await work

    try:
        code = anyio.run(whole, backend_options={"use_uvloop": importlib.util.find_spec("uvloop") is not None})
    except KeyboardInterrupt:
        # A thread that waits for a line at a prompt would keep the process until somebody presses Enter.
        os._exit(INTERRUPTED)
    except ExceptionGroup as group:
        broken = group.subgroup(BrokenPipeError)
        if broken is None:
            raise
        # Nobody reads the output any more, as after `| head`: Typer knows what to do, but not in a group.
        raise _first(broken) from None
    raise typer.Exit(code)


def _json_object(text: str) -> ListedEntry:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"no valid JSON: {error}", param_hint="--json-args") from error
    if not isinstance(value, dict):
        raise typer.BadParameter("should be a JSON object", param_hint="--json-args")
    return value


def _pairs(arguments: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise typer.BadParameter(f"{argument!r} should be key=value", param_hint="--arg")
        pairs[key] = value
    return pairs


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror}", param_hint="--output") from error


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
