"""The command line's commands for a gateway that runs: `status`, `restart`, `logs`, `doctor` and others."""

from typing import Annotated, Final

import typer

from mcproxy.cli.completing import levels, servers
from mcproxy.cli.options import Config, Json

Names = Annotated[list[str], typer.Argument(help="Servers, as the configuration names them.", autocompletion=servers)]


_PANEL: Final = "Operate"
"""Heading of these commands in the help."""


def register(commands: typer.Typer) -> None:
    """Adds the commands to the command line."""
    commands.command("status", rich_help_panel=_PANEL)(_status)
    commands.command("restart", rich_help_panel=_PANEL)(_restart)
    commands.command("retry", rich_help_panel=_PANEL)(_retry)
    commands.command("logs", rich_help_panel=_PANEL)(_logs)
    commands.command("loglevel", rich_help_panel=_PANEL)(_log_level)
    commands.command("doctor", rich_help_panel=_PANEL)(_doctor)


def _status(config: Config = None, as_json: Json = False) -> None:
    """Show the gateway that runs, and its servers, trouble first.

    Exits with 1 where one is not well, a reload was refused, or the audit log cannot be written.
    """
    from mcproxy.cli.running import operating
    from mcproxy.configuration.loading import find

    raise typer.Exit(operating.status(config or find(), as_json=as_json))


def _restart(names: Names, config: Config = None) -> None:
    """Restart servers of the gateway that runs.

    Ends their processes and connections, and makes them anew.
    """
    from mcproxy.cli.running import operating
    from mcproxy.configuration.loading import find

    raise typer.Exit(operating.order(config or find(), names, "restart"))


def _retry(names: Names, config: Config = None) -> None:
    """Try servers at once that the gateway would try later."""
    from mcproxy.cli.running import operating
    from mcproxy.configuration.loading import find

    raise typer.Exit(operating.order(config or find(), names, "retry"))


def _logs(
    name: Annotated[str, typer.Argument(help="The server, as the configuration names it.", autocompletion=servers)],
    config: Config = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until interrupted.")] = False,
) -> None:
    """Print the last lines of the stderr of a server's process."""
    from mcproxy.cli.running import operating
    from mcproxy.configuration.loading import find

    raise typer.Exit(operating.logs(config or find(), name, follow=follow))


def _log_level(
    level: Annotated[str, typer.Argument(help="debug, info, warning, error or critical.", autocompletion=levels)],
    config: Config = None,
) -> None:
    """Change the log level of the gateway that runs.

    It holds until the gateway is restarted.
    """
    from mcproxy.cli.running import operating
    from mcproxy.configuration.loading import find

    raise typer.Exit(operating.log_level(config or find(), level))


def _doctor(config: Config = None, as_json: Json = False) -> None:
    """Say what is wrong here, with a remedy for each.

    Looks at the configuration, at this machine and at the gateway that runs; exits with 0 where it found nothing.
    """
    from mcproxy.cli.running import diagnosing
    from mcproxy.configuration.loading import find

    raise typer.Exit(diagnosing.doctor(config or find(), as_json=as_json))
