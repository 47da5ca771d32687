"""Print results: tables on a terminal, fields separated by tabs elsewhere, JSON on request.

Results go to stdout, everything else to stderr. Texts of servers are printed without control characters.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

from mcproxy import __version__
from mcproxy.cli.runtime import printing
from mcproxy.cli.terminal import printable, printable_json, printable_line
from mcproxy.settings import Settings


def print_err(text: str, *, lines: bool = False) -> None:
    """Prints a line to stderr; `lines` says that its line breaks are meant, and not part of some name in it."""
    _print(sys.stderr, text, lines=lines)


def print_out(text: str, *, lines: bool = False) -> None:
    """Prints a line to stdout, or lines, as `print_err` does."""
    _print(sys.stdout, text, lines=lines)


def _print(stream: TextIO, text: str, *, lines: bool) -> None:
    with printing():
        stream.write((printable(text) if lines else printable_line(text)).expandtabs() + "\n")
        stream.flush()


def print_json(value: object) -> None:
    """Writes a value to stdout as indented JSON, and flushes."""
    # Not by rich: a console's width must not break lines, and JSON is ASCII where its reader is a program.
    with printing():
        sys.stdout.write(printable_json(json.dumps(value, indent=2, ensure_ascii=not sys.stdout.isatty())) + "\n")
        sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Writes rows to stdout: a table with headings on a terminal, else one line of tab-separated cells for each row."""
    if not sys.stdout.isatty():
        with printing():
            for row in rows:
                sys.stdout.write("\t".join(" ".join(printable(cell).split()) for cell in row) + "\n")
            sys.stdout.flush()
        return
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    table = Table(*(Column(name, overflow="fold") for name in columns), box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(printable_line(cell)) for cell in row))
    Console(highlight=False).print(table)


def number_of(number: int, noun: str) -> str:
    """`1 tool`, `2 tools`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def banner(url: str, settings: Settings, status_page: str | None = None) -> str:
    """The gateway's URLs, and how hosts are connected to it."""
    base = url.rstrip("/")
    endpoint = base + settings.proxy.paths.mcp
    header = key_header(settings)
    server = {"url": endpoint, **({"headers": {header[0]: f"{header[1]}${{env:MCPROXY_KEY}}"}} if header else {})}
    with_key = f' --header "{header[0]}: {header[1]}$MCPROXY_KEY"' if header else ""
    return "\n".join(
        (
            f"mcproxy {__version__}: {number_of(sum(upstream.enabled for upstream in settings.upstreams), 'server')}",
            *(f"  {what:<17} {base}{path}" for what, path in _endpoints(settings)),
            *([f"  {'status page':<17} {status_page}"] if status_page else []),
            "",
            "mcproxy connect HOST writes a host's own file. By hand:",
            f"Claude Code  claude mcp add --transport http mcproxy {endpoint}{with_key}",
            f"Cursor       {json.dumps({'mcpServers': {'mcproxy': server}})}",
            f"VS Code      code --add-mcp {shlex.quote(json.dumps({'name': 'mcproxy', 'type': 'http', **server}))}",
            "",
        )
    )


def stdio_hint(command: Sequence[str]) -> str:
    """What a person sees who starts by hand what a host should start."""
    program, *args = command
    server = {"mcpServers": {"mcproxy": {"command": program, "args": args}}}
    return f"a host starts this, and speaks MCP at stdin; `mcproxy connect HOST` tells it to, or:\n{json.dumps(server)}"


def key_header(settings: Settings) -> tuple[str, str] | None:
    """The header of callers' API keys and what stands before the key in it; None where keys are off."""
    authentication = settings.access.authentication
    if not authentication.keys:
        return None
    return (authentication.key_header, "") if authentication.key_header else ("Authorization", "Bearer ")


def _endpoints(settings: Settings) -> Iterator[tuple[str, str]]:
    paths = settings.proxy.paths
    yield "Streamable HTTP", paths.mcp
    for name in settings.endpoints:
        yield f"  {name}"[:17], f"{paths.mcp}/{name}"
    yield "HTTP+SSE", paths.sse
    yield "one upstream", f"{paths.servers}/NAME{paths.mcp}"
    yield "metrics", paths.metrics
