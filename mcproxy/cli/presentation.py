"""How results look: tables on a terminal, fields separated by tabs elsewhere, JSON where asked for.

Results go to stdout, everything else to stderr. What servers say is printed without control characters.
"""

from __future__ import annotations

import base64
import binascii
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcproxy import __version__
from mcproxy.cli.inspection import ListedEntry, UpstreamReport
from mcproxy.cli.terminal import printable
from mcproxy.configuration.importing import Imported
from mcproxy.protocol.methods import Kind
from mcproxy.settings import Paths, Settings

ENTRY_COLUMNS: Final = ("name", "description")
REPORT_COLUMNS: Final = ("upstream", "state", "transport", "version", "offers", "latency")


def stderr() -> Console:
    return Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """A line or more to stderr."""
    stderr().print(Text(printable(text)), soft_wrap=True)


def show(text: str) -> None:
    """A line or more to stdout."""
    _stdout().print(Text(printable(text)), soft_wrap=True)


def show_json(value: object) -> None:
    # As bytes: a terminal's encoding has no say in JSON, and no width breaks its lines.
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=not sys.stdout.isatty()) + "\n")
    sys.stdout.flush()


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
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
    """Where the gateway is and its status page, and the lines that make hosts use it."""
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


def entry_row(kind: Kind, entry: ListedEntry) -> tuple[str, str]:
    lines = str(entry.get("description") or entry.get("title") or "").strip().splitlines()
    return str(entry.get(kind.key, "")), lines[0] if lines else ""


def report_row(report: UpstreamReport) -> tuple[str, ...]:
    offers = f"{report.tools} tools, {report.resources + report.templates} resources, {report.prompts} prompts"
    return (
        report.name,
        "ready" if report.ok else "failed",
        report.transport,
        f"{report.version} ({report.era})" if report.version else "",
        offers if report.ok else "",
        f"{report.latency:.2f} s" if report.latency is not None else "",
    )


def remarks(report: UpstreamReport) -> list[str]:
    """What does not fit a row: the error, and the names that are not as expected."""
    return [
        *([f"{report.name}: {report.error or 'not connected'}"] if not report.ok else []),
        *(f"{report.name}: {name} is called {exposed}" for name, exposed in report.renamed.items()),
        *(f"{report.name}: {name or 'an entry'} is not shown: {why}" for name, why in report.refused.items()),
    ]


def tool_text(result: ListedEntry) -> str:
    """A tool's result to read: its content; its structured content where there is no other."""
    blocks = [block for block in result.get("content", []) if isinstance(block, dict)]
    if not blocks and "structuredContent" in result:
        return json.dumps(result["structuredContent"], indent=2, ensure_ascii=False)
    return "\n".join(map(_block_text, blocks))


def show_contents(result: ListedEntry) -> None:
    """A resource's contents: text as text; bytes as they are, but never to a terminal."""
    for content in result.get("contents", []):
        if "text" in content:
            show(str(content["text"]))
            continue
        data = _bytes(content.get("blob", ""))
        if sys.stdout.isatty():
            show(f"[{len(data)} bytes of {content.get('mimeType', 'unknown type')}]")
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)


def told(imported: Imported, output: Path | None) -> str:
    """What was imported, and what is left to do. Names variables, never their values."""
    sources = ", ".join(map(str, imported.sources))
    lines = [f"{len(imported.servers)} servers from {sources}" + (f" written to {output}" if output else "")]
    if imported.variables:
        lines.append("set these variables to what stands there now:")
        lines += [f"  {name}  ({place})" for name, place in imported.variables.items()]
    return "\n".join(lines)


def _stdout() -> Console:
    return Console(highlight=False)


def _endpoints(paths: Paths) -> tuple[tuple[str, str], ...]:
    return (
        ("Streamable HTTP", paths.mcp),
        ("HTTP+SSE", paths.sse),
        ("one upstream", f"{paths.servers}/NAME{paths.mcp}"),
        ("metrics", paths.metrics),
    )


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
