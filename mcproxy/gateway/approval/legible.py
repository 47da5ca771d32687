"""The arguments of a call as a person reads them before approving it: nothing in them is invisible or passes for other.

A text of JSON, cut in its middle where it is too long. Knows no approval and decides nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.protocol.jsonrpc import Params, raw

_ESCAPE: Final = re.compile(r"\\(?:u(?P<code>[0-9a-fA-F]{4})|.)")
_BLANK: Final = frozenset(
    chr(code)
    for first, last in (
        (0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180D), (0x180F, 0x180F), (0x2800, 0x2800),
        (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xE0100, 0xE01EF),
    )
    for code in range(first, last + 1)
)  # fmt: skip
"""Letters, marks and symbols that show nothing (Unicode, Default_Ignorable_Code_Point, and the blank of Braille)."""


def legible(data: Raw) -> str:
    """JSON in one line: characters that cannot be seen, or that turn the direction of writing, as `\\uXXXX`.

    A letter that was sent as an escape is shown as that letter. It is the same value still.
    """
    try:
        compact = msgspec.json.format(bytes(data), indent=-1)
    except (msgspec.MsgspecError, RecursionError):
        compact = bytes(data)
    text = _ESCAPE.sub(_unescaped, compact.decode(errors="replace"))
    if text.isprintable() and _BLANK.isdisjoint(text):
        return text
    hidden = [character for character in set(text) if not _is_seen(character)]
    return text.translate({ord(character): json.dumps(character)[1:-1] for character in hidden})


def abridged(text: str, most: int) -> str:
    """`text`, or its head and its tail, `most` characters together, with how much is left out and a digest of all."""
    left = len(text) - most
    if left <= 0:
        return text
    half, digest = most // 2, hashlib.sha256(text.encode()).hexdigest()
    note = f"[... {left} of {len(text)} characters are left out here; SHA-256 of all: {digest} ...]"
    return f"{text[:half]} {note} {text[half - most :]}"


def masked(arguments: Params, names: Collection[str], mask: Callable[[str], str]) -> Params:
    """`arguments`, with the texts in those of `names` masked."""
    return {
        name: raw(_masked(msgspec.json.decode(value), mask)) if name in names else value
        for name, value in arguments.items()
    }


def _masked(value: object, mask: Callable[[str], str]) -> object:
    match value:
        case str():
            return mask(value)
        case dict():
            return {mask(str(key)): _masked(member, mask) for key, member in value.items()}
        case list():
            return [_masked(item, mask) for item in value]
        case _:
            return value


def _unescaped(match: re.Match[str]) -> str:
    if match["code"] is None:
        return match[0]
    character = chr(int(match["code"], 16))
    return character if character not in '"\\' and _is_seen(character) else match[0].lower()


def _is_seen(character: str) -> bool:
    return character.isprintable() and character not in _BLANK
