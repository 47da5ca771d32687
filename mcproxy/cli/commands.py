"""The command line: its commands, their options and help.

What carries a command out is imported when it runs, so that `--version` and a mistyped option need no library. Exit
codes (`runtime.ExitCode`): 0 success, 1 the request failed, 2 the command line or a file is wrong, 3 nothing found, 130
interrupted. Nothing but MCP, or the result, is ever written to stdout.
"""

import gc
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from mcproxy import __version__
from mcproxy.cli.completing import LISTS, list_names, servers
from mcproxy.cli.options import Config, Json, Key, Url, checked_port
from mcproxy.cli.running.commands import register as register_running
from mcproxy.cli.runtime import ExitCode, OutputLost, read_configuration, read_settings, run, unimportable
from mcproxy.cli.setup.commands import register as register_setup
from mcproxy.configuration.problems import ConfigurationError

if TYPE_CHECKING:
    from mcproxy.settings import Settings

commands = typer.Typer(
    name="mcproxy",
    help="One endpoint in front of many Model Context Protocol servers.",
    epilog="Exit codes: 0 success; 1 the request failed; 2 the command line or a file is wrong; 3 nothing found.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    pretty_exceptions_enable=False,
)
keys = typer.Typer(help="Manage API keys of callers.", no_args_is_help=True)
policies = typer.Typer(help="Test the access policy.", no_args_is_help=True)
_SERVE, _USE, _ACCESS = "Serve", "Use", "Control access"
"""Headings of the commands in the help."""
commands.add_typer(keys, name="keys", rich_help_panel=_ACCESS)
commands.add_typer(policies, name="policy", rich_help_panel=_ACCESS)

JsonArguments = Annotated[str, typer.Option("--json-args", help="The arguments as a JSON object.")]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs one command and exits with its code."""
    # pydantic would look for plugins of its own in the metadata of every package that is installed beside us.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        commands(arguments)
    except ConfigurationError as error:
        from mcproxy.cli.output import print_err

        print_err(str(error), lines=True)
        sys.exit(ExitCode.INPUT)
    except OutputLost as error:
        typer.echo(f"the output could not be written: {error}", err=True)
        sys.exit(ExitCode.FAILED)
    sys.exit(ExitCode.OK)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mcproxy {__version__}")
        raise typer.Exit(ExitCode.OK)


@commands.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@commands.command(rich_help_panel=_SERVE)
def serve(
    config: Config = None,
    stdio: Annotated[bool, typer.Option("--stdio", help="Serve one client on stdin and stdout.")] = False,
    port: Annotated[
        int | None,
        typer.Option(parser=checked_port, metavar="PORT", help="Port to listen on, instead of proxy.port."),
    ] = None,
) -> None:
    """Run the gateway over HTTP, or with --stdio for one host.

    Reloads the configuration when it changes and on SIGHUP; SIGUSR1 switches debug logs on and off.
    """
    # Until it serves: what start-up makes is kept, and looking through it would take a quarter of the start.
    gc.disable()
    with unimportable("rich"):
        # It would import rich, 5 MiB, for tracebacks in colour, which are not what our logs have.
        import structlog  # noqa: F401
    from mcproxy.cli import serving
    from mcproxy.configuration.loading import find

    serving.serve(config or find(), over_stdio=stdio, port=port)


@commands.command(rich_help_panel=_SERVE)
def check(
    config: Config = None,
    connect: Annotated[bool, typer.Option("--connect", help="Also connect to every upstream.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Take warnings for errors.")] = False,
    as_json: Json = False,
) -> None:
    """Validate the configuration; with --connect, try every server.

    Warns of servers, roles and callers that do not exist, and of commands that this machine does not have; with
    --connect also of tools.

    --json prints an object with `valid`, `problems`, `warnings`, `upstreams` (names) and `reports`: one for each server
    that --connect tried, which is none where the configuration is not valid.
    """
    from mcproxy.cli import checking

    try:
        configuration = read_configuration(config)
    except ConfigurationError as error:
        if not as_json:
            raise
        checking.print_invalid(error)
        raise typer.Exit(ExitCode.INPUT) from error
    if connect and not (strict and configuration.warnings):
        from mcproxy.cli import reports

        run(reports.check_connected(configuration, strict=strict, as_json=as_json))
    raise typer.Exit(checking.check(configuration, strict=strict, as_json=as_json))


@commands.command(rich_help_panel=_SERVE)
def health(
    config: Config = None,
    ready: Annotated[
        bool,
        typer.Option(
            "--ready", help="Also fail if it is not ready, as /readyz says: a required server is missing, or it stops."
        ),
    ] = False,
) -> None:
    """Ask whether the gateway of this configuration runs here."""
    from mcproxy.cli.health import health

    raise typer.Exit(health(read_configuration(config), ready=ready))


def _list_name(what: str) -> str:
    # An Enum's own refusal begins with words of the library that checks it.
    if what not in LISTS:
        raise typer.BadParameter(f"{what!r} is none of {', '.join(LISTS)}", param_hint="WHAT")
    return what


def _settings_for(config: Path | None, url: str | None, key: str | None) -> "Settings":
    """The settings for a request; none of a configuration where there is none, and the gateway has a URL."""
    from mcproxy.cli.running.through import settings_at, settings_for
    from mcproxy.configuration.loading import found
    from mcproxy.telemetry import logs

    if url is not None and config is None and found() is None:
        logs.configure("console", "critical", frozenset())
        return settings_at(url, key)
    return settings_for(read_configuration(config), url, key)


@commands.command("list", rich_help_panel=_USE)
def list_(
    what: Annotated[
        str,
        typer.Argument(help="tools, resources, prompts or upstreams.", callback=_list_name, autocompletion=list_names),
    ],
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List the tools, resources or prompts that clients see.

    `upstreams` connects to every server, as `mcproxy check --connect` does, and lists them.
    """
    from mcproxy.cli import calling, reports

    if what == "upstreams":
        run(reports.list_upstreams(read_configuration(config), as_json=as_json))
    run(calling.list_entries(_settings_for(config, url, key), what, as_json=as_json))


@commands.command(rich_help_panel=_USE)
def call(
    name: Annotated[str, typer.Argument(help="The tool, as `mcproxy list tools` names it.")],
    arg: Annotated[list[str] | None, typer.Option("--arg", help="key=value, as often as needed.")] = None,
    json_args: JsonArguments = "{}",
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Call a tool through the whole gateway."""
    from mcproxy.cli import calling

    whole, pairs = _json_object(json_args), _pairs(arg or [])
    run(calling.call(_settings_for(config, url, key), name, pairs, whole, as_json=as_json))


@commands.command("read", rich_help_panel=_USE)
def read_(
    uri: Annotated[str, typer.Argument(help="The resource, as `mcproxy list resources` names it.")],
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Read a resource through the whole gateway."""
    from mcproxy.cli import calling

    run(calling.print_resource(_settings_for(config, url, key), uri, as_json=as_json))


@commands.command("lock", rich_help_panel=_ACCESS)
def lock_(
    config: Config = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 1 if anything differs from the lock file.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Write nothing; print what differs from the lock file.")] = False,
) -> None:
    """Approve what servers offer now, for access.pins.

    Writes their tools, prompts, templates, skills and instructions to the lock file.
    """
    from mcproxy.cli.access.lock import LockMode, lock
    from mcproxy.configuration.loading import find

    path = config or find()
    mode = LockMode.CHECK if check else LockMode.DIFF if diff else LockMode.WRITE
    run(lock(read_settings(path), path.absolute().parent, mode))


@commands.command("explain", rich_help_panel=_ACCESS)
def explain_(
    method: Annotated[str | None, typer.Argument(help="The method, such as tools/call or resources/read.")] = None,
    subject: Annotated[str | None, typer.Argument(help="The tool, prompt or URI, as `mcproxy list` names it.")] = None,
    principal: Annotated[str, typer.Option("--principal", "-p", help="The caller's name.")] = "anonymous",
    role: Annotated[
        list[str] | None, typer.Option("--role", "-r", help="A role of the caller, as often as needed.")
    ] = None,
    endpoint: Annotated[str, typer.Option(help="The endpoint: /mcp, /mcp/NAME or /servers/NAME.")] = "/mcp",
    pipeline: Annotated[bool, typer.Option("--pipeline", help="Show what every call passes instead.")] = False,
    json_args: JsonArguments = "{}",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Explain why a request is allowed or denied, step by step.

    The steps are endpoint, upstream, filter, name, lists and policy. Asks the gateway that runs, else one of its own,
    which connects to every server. With --pipeline, shows everything that wraps a call under this configuration, from
    the client to the server, and connects to nothing.
    """
    if pipeline:
        from mcproxy.cli.access.explain import print_pipeline

        run(print_pipeline(read_settings(config), as_json=as_json))
    if method is None or subject is None:
        raise typer.BadParameter("name a METHOD and a SUBJECT, or use --pipeline")
    from mcproxy.call.identity import Principal
    from mcproxy.cli.access.explain import known_roles, print_explanation
    from mcproxy.protocol.jsonrpc import raw

    configuration = read_configuration(config)
    caller = Principal(principal, known_roles(configuration.settings, principal).union(role or ()))
    arguments = {name: raw(value) for name, value in _json_object(json_args).items()}
    run(print_explanation(configuration, caller, endpoint, method, subject, arguments, as_json=as_json))


@commands.command("usage", rich_help_panel=_ACCESS)
def usage_(
    by: Annotated[
        str,
        typer.Option(help="Columns, with commas: principal, tool, upstream, method, endpoint, client, outcome, day."),
    ] = "principal,tool",
    since: Annotated[str | None, typer.Option(help="How far back, such as 7d or 12h. Default: everything.")] = None,
    file: Annotated[str | None, typer.Option(help="The audit log. Default: access.audit.file.")] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Sum up the audit log by caller, tool and other columns.

    Calls, errors, denials, bytes and estimated tokens, and tools that were never called.
    """
    from mcproxy.cli.access.usage import usage

    configuration = read_configuration(config)
    folder = configuration.path.absolute().parent
    raise typer.Exit(usage(configuration.settings, folder, by=by, since=since, file=file, as_json=as_json))


register_setup(commands)
register_running(commands)


@commands.command(rich_help_panel=_SERVE)
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors."""
    from mcproxy.cli.output import print_json
    from mcproxy.configuration.schema import schema

    print_json(schema())


@keys.callback()
def keys_root() -> None:
    """Manage API keys of callers."""


@keys.command("add")
def keys_add(
    name: Annotated[str, typer.Argument(help="The caller's name, in policies and in the audit log.")],
    role: Annotated[list[str] | None, typer.Option("--role", "-r", help="A role, as often as needed.")] = None,
    expires_in: Annotated[str | None, typer.Option("--expires-in", help="Time until it expires, such as 90d.")] = None,
    as_json: Json = False,
) -> None:
    """Generate a key, and the lines for it in the configuration.

    The key is printed this once. A caller may have several keys: to replace one, add another, let the caller use it,
    then remove the first.
    """
    from mcproxy.cli.access.keys import add_key

    add_key(name, role or [], expires_in, as_json=as_json)


@policies.callback()
def policies_root() -> None:
    """Test the access policy."""


@policies.command("test")
def policy_test(
    file: Annotated[
        Path, typer.Argument(help="A YAML or JSON file with a list of cases: principal, roles, method, subject ...")
    ],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Compare the policy's decisions with expected ones.

    Exits with 1 if one differs.
    """
    from mcproxy.cli.access.policy_cases import judge_all
    from mcproxy.configuration.loading import find, load_configuration

    raise typer.Exit(judge_all(load_configuration(config or find()).settings, file, as_json=as_json))


@commands.command(rich_help_panel=_ACCESS)
def login(
    name: Annotated[str, typer.Argument(help="The server, as the configuration names it.", autocompletion=servers)],
    config: Config = None,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", help="A scope to ask for as well, as often as needed.")
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            parser=checked_port, metavar="PORT", help="Port here that the browser comes back to; 0 takes a free one."
        ),
    ] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser here.")] = True,
    device: Annotated[bool, typer.Option("--device", help="Log in by a code that is entered on any device.")] = False,
) -> None:
    """Log in to a server that wants OAuth.

    A gateway that runs takes the login over by itself.
    """
    from mcproxy.cli.access import grants

    settings = read_settings(config)
    grants.upstream_with_oauth(settings, name)
    run(grants.login(settings, name, scopes=scope or (), port=port, browser=browser, device=device))


@commands.command(rich_help_panel=_ACCESS)
def logout(
    name: Annotated[str, typer.Argument(help="The server, as the configuration names it.", autocompletion=servers)],
    config: Config = None,
    principal: Annotated[
        str, typer.Option("--principal", "-p", help="The caller whose login it is. Default: the gateway's own login.")
    ] = "",
) -> None:
    """Take back a login, at its authorization server and here.

    Exits with 3 where there is none.
    """
    from mcproxy.cli.access import grants

    settings = read_settings(config)
    grants.upstream_with_oauth(settings, name)
    run(grants.logout(settings, name, principal))


@commands.command("grants", rich_help_panel=_ACCESS)
def grants_(config: Config = None, as_json: Json = False) -> None:
    """Show the logins that the gateway holds at servers.

    Each with its caller, authorization server, scopes and end; exits with 3 where there are none.
    """
    from mcproxy.cli.access import grants

    run(grants.list_grants(read_settings(config), as_json=as_json))


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"not valid JSON: {error}", param_hint="--json-args") from error
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
