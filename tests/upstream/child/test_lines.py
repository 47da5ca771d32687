"""Lines from chunks cut anywhere."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.upstream.child.process import LineDecoder, LineTooLong


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_lines_do_not_depend_on_how_they_are_cut(data: bytes, cuts: list[int]) -> None:
    decoder = LineDecoder(1000)
    slots = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    lines = [line for a, b in pairwise(slots) for line in decoder.feed(data[a:b])]
    assert lines == data.split(b"\n")[:-1]


def test_r16_a_line_over_the_limit_is_refused_before_its_end() -> None:
    decoder = LineDecoder(10)
    assert decoder.feed(b"1234567890\n12345") == [b"1234567890"]
    with pytest.raises(LineTooLong, match="10 bytes"):
        decoder.feed(b"678901")


def test_r16_a_long_line_in_small_chunks_takes_linear_time() -> None:
    decoder = LineDecoder(2**27)
    started = time.process_time()
    for _ in range(2**15):
        decoder.feed(b"x" * 1024)
    [line] = decoder.feed(b"\n")
    assert len(line) == 2**25
    assert time.process_time() - started < 2
