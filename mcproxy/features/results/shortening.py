"""Shortens results that are too large for a model: keeps the head and tail of texts, and of the list of blocks. Pure.

Images, audio and blobs pass unchanged: a part of one is useless, and hosts do not give them to models as text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from mcproxy.catalog.instructions import shares
from mcproxy.protocol.envelope import META
from mcproxy.protocol.jsonrpc import InvalidMessage, Params, parse_object, parse_text, raw, size_of

MIN_TEXT: Final = 1024
"""The fewest bytes that are left of each text."""
NOTE: Final = 640
"""The most bytes of a note and a link to the whole result."""


_COMMA: Final = 1


class Block(NamedTuple):
    """A block of a result and the comma after it, without white space between tokens."""

    value: Raw
    text: bytes | None
    """The text of a text block or an embedded resource, as UTF-8."""
    other: int
    """Bytes other than the text that count, such as the quotes."""
    passing: int
    """Bytes that always pass: the whole of an image, audio or blob, else `_meta`."""

    @property
    def is_cut(self) -> bool:
        """Whether the block may be cut or left out."""
        return self.other > 0

    @property
    def size(self) -> int:
        """Bytes of the block that count."""
        return self.other + len(self.text or b"")

    @property
    def least(self) -> int:
        """The fewest bytes that the block takes if it is shown, including a note on where the whole result is."""
        return self.other + (MIN_TEXT + NOTE if self.is_long else len(self.text or b""))

    @property
    def is_long(self) -> bool:
        """Whether the text is longer than the part that is always left."""
        return len(self.text or b"") > MIN_TEXT


class Cuts(NamedTuple):
    """The cuts of some blocks, by their index."""

    texts: Mapping[int, int]
    """Bytes that each text is cut to."""
    left_out: Sequence[int]
    """Indexes of the blocks that are left out, ascending."""


def compact(value: Raw) -> Raw:
    """A JSON value without white space between its tokens; limits apply to this form."""
    try:
        return Raw(msgspec.json.format(value, indent=-1))
    except (msgspec.MsgspecError, RecursionError):
        return value


def head_and_tail(text: bytes, room: int) -> tuple[bytes, bytes]:
    """The beginning and the end of a text, `room` bytes together, cut between characters."""
    head = boundary(text, room * 2 // 3)
    tail = boundary(text, max(head, len(text) - room // 3))
    return text[:head], text[tail:]


def boundary(text: bytes, at: int) -> int:
    """The first index from `at` on that lies between two UTF-8 characters."""
    at = min(max(at, 0), len(text))
    while at < len(text) and text[at] & 0b1100_0000 == 0b1000_0000:
        at += 1
    return at


def block_of(value: Raw) -> Block:
    """The sizes of a block."""
    try:
        members = parse_object(value)
        resource = parse_object(members["resource"]) if "resource" in members and "text" not in members else {}
    except InvalidMessage:
        return Block(value, None, len(value) + _COMMA, 0)
    meta = len(members.get(META, b""))
    encoded = (members if "text" in members else resource).get("text", b"")
    text = parse_text(encoded)
    if text is not None:
        return Block(value, text.encode(errors="replace"), size_of(members) + _COMMA + 2 - len(encoded) - meta, meta)
    if "data" in members or "blob" in resource:
        return Block(value, None, 0, len(value) + _COMMA)
    return Block(value, None, len(compact(value)) + _COMMA - meta, meta)


def ends(sizes: Sequence[int], room: int) -> tuple[int, int]:
    """How many items from the beginning fit into two thirds of the room, and how many from the end fit into the rest.

    All, if all fit.
    """
    if sum(sizes) <= room:
        return len(sizes), 0
    head = bisect_right(list(accumulate(sizes)), room * 2 // 3)
    return head, bisect_right(list(accumulate(reversed(sizes[head:]))), room // 3)


def planned_cuts(blocks: Sequence[Block], room: int) -> Cuts:
    """The cuts by which the blocks take at most `room` bytes, notes and links included.

    Texts share the room, at least MIN_TEXT each; blocks without room are left out of the middle. Two texts always fit.
    """
    if sum(block.size for block in blocks) <= room:
        return Cuts({}, [])
    places = [place for place, block in enumerate(blocks) if block.is_cut]
    head, tail = ends([blocks[place].least for place in places], max(room - NOTE, 4 * MIN_TEXT))
    left_out = places[head : len(places) - tail]
    shown = places[:head] + places[len(places) - tail :]
    room -= NOTE if left_out else 0
    room -= sum(blocks[place].other for place in shown)
    texts = {place: len(blocks[place].text or b"") for place in shown}
    if sum(texts.values()) > room:
        room -= NOTE * sum(blocks[place].is_long for place in shown)
    given = zip(texts.items(), shares(list(texts.values()), room), strict=True)
    cut = {place: share for (place, size), share in given if share < size and size > MIN_TEXT}
    return Cuts(cut, left_out)


def with_text(block: Raw, text: str) -> Raw:
    """The block with another text."""
    members = parse_object(block)
    if "text" in members:
        return raw({**members, "text": raw(text)})
    resource: Params = parse_object(members["resource"])
    return raw({**members, "resource": raw({**resource, "text": raw(text)})})
