"""`mcproxy usage`: what was called, by whom, how often and how much of it, from the audit log."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.access.audit.usage import COLUMNS, UsageReport, UsageTotals, never_called, read_usage
from mcproxy.catalog.naming import admits
from mcproxy.cli.output import print_err, print_json, print_table
from mcproxy.cli.runtime import ExitCode
from mcproxy.configuration import lock
from mcproxy.protocol.jsonrpc import object_or_empty, parse_text
from mcproxy.protocol.methods import Kind
from mcproxy.settings import Settings
from mcproxy.settings.section import parse_quantity

MAX_SHOWN: Final = 50
"""Rows, and tools that were never called, that a terminal is shown; `--json` has all."""


def usage(settings: Settings, folder: Path, *, by: str, since: str | None, file: str | None, as_json: bool) -> int:
    """Prints the usage in an audit log; `file` stands for the one that is configured, `folder` is the configuration's.

    Raises ConfigurationError for the lock file.
    """
    log = file or settings.access.audit.file
    if log is None:
        print_err("there is no audit log: set access.audit.file, or name a file with --file")
        return ExitCode.INPUT
    columns = [column.strip() for column in by.split(",") if column.strip()]
    unknown = [column for column in columns if column not in COLUMNS]
    if unknown or not columns:
        print_err(f"--by takes {', '.join(COLUMNS)}, separated by commas; not {', '.join(unknown) or 'nothing'}")
        return ExitCode.INPUT
    try:
        begin = None if since is None else time.time() - _seconds(since)
        report = read_usage(Path(log), columns, begin)
    except ValueError as error:
        print_err(f"--since {error}")
        return ExitCode.INPUT
    except OSError as error:
        print_err(f"{log} cannot be read: {error.strerror or type(error).__name__}")
        return ExitCode.INPUT
    idle = never_called(report, locked_tools(settings, folder))
    if as_json:
        print_json(_document(report, idle))
    else:
        _show(report, columns, idle)
    return ExitCode.OK if report.total.calls else ExitCode.NOT_FOUND


def locked_tools(settings: Settings, folder: Path) -> Iterator[tuple[str, str, int]]:
    """The tools in the lock file that are listed: upstream, own name, bytes of the definition where the file has it."""
    approved = lock.read_lock(Path(settings.access.pins.file or folder / lock.FILE_NAME))
    for spec in settings.upstreams:
        if not spec.enabled or spec.name not in approved:
            continue
        manifest = approved[spec.name].manifest
        sizes = {} if manifest is None else {_name(entry): len(entry) for entry in manifest.lists.get(Kind.TOOLS, ())}
        for name in approved[spec.name].definitions.get(Kind.TOOLS, {}):
            if admits(spec.tools, name, as_uri=False):
                yield spec.name, name, sizes.get(name, 0)


def _name(entry: Raw) -> str:
    return parse_text(object_or_empty(entry).get(Kind.TOOLS.key, b"")) or ""


def _seconds(text: str) -> float:
    """Raises ValueError."""
    seconds = parse_quantity(text, "seconds")
    assert isinstance(seconds, int | float)
    return seconds


def _show(report: UsageReport, columns: Sequence[str], idle: Sequence[tuple[str, str, int]]) -> None:
    rows = [[*key, *_cells(totals)] for key, totals in report.most_used()[:MAX_SHOWN]]
    total = ["total", *[""] * (len(columns) - 1), *_cells(report.total)]
    print_table([*columns, "calls", "errors", "denials", "bytes in", "bytes out", "tokens"], [*rows, total])
    left = len(report.rows) - len(rows)
    if left > 0:
        print_err(f"{left} more rows: --json has all")
    if report.unreadable:
        print_err(f"{report.unreadable} lines could not be read")
    if idle:
        size = sum(size for _, _, size in idle)
        print_err(f"{len(idle)} tools of mcproxy.lock were never called; {size} bytes of definitions known:")
        for upstream, name, bytes_of_entry in idle[:MAX_SHOWN]:
            print_err(f"  {upstream}/{name}  {bytes_of_entry or 'size not known'}")


def _cells(totals: UsageTotals) -> list[str]:
    figures = (totals.calls, totals.errors, totals.denials, totals.bytes_in, totals.bytes_out, totals.tokens)
    return [str(figure) for figure in figures]


def _document(report: UsageReport, idle: Sequence[tuple[str, str, int]]) -> dict[str, object]:
    rows = [{**dict(zip(report.by, key, strict=True)), **_figures(totals)} for key, totals in report.most_used()]
    return {
        "rows": rows,
        "total": _figures(report.total),
        "unreadable_lines": report.unreadable,
        "never_called": [{"upstream": upstream, "tool": name, "bytes": size or None} for upstream, name, size in idle],
    }


def _figures(totals: UsageTotals) -> dict[str, int]:
    return {**msgspec.structs.asdict(totals), "tokens": totals.tokens}
