"""Print results: tables on a terminal, fields separated by tabs elsewhere, JSON on request.

Results go to stdout, everything else to stderr. Texts of servers are printed without control characters.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcproxy import __version__
from mcproxy.cli.terminal import printable
from mcproxy.settings import Paths, Settings


def stderr() -> Console:
    return Console(stderr=True, highlight=False)


def print_err(text: str) -> None:
    """Prints a text to stderr."""
    stderr().print(Text(printable(text)), soft_wrap=True)


def print_out(text: str) -> None:
    """Prints a text to stdout."""
    _stdout().print(Text(printable(text)), soft_wrap=True)


def print_json(value: object) -> None:
    # Not by rich: a console's width must not break lines, and JSON is ASCII where its reader is a program.
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=not sys.stdout.isatty()) + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    console = _stdout()
    if not console.is_terminal:
        for row in rows:
            sys.stdout.write("\t".join(" ".join(printable(cell).split()) for cell in row) + "\n")
        sys.stdout.flush()
        return
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)


def banner(url: str, settings: Settings, status_page: str | None = None) -> str:
    """The gateway's URLs, and what to paste into hosts to connect them."""
    base = url.rstrip("/")
    endpoint = base + settings.proxy.paths.mcp
    server = {"name": "mcproxy", "type": "http", "url": endpoint}
    return "\n".join(
        (
            f"mcproxy {__version__}: {sum(upstream.enabled for upstream in settings.upstreams)} upstreams",
            *(f"  {what:<17} {base}{path}" for what, path in _endpoints(settings.proxy.paths)),
            *([f"  {'status page':<17} {status_page}"] if status_page else []),
            "",
            f"Claude Code  claude mcp add --transport http mcproxy {endpoint}",
            f"Cursor       {json.dumps({'mcpServers': {'mcproxy': {'url': endpoint}}})}",
            f"VS Code      code --add-mcp {shlex.quote(json.dumps(server))}",
            "",
        )
    )


def _stdout() -> Console:
    return Console(highlight=False)


def _endpoints(paths: Paths) -> tuple[tuple[str, str], ...]:
    return (
        ("Streamable HTTP", paths.mcp),
        ("HTTP+SSE", paths.sse),
        ("one upstream", f"{paths.servers}/NAME{paths.mcp}"),
        ("metrics", paths.metrics),
    )
