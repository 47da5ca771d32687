"""The command line's commands for a gateway that runs: `status`, `restart`, `logs`, `doctor` and others."""

from __future__ import annotations

from typing import Annotated

import typer

from mcproxy.cli.options import Config, Json

Names = Annotated[list[str], typer.Argument(help="Servers, as the configuration names them.")]


def register(commands: typer.Typer) -> None:
    """Adds the commands to the command line."""
    commands.command("status")(_status)
    commands.command("restart")(_restart)
    commands.command("retry")(_retry)
    commands.command("logs")(_logs)
    commands.command("loglevel")(_log_level)
    commands.command("doctor")(_doctor)


def _status(config: Config = None, as_json: Json = False) -> None:
    """Show the gateway that runs, and each server, trouble first; exits with 1 where one is not well."""
    from mcproxy.cli.running import operating
    from mcproxy.configuration.loading import find

    raise typer.Exit(operating.status(config or find(), as_json=as_json))


def _restart(names: Names, config: Config = None) -> None:
    """Restart servers of the gateway that runs: ends their processes and connections, and makes them anew."""
    from mcproxy.cli.running import operating
    from mcproxy.configuration.loading import find

    raise typer.Exit(operating.order(config or find(), names, "restart"))


def _retry(names: Names, config: Config = None) -> None:
    """Try now to connect to servers that the gateway waits to try again."""
    from mcproxy.cli.running import operating
    from mcproxy.configuration.loading import find

    raise typer.Exit(operating.order(config or find(), names, "retry"))


def _logs(
    name: Annotated[str, typer.Argument(help="The server, as the configuration names it.")],
    config: Config = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on, until interrupted.")] = False,
) -> None:
    """Print the last lines that a server's process wrote to stderr."""
    from mcproxy.cli.running import operating
    from mcproxy.configuration.loading import find

    raise typer.Exit(operating.logs(config or find(), name, follow=follow))


def _log_level(
    level: Annotated[str, typer.Argument(help="debug, info, warning, error or critical.")], config: Config = None
) -> None:
    """Change the level of the log of the gateway that runs, until it is restarted."""
    from mcproxy.cli.running import operating
    from mcproxy.configuration.loading import find

    raise typer.Exit(operating.log_level(config or find(), level))


def _doctor(config: Config = None, as_json: Json = False) -> None:
    """Say what is wrong with the configuration, this machine or the gateway that runs, each with a remedy."""
    from mcproxy.cli.running import diagnosing
    from mcproxy.configuration.loading import find

    raise typer.Exit(diagnosing.doctor(config or find(), as_json=as_json))
