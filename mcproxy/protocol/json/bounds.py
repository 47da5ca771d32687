"""Limits on how many members a JSON object and how many items an array may have, counted before they are kept.

One too many costs no more than the limit does: the decoder stops there. What is counted is what the limit is for: to
count quotes among the bytes took as long as to decode them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

LONG: Final = 40_000
"""Bytes of a text whose objects may take long to read: their members are counted as they are read."""
_MANY_COMMAS: Final = 20_000
"""Commas of a text whose arrays may take long to read: their items are counted as they are read."""
_FEW: Final = 64
"""Bytes that are found one by one before the rest is counted; fewer than either number."""


_batch = msgspec.json.Decoder(list[Raw])


class TooMany(Exception):
    """More members or items than are read. The text is a phrase that continues the name of the value."""


def parse_array(data: bytes | Raw, most: int) -> list[Raw]:
    """The items of a JSON array. Raises TooMany where there are more than `most`, else MsgspecError, RecursionError."""
    text = bytes(data) if len(data) > _MANY_COMMAS else b""
    if has_more(text, b",", _MANY_COMMAS):
        _count_items(text, most)
    items = _batch.decode(data)
    if len(items) > most:
        raise TooMany(f"has more than {most} items")
    return items


class CountedText:
    """A text that is counted while it is read: a key, or the type of an item."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class _Item:
    """An item that is counted while it is read."""


_T = TypeVar("_T")


def _counting(make: Callable[[object], _T], most: int, what: str) -> Callable[[type, object], _T]:
    """For a decoder, which stops at the first member or item that is one too many."""
    number = count(1)

    def convert(_type: type, value: object) -> _T:
        if next(number) > most:
            raise TooMany(f"has more than {most} {what}")
        return make(value)

    return convert


def decode_counted(text: bytes | Raw, type: type[_T], most: int) -> _T:
    """A `type` that has CountedText for what is counted. Raises TooMany, MsgspecError or RecursionError."""
    return _decoded(text, type, _counting(lambda read: CountedText(str(read)), most, "members"))


def uncounted(members: dict[CountedText, Raw]) -> dict[str, Raw]:
    """The members by name."""
    return {key.text: value for key, value in members.items()}


def has_more(text: bytes, byte: bytes, most: int) -> bool:
    """Whether a byte occurs more than `most` times."""
    # To find a byte is twenty times as fast as to count it: of large texts most are one string of Base64.
    at = -1
    for _ in range(_FEW):
        at = text.find(byte, at + 1)
        if at < 0:
            return False
    return text.count(byte, at + 1) + _FEW > most


def _count_items(text: bytes, most: int) -> None:
    _decoded(text, list[_Item], _counting(lambda value: _Item(), most, "items"))


def _decoded(text: bytes | Raw, type: type[_T], hook: Callable[[type, object], object]) -> _T:
    """Raises what `hook` raises, which the decoder wraps."""
    try:
        return msgspec.json.decode(text, type=type, dec_hook=hook)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, TooMany):
            raise error.__cause__ from error
        raise
