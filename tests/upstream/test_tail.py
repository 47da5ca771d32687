"""The last lines of a child's stderr."""

from __future__ import annotations

from mcproxy.settings import Upstream
from mcproxy.upstream.redaction import Redaction
from mcproxy.upstream.tail import LINE_BYTES, LINES, Tail


def test_the_last_lines_are_kept_and_long_ones_cut() -> None:
    tail = Tail(str)
    for number in range(LINES + 5):
        tail.feed(f"line {number}\n".encode())
    tail.feed(b"x" * LINE_BYTES * 3)
    assert tail.lines[0] == "line 5"
    assert tail.lines[-1] == "x" * LINE_BYTES
    assert len(tail.lines) == LINES + 1


def test_r44_what_is_kept_holds_no_secret() -> None:
    spec = Upstream(name="u", prefix="u", headers={"Authorization": "Bearer sentinel-1"}, env={"LEVEL": "debug"})
    tail = Tail(Redaction.of(spec))
    assert tail.feed(b"debug: token sentinel-1 of Bearer sentinel-1\n") == ["debug: token [redacted] of [redacted]"]
