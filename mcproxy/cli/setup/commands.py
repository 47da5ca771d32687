"""The command line's commands that write files: `connect`, `import`, `add`, `remove`, `enable` and `disable`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer.core import TyperCommand

from mcproxy.cli.completing import hosts, servers
from mcproxy.cli.options import Config, checked_url
from mcproxy.cli.runtime import read_configuration

if TYPE_CHECKING:
    from typer._click import Context

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and write nothing.")]
ServerName = Annotated[str, typer.Argument(help="The server, as the configuration names it.", autocompletion=servers)]


_PANEL: Final = "Set up"
"""Heading of these commands in the help."""


class _AddCommand(TyperCommand):
    """Says that `--` is missing where options of the server's command would be taken for options of `add`.

    `mcproxy add NAME npx -y PACKAGE` would run `npx PACKAGE`, and take `-y` for its own `--yes`.
    """

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        words = list(args)
        try:
            rest = super().parse_args(ctx, args)
        except typer.TyperException as error:
            # An option that is none of ours, and resembles none: other errors have no `possibilities`.
            if "--" not in words and not getattr(error, "possibilities", True):
                error.message += _BEHIND_DASHES
            raise
        if ctx.resilient_parsing:  # a shell completes the line, which is not all there yet
            return rest
        target = list(ctx.params["target"])
        together = any(words[start : start + len(target)] == target for start in range(len(words)))
        if "--" not in words and not together:
            raise typer.BadParameter(f"an option stands within the server's command{_BEHIND_DASHES}")
        return rest


_BEHIND_DASHES: Final = "; put `--` before a command with options of its own: mcproxy add NAME -- COMMAND --option"


def register(commands: typer.Typer) -> None:
    """Adds the commands to the command line."""
    commands.command("connect", rich_help_panel=_PANEL)(_connect)
    commands.command("import", rich_help_panel=_PANEL)(_import)
    commands.command("add", cls=_AddCommand, rich_help_panel=_PANEL)(_add)
    commands.command("remove", rich_help_panel=_PANEL)(_remove)
    commands.command("enable", rich_help_panel=_PANEL)(_enable)
    commands.command("disable", rich_help_panel=_PANEL)(_disable)


def _connect(
    host: Annotated[
        str,
        typer.Argument(
            help="antigravity, claude-code, claude-desktop, cline, codex, continue, copilot, cursor, gemini, goose, "
            "opencode, vscode, windsurf or zed.",
            autocompletion=hosts,
        ),
    ],
    config: Config = None,
    url: Annotated[
        str | None,
        typer.Option(
            callback=checked_url, help="The URL of the endpoint. Default: that of the gateway, where it runs."
        ),
    ] = None,
    stdio: Annotated[bool, typer.Option("--stdio", help="Let the host start the gateway, even where it runs.")] = False,
    project: Annotated[
        Path | None, typer.Option(file_okay=False, help="The folder of a project, to connect the host there alone.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The gateway's name in the host. Default: mcproxy.")] = None,
    key_variable: Annotated[
        str | None, typer.Option(help="The environment variable with the API key, where keys are on.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take it out again.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Write the gateway into a host's own file; --undo takes it out.

    Shows the change and asks before it writes; --undo takes it back to the byte.
    """
    from mcproxy.cli.setup import connecting

    file = connecting.host_file(host, project)
    if undo:
        raise typer.Exit(connecting.undo(file, name, yes=yes, dry_run=dry_run))
    gateway = connecting.reach(file.host, read_configuration(config), url, key_variable, stdio=stdio)
    raise typer.Exit(connecting.write_connection(file, name or "mcproxy", gateway, yes=yes, dry_run=dry_run))


def _import(
    source: Annotated[
        list[str],
        typer.Argument(
            help="Hosts or files: antigravity, claude-code, claude-desktop, cline, codex, continue, copilot, cursor, "
            "gemini, goose, opencode, vscode, windsurf, zed, or a path.",
            autocompletion=hosts,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new file; secrets go into a `.env` beside it.")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--as", help="The host whose references (${env:X} and the like) a file has.", autocompletion=hosts
        ),
    ] = None,
) -> None:
    """Convert hosts' servers to a configuration of mcproxy.

    Secrets become ${VARIABLES}, kept in `.env`.
    """
    from mcproxy.cli.setup.importing import import_

    import_(source, output, host)


def _add(
    name: Annotated[str, typer.Argument(help="The server's name.")],
    target: Annotated[
        list[str], typer.Argument(help="A URL; `--` and a command; a server.json of the registry; or a bundle (.mcpb).")
    ],
    config: Config = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", help="NAME=value for a command, as often as needed.")
    ] = None,
    env_from: Annotated[
        list[str] | None,
        typer.Option("--env-from", help="NAME or NAME=VARIABLE: a value from your environment, as often as needed."),
    ] = None,
    value: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=value for what a server.json or a bundle asks for, as often as needed."),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", help="'Name: value' for a URL, as often as needed.")
    ] = None,
    connect: Annotated[bool, typer.Option("--connect/--no-connect", help="Connect to it first.")] = True,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Add a server to the configuration, after a try.

    Shows what would run, where it would connect and which values it would get, and asks; tries it, shows what it
    offers, asks again, and writes it. --yes answers both. --dry-run runs nothing, connects nowhere and writes nothing.
    """
    from mcproxy.cli.setup import adding

    wanted = adding.Wanted(name, target, env or [], env_from or [], header or [], value or [])
    adding.add_server(config, wanted, connect=connect, yes=yes, dry_run=dry_run)


def _remove(name: ServerName, config: Config = None, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Take a server out of the configuration."""
    from mcproxy.cli.setup import adding

    raise typer.Exit(adding.remove_server(config, name, yes=yes, dry_run=dry_run))


def _enable(name: ServerName, config: Config = None) -> None:
    """Switch a server on in the configuration.

    A gateway that runs connects to it.
    """
    from mcproxy.cli.setup import adding

    raise typer.Exit(adding.switch(config, name, enabled=True))


def _disable(name: ServerName, config: Config = None) -> None:
    """Switch a server off in the configuration.

    A gateway that runs lets its calls end, and stops it.
    """
    from mcproxy.cli.setup import adding

    raise typer.Exit(adding.switch(config, name, enabled=False))
