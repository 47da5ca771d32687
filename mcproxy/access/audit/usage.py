"""Sum up the audit log: calls, errors, denials and bytes, by any of its columns. Streams the files; writes none.

Every line of a call counts in exactly one row, so that the rows add up to the whole log, to the byte. Lines that cannot
be read are counted, and never guessed at.
"""

from __future__ import annotations

import errno
import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from mcproxy.protocol.methods import METHODS, Subject

TOKEN: Final = 4
"""Bytes of a token, estimated."""
MAX_ROWS: Final = 100_000
"""Rows that are kept separately; further ones share one, as callers choose some of the names."""
MAX_LINE: Final = 4 * 1024 * 1024
"""Bytes of a line; the rest of a longer one counts as unreadable lines."""
MAX_ATTEMPTS: Final = 10
"""Attempts to open all files of a log between two of its rotations."""
GZIP: Final = ".gz"
SLICE: Final = 250
"""Lines between two calls of `after_slice`: about a millisecond."""
REMAINDER: Final = "(others)"
NONE: Final = "-"
"""Stands for a column that a line does not have."""

_TOOL_CALLS: Final = frozenset(name for name, row in METHODS.items() if row.subject is Subject.TOOL)
_FINE: Final = frozenset({"ok", "input_required"})
_DENIED: Final = frozenset({"denied", "approval_denied"})
"""Outcomes of calls that a rule or a person refused."""
_ROTATED: Final = r"(?:\.\d+|-\d{8}(?:\d\d)?(?:-\d+)?)(?:\.gz)?"
"""Suffixes of rotated files: the gateway's own `.1`, and logrotate's, which may be dates. A copy has none."""


class AuditLine(msgspec.Struct):
    """The members of a line that are read; see `records`."""

    time: str
    outcome: str | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    principal: str = NONE
    client: str = NONE
    endpoint: str = NONE
    method: str = NONE
    upstream: str = NONE
    subject: str = NONE
    tool: str | None = None
    event: str | None = None

    @property
    def whose(self) -> str:
        """The upstream, and its own name of the tool that was called or whose call became the task."""
        own = self.subject if self.method in _TOOL_CALLS else self.tool
        return NONE if own is None else f"{self.upstream}/{own}"


COLUMNS: Final[Mapping[str, Callable[[AuditLine], str]]] = {
    "principal": lambda line: line.principal,
    "tool": lambda line: line.whose,
    "upstream": lambda line: line.upstream,
    "method": lambda line: line.method,
    "endpoint": lambda line: line.endpoint,
    "client": lambda line: line.client,
    "outcome": lambda line: line.outcome or NONE,
    "day": lambda line: line.time[:10],
}

_line = msgspec.json.Decoder(AuditLine)

FilesOf = Callable[[Path, float | None], list[Path]]
"""Lists the files of an audit log, as `audit_files` does."""


class UsageTotals(msgspec.Struct):
    """The totals of one row's calls; `errors` are all failed calls except those that were denied."""

    calls: int = 0
    errors: int = 0
    denials: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    @property
    def tokens(self) -> int:
        """An estimate of the tokens that a model wrote and read."""
        return -(-(self.bytes_in + self.bytes_out) // TOKEN)

    def add(self, line: AuditLine) -> None:
        """Adds the figures of one line."""
        self.calls += 1
        self.denials += line.outcome in _DENIED
        self.errors += line.outcome not in _FINE and line.outcome not in _DENIED
        self.bytes_in += line.bytes_in
        self.bytes_out += line.bytes_out


@dataclass(slots=True)
class UsageReport:
    """`by` are names of COLUMNS; lines before `since`, a Unix time, are left out."""

    by: Sequence[str]
    since: float | None = None
    rows: dict[tuple[str, ...], UsageTotals] = field(default_factory=dict)
    total: UsageTotals = field(default_factory=UsageTotals)
    called: set[tuple[str, str]] = field(default_factory=set)
    """The tools that were called, by upstream and own name."""
    unreadable: int = 0
    max_rows: int = MAX_ROWS
    """The most rows, and the most tools, that are kept separately."""
    _begin: str = field(init=False, default="")

    def __post_init__(self) -> None:
        if self.since is not None:
            self._begin = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%dT%H:%M:%S")

    def add(self, text: bytes) -> None:
        """Counts one line; lines of other events than calls are skipped."""
        try:
            line = _line.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            self.unreadable += 1
            return
        if line.event is not None or line.time < self._begin:
            return
        key = tuple(COLUMNS[column](line) for column in self.by)
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= self.max_rows:
                key = (REMAINDER,) * len(self.by)
            row = self.rows.setdefault(key, UsageTotals())
        row.add(line)
        self.total.add(line)
        if line.method in _TOOL_CALLS and len(self.called) < MAX_ROWS:
            self.called.add((line.upstream, line.subject))

    def most_used(self) -> list[tuple[tuple[str, ...], UsageTotals]]:
        """All rows, those with the most calls first."""
        return sorted(self.rows.items(), key=lambda row: (-row[1].calls, row[0]))


def read_usage(
    file: Path,
    by: Sequence[str],
    since: float | None = None,
    *,
    max_rows: int = MAX_ROWS,
    after_slice: Callable[[], None] = lambda: None,
    listed: FilesOf | None = None,
) -> UsageReport:
    """The usage in an audit log and its rotated files. Raises OSError where one of them cannot be read.

    `after_slice` is called after each SLICE of lines; what it raises ends the reading.
    """
    report = UsageReport(by, since, max_rows=max_rows)
    with ExitStack() as stack:
        for path, stream in _opened(file, since, listed or audit_files, stack):
            for number, text in enumerate(lines(path, stream, report), 1):
                if path == file and not text.endswith(b"\n"):
                    break  # The gateway is still writing this line.
                report.add(text)
                if number % SLICE == 0:
                    after_slice()
    return report


def audit_files(file: Path, since: float | None = None) -> list[Path]:
    """An audit log and what was rotated away of it, compressed or not; without files that ended before `since`.

    Rotated files are known by their names (`_ROTATED`): a copy such as `audit.jsonl.bak` does not count. A file that
    exists both compressed and uncompressed is being compressed: the uncompressed one counts.
    """
    name = re.compile(f"{re.escape(file.name)}(?:{_ROTATED})?", re.ASCII)
    found = [path for path in sorted(file.parent.glob(f"{file.name}*")) if name.fullmatch(path.name)]
    whole = [path for path in found if path.suffix != GZIP or path.with_suffix("") not in found]
    return [path for path in whole if path.is_file() and (since is None or path.stat().st_mtime >= since)]


def _opened(file: Path, since: float | None, listed: FilesOf, stack: ExitStack) -> Iterable[tuple[Path, BinaryIO]]:
    """All files of the log as of one moment, opened: later renames or removals change nothing.

    Raises OSError if they are rotated at each attempt before all are open.
    """
    for _ in range(MAX_ATTEMPTS):
        with ExitStack() as attempt:
            try:
                opened = [(path, attempt.enter_context(path.open("rb"))) for path in listed(file, since)]
                by_identity = {_identity(os.fstat(stream.fileno())): (path, stream) for path, stream in opened}
                if by_identity.keys() == {_identity(path.stat()) for path in listed(file, since)}:
                    stack.push(attempt.pop_all())
                    return by_identity.values()
            except FileNotFoundError:
                continue
    raise OSError(errno.EAGAIN, "its files are renamed again and again")


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def lines(path: Path, stream: BinaryIO, report: UsageReport) -> Iterator[bytes]:
    """The lines of one file, without empty ones; a compressed file that was cut short ends there."""
    with gzip.open(stream, "rb") if path.suffix == GZIP else stream as text_of:
        try:
            while text := text_of.readline(MAX_LINE):
                if text.strip():
                    yield text
        except (EOFError, gzip.BadGzipFile, zlib.error):
            report.unreadable += 1


def never_called(report: UsageReport, offered: Iterable[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    """The tools (upstream, own name, bytes of the definition) that were never called, largest first."""
    idle = [tool for tool in offered if (tool[0], tool[1]) not in report.called]
    return sorted(idle, key=lambda tool: (-tool[2], tool[:2]))
