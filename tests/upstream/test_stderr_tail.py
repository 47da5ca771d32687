"""The last lines of a child's stderr."""

from __future__ import annotations

from mcproxy.settings import UpstreamSettings
from mcproxy.upstream.redaction import Redaction
from mcproxy.upstream.stderr_tail import LINE_BYTES, LINES, LineRateLimit, StderrTail


def test_the_last_lines_are_kept_and_long_ones_cut() -> None:
    tail = StderrTail(str)
    for number in range(LINES + 5):
        tail.feed(f"line {number}\n".encode())
    tail.feed(b"x" * LINE_BYTES * 3)
    assert tail.lines[0] == "line 5"
    assert tail.lines[-1] == "x" * LINE_BYTES
    assert len(tail.lines) == LINES + 1


def test_r44_what_is_kept_holds_no_secret() -> None:
    spec = UpstreamSettings(
        name="u", prefix="u", headers={"Authorization": "Bearer sentinel-1"}, env={"LEVEL": "debug"}
    )
    tail = StderrTail(Redaction.of(spec))
    assert tail.feed(b"debug: token sentinel-1 of Bearer sentinel-1\n") == ["debug: token [redacted] of [redacted]"]


def test_lines_over_the_limit_of_a_second_are_counted_and_not_logged() -> None:
    rate_limit = LineRateLimit()
    assert rate_limit.admit(["1", "2"], 3, now=7.0) == (["1", "2"], 0)
    assert rate_limit.admit(["3", "4", "5"], 3, now=7.9) == (["3"], 0)
    assert rate_limit.admit(["6"], 3, now=7.9) == ([], 0)
    assert rate_limit.admit(["7"], 3, now=8.0) == (["7"], 3)
    assert rate_limit.admit(["8"], 3, now=9.0) == (["8"], 0)


def test_the_last_suppressed_lines_are_reported_at_the_end() -> None:
    rate_limit = LineRateLimit()
    rate_limit.admit(["1", "2", "3"], 1, now=7)
    assert (rate_limit.take_suppressed(), rate_limit.take_suppressed()) == (2, 0)


def test_the_words_of_a_child_stay_readable_until_the_next_one_has_said_something() -> None:
    tail = StderrTail(str)
    tail.feed(b"cannot open the database\nbroken off")
    tail.begin()
    assert list(tail.lines) == ["cannot open the database", "broken off"]
    assert list(tail.own_lines) == []
    assert tail.count == 2
    tail.begin()
    assert list(tail.lines) == ["cannot open the database", "broken off"], "one that says nothing takes nothing away"
    tail.feed(b"\nre")
    assert list(tail.lines) == list(tail.own_lines) == ["re"]
    tail.feed(b"ady\n")
    assert list(tail.lines) == ["ready"]
    assert tail.count == 3
