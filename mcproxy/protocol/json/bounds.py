"""Limits on how many members a JSON object, items an array, and values a text may have, counted before they are kept.

One too many costs no more than the limit does: the decoder stops there. Everything that a peer's arrays and objects are
decoded by goes through here; `deploy/DECODERS.md` lists it all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

LONG: Final = 40_000
"""Bytes of a text whose objects may take long to read: their members are counted as they are read."""
MAX_VALUES: Final = 100_000
"""Values of a JSON text that is decoded with everything in it: they take about 100 bytes each, or 250 as members."""
_SHORT: Final = 20_000
"""Bytes of an array whose items are counted only after they are decoded."""
_FEW: Final = 64
"""Bytes that are found one by one before the rest is counted; fewer than LONG."""
_STEPS: Final = (1_000, 2_500, 10_000)
"""Items up to which an array is decoded as a structure, which stops at the first one too many."""
_CHUNK: Final = 1 << 16
_NO_MARKS: Final = bytes(set(range(256)) - set(b',[{"'))

_batch: Final = msgspec.json.Decoder(list[Raw])
_text: Final = msgspec.json.Decoder(str)

T = TypeVar("T")


class TooMany(msgspec.ValidationError):
    """More members, items or values than are read. The text is a phrase that continues the name of the value."""


class Bounded(Generic[T]):
    """Decodes a type with arrays, objects or any values in it, from a peer's JSON of at most `most` values.

    An empty array or object within counts twice.
    """

    __slots__ = ("_decoder", "most", "type")

    def __init__(self, type: type[T], most: int = MAX_VALUES) -> None:
        self.type = type
        self.most = most
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(type)

    def decode(self, data: bytes | Raw) -> T:
        """The value. Raises TooMany, which is a ValidationError, MsgspecError or RecursionError."""
        if len(data) > self.most:  # no value is shorter than a byte
            check_values(data, self.most)
        return self._decoder.decode(data)


_any: Final[Bounded[Any]] = Bounded(Any)
parse_value: Final[Callable[[bytes | Raw], Any]] = _any.decode
"""A JSON value with everything in it. Raises as `Bounded.decode`."""


def check_values(data: bytes | Raw, most: int) -> None:
    """Raises TooMany if a JSON text has more than `most` values, an empty array or object counted twice."""
    if has_more_values(data, most):
        raise TooMany(f"has more than {most} values")


def has_more_values(data: bytes | Raw, most: int) -> bool:
    """Whether a JSON text has more than `most` values: each begins with a comma or bracket, or is the first."""
    if len(data) <= most:
        return False
    text = bytes(data)
    if text.count(b",") + text.count(b"[") + text.count(b"{") <= most:
        return False
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks, found, is_string = text.translate(None, _NO_MARKS), 0, False
    for at in range(0, len(marks), _CHUNK):
        pieces = marks[at : at + _CHUNK].split(b'"')
        found += sum(map(len, pieces[is_string::2]))
        if found > most:
            return True
        is_string ^= len(pieces) % 2 == 0
    return False


def parse_array(data: bytes | Raw, most: int) -> list[Raw]:
    """The items of a JSON array. Raises TooMany where there are more than `most`, else MsgspecError, RecursionError."""
    if len(data) > max(most, _SHORT) and has_more(bytes(data), b",", most):
        items = _long_array(data, most)
    else:
        items = _batch.decode(data)
    if len(items) > most:
        raise TooMany(f"has more than {most} items")
    return items


def parse_texts(data: bytes | Raw, most: int) -> list[str]:
    """The items of a JSON array of strings. Raises as `parse_array`."""
    return [_text.decode(item) for item in parse_array(data, most)]


def first_items(data: bytes | Raw) -> list[Raw]:
    """The first items of a JSON array, up to ten thousand. Raises MsgspecError or RecursionError."""
    return _items(_structure(_STEPS[-1], stops=False).decode(data))


def _long_array(data: bytes | Raw, most: int) -> list[Raw]:
    if most > _STEPS[-1]:
        try:
            _count_objects(data, most)
            return _batch.decode(data)
        except TooMany:
            raise
        except msgspec.ValidationError:
            pass  # Not all items are objects.
    step = next((step for step in _STEPS if most <= step), _STEPS[-1])
    try:
        return _items(_structure(step, stops=True).decode(data))
    except msgspec.ValidationError as error:
        if bytes(data[:_CHUNK] if isinstance(data, bytes) else memoryview(data)[:_CHUNK]).lstrip()[:1] != b"[":
            raise
        raise TooMany(f"has more than {min(most, step)} items") from error


@cache
def _structure(items: int, *, stops: bool) -> msgspec.json.Decoder[msgspec.Struct]:
    """A decoder of an array's first items, which refuses or skips all others without making anything of them.

    The one for ten thousand items takes 45 ms to make, once; it reads them as fast as a list is read.
    """
    fields = [(f"item{number}", Raw | UnsetType, UNSET) for number in range(items)]
    return msgspec.json.Decoder(msgspec.defstruct("_Structure", fields, array_like=True, forbid_unknown_fields=stops))


def _items(structure: msgspec.Struct) -> list[Raw]:
    return [item for item in msgspec.structs.astuple(structure) if item is not UNSET]


def _count_objects(data: bytes | Raw, most: int) -> None:
    """Raises TooMany, and ValidationError where an item is not an object. Skips what is in them."""
    number = count(1)

    class Counted(msgspec.Struct, gc=False):
        def __post_init__(self) -> None:
            if next(number) > most:
                raise TooMany(f"has more than {most} items")

    msgspec.json.decode(data, type=list[Counted])


class CountedText:
    """A key that is counted while it is read."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def decode_counted(text: bytes | Raw, type: type[T], most: int) -> T:
    """A `type` that has CountedText for what is counted. Raises TooMany, MsgspecError or RecursionError."""
    number = count(1)

    def counted(_: object, value: object) -> CountedText:
        if next(number) > most:
            raise TooMany(f"has more than {most} members")
        return CountedText(str(value))

    return msgspec.json.decode(text, type=type, dec_hook=counted)


def uncounted(members: dict[CountedText, Raw]) -> dict[str, Raw]:
    """The members by name."""
    return {key.text: value for key, value in members.items()}


def has_more(text: bytes, byte: bytes, most: int) -> bool:
    """Whether a byte occurs more than `most` times, of which _FEW are never too many."""
    # To find a byte is twenty times as fast as to count it: of large texts most are one string of Base64.
    at = -1
    for _ in range(_FEW):
        at = text.find(byte, at + 1)
        if at < 0:
            return False
    return text.count(byte, at + 1) + _FEW > most
