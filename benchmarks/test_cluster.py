"""The twin of `benchmarks.cluster`: what its numbers are made of."""

from __future__ import annotations

import socket
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.cluster import Counts, Program, ProgramEnded, counted_call, own_port, table
from tests.cluster.upstream import SharedUpstream

pytestmark = pytest.mark.anyio


async def test_an_answer_with_another_text_is_wrong_and_one_without_a_result_has_failed() -> None:
    counts = Counts()
    answers: list[object] = [{"content": [{"text": "k"}]}, {"content": [{"text": "another"}]}, "HTTP 502"]

    async def ask(method: str, params: object) -> object:
        return answers.pop(0)

    for _ in range(3):
        await counted_call(counts, "k", ask)
    assert (counts.sent, counts.answered) == (3, 2)
    assert counts.wrong == ["'another' for 'k'"]
    assert counts.failed == Counter({"HTTP 502": 1})


def test_calls_that_were_executed_more_than_once_are_counted() -> None:
    upstream = SharedUpstream()
    upstream.executed.update({"a": 1, "b": 2, "c": 3})
    assert Counts().twice(upstream) == 2


def test_what_must_not_be_is_in_the_table_whether_it_was_or_not() -> None:
    text = "\n".join(table(Counts(), 0))
    for line in ("| **executed twice** | **0** |", "| **answered wrongly** | **0** |", "| **updates lost** | **0** |"):
        assert line in text


async def test_a_program_whose_port_another_has_is_not_started_and_one_that_ended_is_not_ready(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        taken = Program([sys.executable, "-c", "pass"], other.getsockname()[1], tmp_path / "log")
        with pytest.raises(OSError, match="in use"):
            taken.start()
    ended = Program([sys.executable, "-c", "print('its last words')"], own_port(), tmp_path / "log")
    ended.start()
    with pytest.raises(ProgramEnded, match="its last words"):
        await ended.ready()
