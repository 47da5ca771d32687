"""The twin of `mcproxy.protocol.pieces`."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.protocol.pieces import LONG_PIECE, Pieces
from mcproxy.protocol.sse import EventDecoder, EventTooLarge
from mcproxy.upstream.child.process import LineDecoder, LineTooLong

SIZE = 2 * 2**20
"""Bytes of what arrives."""


@given(st.lists(st.sampled_from([0, 1, 2, LONG_PIECE - 1, LONG_PIECE, LONG_PIECE + 1]), max_size=20))
def test_pieces_are_joined_in_their_order(sizes: list[int]) -> None:
    pieces, given = Pieces(), [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    for piece in given:
        pieces.add(piece)
    assert pieces.size == sum(sizes)
    assert pieces.taken() == b"".join(given)
    assert (pieces.size, pieces.taken()) == (0, b"")


def fed(feed: Callable[[bytes], object], chunks: Iterator[bytes]) -> None:
    for chunk in chunks:
        feed(chunk)


def chunks(of: bytes, size: int) -> Iterator[bytes]:
    return repeat(of, size // len(of))


@pytest.mark.parametrize(
    "chunk",
    [b"data:\n" * 100, b"data: ab\n" * 100, b"data: a\rdata\n" * 100, b"ab", b"data: ab\n", b"event: ab\n", b":a\n"],
    ids=lambda chunk: str(chunk[:20]),
)
@pytest.mark.parametrize("limit", [SIZE, SIZE // 8])
def test_r78_an_event_of_many_short_lines_takes_little_more_than_it_has_bytes(chunk: bytes, limit: int) -> None:
    """It is too large once its lines, and not only what they say, have more bytes than are allowed."""
    tracemalloc.start()
    try:
        fed(EventDecoder(limit).feed, chunks(chunk, SIZE))
        is_refused = False
    except EventTooLarge:
        is_refused = True
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 2 * limit + 2**18
    holds_data = b"data" in chunk or b"\n" not in chunk
    assert is_refused == (holds_data and limit < SIZE)


@pytest.mark.parametrize("piece", [b"a", b"ab"])
def test_r78_a_line_that_arrives_by_letters_takes_little_more_than_it_has_bytes(piece: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(LineTooLong):
            fed(LineDecoder(SIZE // 2).feed, chunks(piece, SIZE))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * SIZE


def test_an_event_of_several_lines_is_what_they_say() -> None:
    (event,) = EventDecoder(100).feed(b"data: a\ndata:\ndata\ndata:  b\n\n")
    assert event.data == b"a\n\n\n b"
    decoder, text = EventDecoder(10_000), b"data: " + b"a" * 2000 + b"\ndata: b\ndata: " + b"c" * 2000 + b"\n\n"
    (event,) = [event for at in range(0, len(text), 7) for event in decoder.feed(text[at : at + 7])]
    assert event.data == b"\n".join((b"a" * 2000, b"b", b"c" * 2000))
