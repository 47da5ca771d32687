"""What is read off /proc."""

from __future__ import annotations

import os

from benchmarks.usage import Memory, descriptors, memory, parse_rollup, parse_ticks, processor_seconds

STAT = "42 (a) b) c) S 1 42 42 0 -1 4194560 9 8 7 6 100 20 3 4 20 0 1 0 55 66 77"
ROLLUP = "5600-7ff [rollup]\nRss:      2048 kB\nPss:       512 kB\nPss_Dirty:  4 kB\n"


def test_ticks_are_those_of_the_process_and_of_its_ended_children() -> None:
    assert parse_ticks(STAT) == 100 + 20 + 3 + 4


def test_memory_is_in_bytes() -> None:
    assert parse_rollup(ROLLUP) == Memory(2048 * 1024, 512 * 1024)


def test_a_live_process_uses_something() -> None:
    me = os.getpid()
    assert processor_seconds(me) > 0
    assert memory(me).resident > 2**20
    assert descriptors(me) >= 3


def test_a_process_that_is_gone_uses_nothing() -> None:
    nobody = 2**22 + 1
    assert processor_seconds(nobody) == 0
    assert memory(nobody) == Memory(0, 0)
