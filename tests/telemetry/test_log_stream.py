"""The twin of `mcproxy.telemetry.log_stream`."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from typing import TextIO

import pytest
import structlog

from mcproxy.telemetry import logs
from tests.timeouts import GUARD

LINES = 2000


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """The end that is read, without waiting, and the end that is written."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with os.fdopen(writing, "w") as stream:
        yield reading, stream
        os.close(reading)  # A write that waits fails now, so that a test that failed ends.


def written(reading: int) -> bytes:
    data = b""
    try:
        while chunk := os.read(reading, 2**20):
            data += chunk
    except BlockingIOError:
        pass
    return data


def say(lines: int, length: int = 1) -> None:
    log = structlog.get_logger()
    for number in range(lines):
        log.info("said", number=number, text="x" * length)


@pytest.mark.parametrize("length", [1, 100, 5000])
def test_a_pipe_that_nobody_reads_holds_nothing_up_and_what_was_dropped_is_told(
    pipe: tuple[int, TextIO], length: int
) -> None:
    reading, stream = pipe
    logs.configure("json", "info", [], stream)
    saying = threading.Thread(target=say, args=(LINES, length), daemon=True)
    saying.start()
    saying.join(GUARD)
    assert not saying.is_alive()
    first = written(reading)
    say(1)
    lines = [json.loads(line) for line in (first + written(reading)).splitlines()]
    *said, report, last = lines
    assert [line["number"] for line in said] == list(range(len(said))), "whole lines, in order"
    assert report["event"] == "lines of the log were dropped: nobody read stderr"
    assert report["lines"] == LINES - len(said)
    assert last["number"] == 0


def test_a_pipe_whose_other_end_is_closed_breaks_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        logs.configure("json", "info", [], stream)
        say(2)
