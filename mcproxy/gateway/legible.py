"""The arguments of a call as text for the person who is to approve it: characters that mislead a reader are escaped.

A text of JSON, without its middle where it is too long. Knows no approval and decides nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.protocol.json.bounds import parse_value
from mcproxy.protocol.jsonrpc import Params, raw

_ESCAPE: Final = re.compile(r"\\(?:u(?P<code>[0-9a-fA-F]{4})|.)")
_PIECE: Final = re.compile(r"(?:[^\\]|\\(?:u[0-9a-fA-F]{4}|.)?){1,4096}", re.DOTALL)
"""Characters that are read at a time; an escape sequence is never split between two pieces."""
_LONGEST: Final = 6
"""The most characters of JSON that stand for one character of text: `\\uXXXX`."""
_BLANK: Final = frozenset(
    chr(code)
    for first, last in (
        (0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180D), (0x180F, 0x180F), (0x2800, 0x2800),
        (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xE0100, 0xE01EF),
    )
    for code in range(first, last + 1)
)  # fmt: skip
"""Letters, marks and symbols that render as nothing (Unicode Default_Ignorable_Code_Point; the Braille blank)."""


def legible(data: Raw, most: int) -> str:
    """JSON in one line: characters that cannot be seen, or that turn the direction of writing, as `\\uXXXX`.

    An escaped letter is shown as the letter, which is the same JSON value. A text longer than `most` characters is
    shown as its head and tail (`most` characters together), the length of the JSON and its digest; only what is shown
    is read character by character.
    """
    try:
        compact = msgspec.json.format(bytes(data), indent=-1)
    except (msgspec.MsgspecError, RecursionError):
        compact = bytes(data)
    text = compact.decode(errors="replace")
    head = ""
    for piece in _PIECE.finditer(text):
        head += _seen(piece[0])
        if len(head) > most:
            break
    else:
        return head
    half = most // 2
    digest = hashlib.sha256(compact).hexdigest()
    note = f"[... the middle is left out here, of {len(text)} characters in all; SHA-256 of all: {digest} ...]"
    return f"{head[:half]} {note} {_tail(text, most - half)}"


def _tail(text: str, most: int) -> str:
    """The last `most` characters of the legible form of a long text."""
    pieces = _PIECE.findall(text, _whole_escape(text, max(0, len(text) - _LONGEST * most)))
    tail = ""
    while pieces and len(tail) < most:
        tail = _seen(pieces.pop()) + tail
    return tail[len(tail) - most :]


def _whole_escape(text: str, at: int) -> int:
    """The start of the escape sequence that contains a place, or the place itself."""
    last = text.rfind("\\", max(0, at - _LONGEST + 1), at)
    if last < 0:
        return at
    before = text[: last + 1]
    is_first = (len(before) - len(before.rstrip("\\"))) % 2
    escape = _ESCAPE.match(text, last) if is_first else None
    return last if escape is not None and escape.end() > at else at


def _seen(text: str) -> str:
    shown = _ESCAPE.sub(_unescaped, text)
    if shown.isprintable() and _BLANK.isdisjoint(shown):
        return shown
    hidden = [character for character in set(shown) if not _is_seen(character)]
    return shown.translate({ord(character): json.dumps(character)[1:-1] for character in hidden})


def masked(arguments: Params, names: Collection[str], mask: Callable[[str], str]) -> Params:
    """`arguments` with the values of the arguments called `names` masked."""
    return {
        name: raw(_masked(parse_value(value), mask)) if name in names else value for name, value in arguments.items()
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
