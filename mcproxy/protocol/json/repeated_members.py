"""Finds objects that name a member twice: parsers keep the first, the last, or refuse (RFC 8259, section 4).

Names count as the same if some parser reads them as one: spelled with escapes, normalised otherwise (Unicode NFC), or
cut at a NUL. Takes valid JSON; other text is searched as far as it makes sense.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final
from unicodedata import normalize

import msgspec
from msgspec import Raw

SHORT: Final = 16 * 1024
"""Bytes of a value that is decoded to see that it repeats nothing; decoded, it takes up to thirty times as many."""
MAX_NAMES: Final = 100_000
"""Names of the objects around one place that are remembered: some 10 MB."""
MAX_SHOWN: Final = 64
"""Characters of a name that are quoted."""

_WINDOW: Final = 16 * 1024
"""Bytes of one step, which takes about a millisecond."""
_MAX_NORMALISED: Final = 256
"""Characters of a name that is normalised: the time for that can grow with the square of its length."""

_TOKENS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"[ \t\r\n]*+:?+)?+|[{}]', re.DOTALL)
"""Strings, with the colon behind a name, and braces. The last one may be a string that goes on behind the window."""
_INSIDE: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_COLON: Final = re.compile(rb"[ \t\r\n]*+:")
_BEHIND_NAME: Final = b": \t\r\n"
_QUOTE, _OPEN, _COLON_BYTE = b'"{:'

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


class RepeatedMember(ValueError):
    """An object has two members of one name."""


def distinct(members: list[tuple[str, object]]) -> dict[str, object]:
    """The object with these members, as `object_pairs_hook` of `json` wants it. Raises RepeatedMember."""
    found = dict(members)
    if len(found) != len(members):
        raise RepeatedMember("a member comes twice in it")
    return found


def is_distinct(*values: Raw) -> bool:
    """True only if no object in the JSON values repeats a member. False for some that repeat none: `find_repeated`.

    Fast for what most clients send: short, without white space, and with few escapes.
    """
    if sum(map(len, values)) > SHORT:
        return False
    text = b"[%b]" % b",".join(values)
    if text.count(b":") < 2:
        return True
    if b"\\u" in text:
        return False
    try:
        # The decoder keeps one member of each name. If writing the value again gives the same text, it dropped none.
        read = _decode(text)
        if _encode(read) != text and _encode(read) != msgspec.json.format(text, indent=-1):
            return False
    except (ValueError, RecursionError):
        return False  # a number that is too large
    return text.isascii() or all(string.isascii() for string in _TOKENS.findall(text) if string.endswith(b":"))


def repeats_member(data: Raw) -> bool:
    """Whether an object of the JSON value `data` names a member twice, at any depth."""
    if is_distinct(data):
        return False
    steps = find_repeated(data)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value is not None


def find_repeated(data: bytes | Raw) -> Generator[None, None, str | None]:
    """A phrase that names a repeated member; None if there is none. Yields after each step of about a millisecond."""
    text, at, objects = memoryview(data), 0, _OpenObjects()
    while at < len(text):
        window = bytes(text[at : at + _WINDOW])
        tokens = _TOKENS.findall(window)
        last = tokens.pop() if tokens and tokens[-1][0] == _QUOTE else None
        if (found := objects.take(tokens, is_plain=b"\\" not in window and window.isascii())) is not None:
            return found
        if last is None:
            at += _WINDOW
        else:  # It may go on behind the window, and so may what follows it.
            start = at + window.rindex(last)
            end = yield from _end_of_string(text, start + 1)
            colon = _COLON.match(text, end + 1)
            if colon is not None and (found := objects.add(_read(bytes(text[start + 1 : end])))) is not None:
                return found
            at = end + 1 if colon is None else colon.end()
        yield
    return None


class _OpenObjects:
    """The names in each object around the current place, in UTF-8."""

    def __init__(self) -> None:
        self._objects: list[set[bytes]] = []
        self._names = 0

    def take(self, tokens: list[bytes], *, is_plain: bool) -> str | None:
        """Takes tokens in order. Returns the first flaw. `is_plain` says that names need not be decoded."""
        for token in tokens:
            first = token[0]
            if first == _OPEN:
                self._objects.append(set())
            elif first != _QUOTE:
                self._names -= len(self._objects.pop()) if self._objects else 0
            elif token[-1] == _COLON_BYTE:
                name = token.rstrip(_BEHIND_NAME)[1:-1]
                if (found := self.add(name if is_plain else _read(name))) is not None:
                    return found
        return None

    def add(self, name: bytes) -> str | None:
        """Adds a name to the innermost object. Returns the flaw, if that makes one."""
        if not self._objects:
            return None
        innermost = self._objects[-1]
        if name in innermost:
            return f"names the member {name.decode(errors='replace')[:MAX_SHOWN]!r} twice"
        innermost.add(name)
        self._names += 1
        return None if self._names <= MAX_NAMES else f"has more than {MAX_NAMES} members in its objects"


def _end_of_string(text: memoryview, at: int) -> Generator[None, None, int]:
    """The place of the quote that ends the string in which `at` is; the end of the text if there is none."""
    while True:
        inside = _INSIDE.match(text, at, at + _WINDOW)
        reached = at if inside is None else inside.end()
        if reached >= len(text) or text[reached] == _QUOTE:
            return reached
        # The window ends here, or behind a backslash; a text that ends with one is no JSON.
        at = reached if reached > at else reached + 2
        yield


def _read(content: bytes) -> bytes:
    """A name by what is between its quotes, so that two names which a parser may take for one are equal."""
    if content.isascii() and b"\\" not in content:
        return content
    try:
        name = msgspec.json.decode(b'"%b"' % content, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return content  # It is no JSON.
    name = name.partition("\0")[0]
    return (normalize("NFC", name) if len(name) <= _MAX_NORMALISED else name).encode()
