"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="Configuration file. Default: MCPROXY_CONFIG, mcproxy.yaml here, or ~/.config/mcproxy."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Url = Annotated[
    str | None, typer.Option("--url", help="The endpoint of a gateway that runs. Default: that of the configuration.")
]
Key = Annotated[str | None, typer.Option("--key", help="The API key for it. Default: MCPROXY_KEY.")]
