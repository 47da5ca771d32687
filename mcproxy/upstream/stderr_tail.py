"""The last lines of a child's stderr, for errors and the status page, and a rate limit for those that are logged.

Bounded in lines and in their length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

LINES = 50
LINE_BYTES = 4096


class StderrTail:
    """Takes chunks split anywhere. A line is cut at its limit, and kept as `redact` returns it."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact
        self._lines: deque[str] = deque(maxlen=LINES)
        self._partial = b""
        self._former: tuple[str, ...] = ()
        """The last lines of the previous child."""
        self.count = 0
        """The number of whole lines so far, previous children's included."""

    def feed(self, chunk: bytes) -> list[str]:
        """The lines that `chunk` completes."""
        head, *rest = chunk.split(b"\n")
        self._partial = (self._partial + head[:LINE_BYTES])[:LINE_BYTES]
        if not rest:
            return []
        whole = [self._partial, *(line[:LINE_BYTES] for line in rest[:-1])]
        self._partial = rest[-1][:LINE_BYTES]
        lines = [text for line in whole if (text := self._text(line))]
        self._lines.extend(lines)
        self.count += len(lines)
        return lines

    def begin(self) -> None:
        """Notes that another child starts: the previous child's lines stay readable until it writes its first."""
        self.feed(b"\n")
        self._former = self.lines
        self._lines.clear()

    @property
    def lines(self) -> tuple[str, ...]:
        """The last lines of this child, or of the previous one until this one has written any."""
        return self.own_lines or self._former

    @property
    def own_lines(self) -> tuple[str, ...]:
        """The last lines of this child, a last incomplete line included."""
        rest = self._text(self._partial)
        return (*self._lines, rest) if rest else tuple(self._lines)

    def _text(self, line: bytes) -> str:
        return self._redact(line.decode(errors="replace").rstrip())


class LineRateLimit:
    """Limits the lines that are logged in each second; counts the others."""

    def __init__(self) -> None:
        self._second = 0
        self._said = 0
        self._suppressed = 0

    def admit(self, lines: list[str], most: int, now: float) -> tuple[list[str], int]:
        """Those of `lines` to log, and how many were suppressed in earlier seconds and not reported yet."""
        suppressed = 0
        if int(now) != self._second:
            self._second, self._said = int(now), 0
            suppressed = self.take_suppressed()
        shared = lines[: max(0, most - self._said)]
        self._said += len(shared)
        self._suppressed += len(lines) - len(shared)
        return shared, suppressed

    def take_suppressed(self) -> int:
        """The number of lines suppressed since this was last called."""
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed
