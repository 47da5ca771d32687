"""Options that several commands have."""

from pathlib import Path
from typing import Annotated, Final

import typer

MAX_PORT: Final = 65535

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="Configuration file. Default: MCPROXY_CONFIG, mcproxy.yaml here, or ~/.config/mcproxy."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def checked_url(url: str | None) -> str | None:
    """The URL of an option. Raises BadParameter where it is none, as without its scheme."""
    if url is not None:
        from mcproxy.configuration.consistency import url_fault

        fault = url_fault(url)
        if fault is not None:
            raise typer.BadParameter(f"{fault}, such as http://127.0.0.1:8000/mcp", param_hint="--url")
    return url


Url = Annotated[
    str | None,
    typer.Option(
        "--url", callback=checked_url, help="The endpoint of a gateway that runs. Default: that of the configuration."
    ),
]


def checked_port(text: str | int) -> int:
    """The port of an option. Raises BadParameter where it is none."""
    try:
        port = int(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no port: give a number, such as 8000") from error
    if not 0 <= port <= MAX_PORT:
        raise typer.BadParameter(f"{port} is no port: the highest is {MAX_PORT}, and 0 takes a free one")
    return port


Key = Annotated[str | None, typer.Option("--key", help="The API key for it. Default: MCPROXY_KEY.")]
