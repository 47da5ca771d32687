"""The twin of `mcproxy.features.results.shortening`: no character is cut in two."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.features.results.shortening import block_of, boundary, ends, head_and_tail, with_text
from mcproxy.protocol.jsonrpc import raw


@given(st.text(), st.integers(0, 40))
def test_texts_are_cut_between_characters_and_head_and_tail_are_as_long_as_they_may_be(text: str, room: int) -> None:
    data = text.encode(errors="replace")
    head, tail = head_and_tail(data, room)
    head.decode(), tail.decode()
    assert data.startswith(head)
    assert data.endswith(tail)
    assert len(head) + len(tail) <= max(room + 6, 0) or len(head) + len(tail) <= len(data)


@given(st.text(min_size=1), st.lists(st.integers(0, 60), min_size=1, max_size=5))
def test_pieces_that_follow_each_other_are_the_whole(text: str, cuts: list[int]) -> None:
    data = text.encode(errors="replace")
    places = [0, *sorted(cuts), len(data)]
    pieces = [data[boundary(data, a) : boundary(data, b)] for a, b in pairwise(places)]
    assert b"".join(pieces) == data
    for piece in pieces:
        piece.decode()


def test_texts_are_those_of_text_blocks_and_of_embedded_resources() -> None:
    blocks = [
        raw({"type": "text", "text": "one", "annotations": {"priority": 1}}),
        raw({"type": "image", "data": "AAAA", "mimeType": "image/png"}),
        raw({"type": "resource", "resource": {"uri": "file:///a", "text": "two"}}),
        raw({"type": "resource", "resource": {"uri": "file:///a", "blob": "AAAA"}}),
        raw("no block"),
        raw({"type": "resource", "resource": 1}),
        raw({"type": "text", "text": 1}),
    ]
    found = [block_of(block) for block in blocks]
    assert [block.text for block in found] == [b"one", None, b"two", None, None, None, None]
    assert [block.is_cut for block in found] == [True, False, True, False, True, True, True]
    assert all(block.size + block.passing >= len(block.value) - len('""') for block in found)
    assert msgspec.json.decode(with_text(blocks[0], "x")) == {
        "type": "text", "text": "x", "annotations": {"priority": 1},
    }  # fmt: skip
    assert msgspec.json.decode(with_text(blocks[2], "x"))["resource"] == {"uri": "file:///a", "text": "x"}


def test_what_a_block_says_to_hosts_alone_passes_and_escapes_count_nothing() -> None:
    block = block_of(raw({"type": "text", "text": '"\n' * 50, "_meta": {"x": "y" * 100}}))
    assert block.size == 100 + len('{"type":"text","text":"","_meta":},')
    assert block.passing == len('{"x":""}') + 100


@given(st.lists(st.integers(0, 100), max_size=20), st.integers(0, 600))
def test_ends_are_as_many_as_fit(sizes: list[int], room: int) -> None:
    head, tail = ends(sizes, room)
    assert head + tail <= len(sizes)
    if sum(sizes) <= room:
        assert head == len(sizes)
    else:
        assert sum(sizes[:head]) <= room * 2 // 3 < sum(sizes[: head + 1])
        assert sum(sizes[len(sizes) - tail :]) <= room // 3
        assert head + tail == len(sizes) or sum(sizes[len(sizes) - tail - 1 :]) > room // 3
