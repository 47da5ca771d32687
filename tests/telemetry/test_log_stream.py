"""The twin of `mcproxy.telemetry.log_stream`."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from typing import Any, TextIO

import pytest
import structlog

from mcproxy.telemetry import logs
from mcproxy.telemetry.log_stream import MAX_WAITING, log_stream
from tests.timeouts import GUARD

LINES = 2000
PIPE = 64 * 1024
"""Bytes that a pipe holds on Linux."""
NO_STACK = 2**47
"""Bytes that no thread's stack can have: none can be started, as where a process has as many as it may."""


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """The end that is read, and the end that is written."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        yield reading, stream
        os.close(reading)  # A write that waits fails now, so that a test that failed ends.


def lines_of(reading: int) -> Iterator[dict[str, Any]]:
    """The lines in a pipe, as they come."""
    with os.fdopen(os.dup(reading)) as stream:
        for line in stream:
            yield json.loads(line)


def say(lines: int, length: int = 1) -> None:
    log = structlog.get_logger()
    for number in range(lines):
        log.info("said", number=number, text="x" * length)


def say_without_waiting(lines: int, length: int = 1) -> None:
    """Fails where a line is waited for."""
    saying = threading.Thread(target=say, args=(lines, length), daemon=True)
    saying.start()
    saying.join(GUARD)
    assert not saying.is_alive()


@pytest.mark.parametrize("length", [1, 100, 1500])
def test_a_reader_that_is_merely_slow_gets_all_lines_in_order(pipe: tuple[int, TextIO], length: int) -> None:
    reading, stream = pipe
    logs.configure("json", "info", [], stream)
    say_without_waiting(LINES, length)
    said = lines_of(reading)
    assert [next(said)["number"] for _ in range(LINES)] == list(range(LINES))


def test_a_pipe_that_nobody_reads_holds_nothing_up_and_what_was_dropped_is_told_as_soon_as_somebody_does(
    pipe: tuple[int, TextIO],
) -> None:
    reading, stream = pipe
    logs.configure("json", "info", [], stream)
    say_without_waiting(LINES, 5000)
    kept = []
    for line in lines_of(reading):
        if line["event"] != "said":
            break
        kept.append(line["number"])
    assert line["event"] == "lines of the log were dropped: nobody read stderr"
    assert kept == list(range(len(kept))), "whole lines, in order"
    assert line["lines"] == LINES - len(kept)
    assert (len(kept) - 1) * 5000 < MAX_WAITING + PIPE < (len(kept) + 1) * 5200


def test_what_waits_is_written_before_what_is_logged_after_a_reload(pipe: tuple[int, TextIO]) -> None:
    reading, stream = pipe
    logs.configure("json", "info", [], stream)
    say_without_waiting(LINES)
    logs.configure("json", "info", ["a secret"], stream)
    say_without_waiting(1)
    said = lines_of(reading)
    assert [next(said)["number"] for _ in range(LINES + 1)] == [*range(LINES), 0]


def test_what_waits_can_be_waited_for(pipe: tuple[int, TextIO]) -> None:
    reading, stream = pipe
    logs.configure("json", "info", [], stream)
    say_without_waiting(LINES)
    said: list[dict[str, Any]] = []
    listening = threading.Thread(target=lambda: said.extend(lines_of(reading)), daemon=True)
    listening.start()
    log_stream(stream).finish(GUARD)
    stream.close()
    listening.join(GUARD)
    assert [line["number"] for line in said] == list(range(LINES))


def test_where_no_thread_can_be_started_lines_wait_for_the_next_one(pipe: tuple[int, TextIO]) -> None:
    reading, stream = pipe
    logs.configure("json", "info", [], stream)
    before = threading.stack_size(NO_STACK)
    try:
        say(LINES)
    finally:
        threading.stack_size(before)
    say_without_waiting(1)
    said = lines_of(reading)
    assert [next(said)["number"] for _ in range(LINES + 1)] == [*range(LINES), 0]


def test_a_pipe_whose_other_end_is_closed_breaks_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        logs.configure("json", "info", [], stream)
        say(2)
