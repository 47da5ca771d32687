"""Event streams of any bytes: cut anywhere they say the same, and nothing but the documented refusal is raised."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcproxy.protocol.sse import KEEP_ALIVE, Event, EventDecoder, EventTooLarge, encode_event
from tests.depth import examples

LIMIT = 64
FIELDS = [b"data:", b"data: x", b"data", b"event: e", b"id: 1", b"id: a\0b", b"retry: 10", b"retry: x", b"retry:\xb2"]
BREAKS = [b"\n", b"\r", b"\r\n", b"\n\n", b":", b"\xef\xbb\xbf", b"\xff", b"x" * (LIMIT + 1), KEEP_ALIVE]
WHOLE = [
    b"data: x\n\n",
    b"event: message\ndata: \xff\n\n",
    b"event: e\ndata: x\n\n",
    b"id: 2\r\ndata: x\r\n\r\n",
    b"data: x\r\r",
]
FRAGMENTS = st.sampled_from([*FIELDS, *BREAKS, *WHOLE])
STREAMS = st.lists(FRAGMENTS | st.binary(max_size=8), max_size=24).map(b"".join)
CUTS = st.lists(st.integers(0, 200), max_size=12)
ONE_LINE = st.text(st.characters(exclude_characters="\r\n\0", codec="utf-8"))


def decoded(stream: bytes, cuts: list[int], limit: int) -> list[Event] | None:
    """The events of `stream` fed in pieces, or None where it is refused."""
    decoder = EventDecoder(limit)
    edges = [0, *sorted(cut for cut in cuts if cut <= len(stream)), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    try:
        return [event for piece in pieces for event in decoder.feed(piece)]
    except EventTooLarge:
        return None


@settings(max_examples=examples(500))
@given(STREAMS, CUTS)
@example(b"retry: 0\ndata: x\n\n", [9])
def test_where_a_stream_is_cut_changes_nothing(stream: bytes, cuts: list[int]) -> None:
    assert decoded(stream, cuts, limit=10_000) == decoded(stream, [], limit=10_000)


@settings(max_examples=examples(500))
@given(STREAMS)
def test_a_stream_that_comes_byte_by_byte_says_the_same_as_one_that_comes_at_once(stream: bytes) -> None:
    assert decoded(stream, list(range(len(stream))), limit=10_000) == decoded(stream, [], limit=10_000)


@settings(max_examples=examples(300))
@given(STREAMS, CUTS)
def test_what_passes_a_limit_is_what_passes_without(stream: bytes, cuts: list[int]) -> None:
    events = decoded(stream, cuts, LIMIT)
    assert events is None or events == decoded(stream, [], limit=10_000)


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(ONE_LINE, ONE_LINE.filter(bool), ONE_LINE, st.integers(0, 10**6)), max_size=4), CUTS)
def test_what_is_encoded_is_what_is_decoded(events: list[tuple[str, str, str, int]], cuts: list[int]) -> None:
    stream = b"".join(
        KEEP_ALIVE + encode_event(data.encode(), event=name, id=id, retry=retry) for data, name, id, retry in events
    )
    assert decoded(stream, cuts, limit=1_000_000) == [
        Event(data.encode(), name, id, retry) for data, name, id, retry in events
    ]
