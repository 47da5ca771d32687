"""Shortens texts of results that are too large for a model to head and tail. Pure: keeps nothing.

Images, audio and blobs pass: a part of one is of no use, and hosts do not give them to models as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from mcproxy.protocol.jsonrpc import InvalidMessage, Params, parse_object, parse_text, raw

MIN_TEXT: Final = 1024
"""Bytes that are left of a text at least."""


class LongText(NamedTuple):
    """A text of a result: its block, and the text as UTF-8."""

    block: int
    text: bytes


def compact(value: Raw) -> Raw:
    """A JSON value without the white space between its tokens: what is left is what a limit is about."""
    try:
        return Raw(msgspec.json.format(value, indent=-1))
    except (msgspec.MsgspecError, RecursionError):
        return value


def shares(sizes: Sequence[int], room: int) -> list[int]:
    """Bytes for each of several texts, `room` together: short ones get what they need, the others equal parts."""
    given = [0] * len(sizes)
    left, order = room, sorted(range(len(sizes)), key=lambda index: sizes[index])
    for done, index in enumerate(order):
        given[index] = min(sizes[index], max(0, left) // (len(order) - done))
        left -= given[index]
    return given


def head_and_tail(text: bytes, room: int) -> tuple[bytes, bytes]:
    """The beginning and the end of a text, `room` bytes together, cut between characters."""
    head = boundary(text, room * 2 // 3)
    tail = boundary(text, max(head, len(text) - room // 3))
    return text[:head], text[tail:]


def boundary(text: bytes, at: int) -> int:
    """The first place from `at` on that is between two characters of UTF-8."""
    at = min(max(at, 0), len(text))
    while at < len(text) and text[at] & 0b1100_0000 == 0b1000_0000:
        at += 1
    return at


def texts(blocks: Sequence[Raw]) -> Iterator[LongText]:
    """The texts among the blocks of a result: those of type `text`, and those of embedded resources."""
    for index, block in enumerate(blocks):
        try:
            members = parse_object(block)
            holder = members if "text" in members else parse_object(members.get("resource", Raw(b"{}")))
        except InvalidMessage:
            continue
        text = parse_text(holder.get("text", b""))
        if text is not None:
            yield LongText(index, text.encode(errors="replace"))


def with_text(block: Raw, text: str) -> Raw:
    """A block with another text."""
    members = parse_object(block)
    if "text" in members:
        return raw({**members, "text": raw(text)})
    resource: Params = parse_object(members["resource"])
    return raw({**members, "resource": raw({**resource, "text": raw(text)})})
