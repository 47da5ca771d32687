"""Recognises heads that a peer repeats: the only memory of what a peer sent before. Pure.

A client sends nearly the same head with each request, and a server with each response. To compare a head with the last
costs a fifth of what reading it anew does.

Why this is safe: an entry is a head that llhttp has read, and the server's or client's checks have let pass. Bytes are
taken for it only if they equal it but in its gaps: the digits of `Content-Length`, and the values of fields that were
named when it was remembered. In a gap stands only what every parser reads alike: digits, or printable ASCII without
white space at its ends. So llhttp would read the same from these bytes, but for the values in the gaps, and those are
handed out as they stand in these bytes. All other bytes are left to llhttp.

When an entry is void: never, for what llhttp read, since that follows from the bytes. A layer above may keep a note
with an entry, which must follow from the head outside of its gaps and from one generation of that layer's settings; the
note is void in every other generation. Both are gone with the connection, or when the cache is cleared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from mcproxy.http.headers import Headers

T = TypeVar("T")

MOST_KNOWN: Final = 8
"""Heads in one cache."""
LONGEST_KNOWN: Final = 4 * 1024
"""Bytes of a head that is remembered."""
MOST_LINES: Final = 32
"""Fields of a head that is remembered: short ones take many times their bytes in memory."""
MOST_BYTES: Final = 16 * 1024
"""Bytes that the heads in one cache may take together (see `KnownHead.cost`)."""
MAX_DIGITS: Final = 15
"""Digits of a length: more than any body needs, and fewer than llhttp can count."""
GROWTH: Final = 256
"""Bytes that the values in the gaps of a head may be longer than they were when it was remembered."""

_PER_LINE: Final = 160
"""Bytes that a field takes beside its text: two strings and a place in a dict."""
_END: Final = b"\r\n\r\n"
_CONTENT_LENGTH: Final = "content-length"
_LENGTH: Final = b"\r\ncontent-length:"


class KnownHead(Generic[T]):
    """A head that is recognised by its bytes, but for the digits of `Content-Length` and the values of some fields."""

    __slots__ = (
        "_after_digits",
        "_before_digits",
        "_first",
        "_generation",
        "_longest",
        "_note",
        "_original",
        "_parts",
        "cost",
        "fields",
        "gaps",
        "parsed",
    )

    def __init__(
        self, parsed: T, fields: Headers, head: bytes, places: Sequence[_Place], gaps: Collection[str]
    ) -> None:
        """`places`: where the values of `Content-Length`, if it has one, and of `gaps` stand in `head`."""
        self.parsed: Final = parsed
        """What llhttp read, beside the fields."""
        self.fields = self._original = fields
        """Those of the head that came last."""
        self.gaps: Final = gaps
        self._note: object = None
        self._generation: object = None
        starts, ends = [place.start for place in places], [place.end for place in places]
        remembered = (None if place.name == _CONTENT_LENGTH else head[place.start : place.end] for place in places)
        cuts = zip([0, *ends], [*starts, len(head)], strict=True)
        self._first, *behind = [head[end:start] for end, start in cuts]
        """What comes before the first gap."""
        names = [place.name for place in places]
        self._parts: Final = tuple(zip(names, remembered, behind, strict=True))
        """Of each gap: its field, its value when the head was remembered (None for the length), what is behind it."""
        self._longest: Final = len(head) + GROWTH
        self._before_digits = self._after_digits = b""
        """Of the head that came last, around the digits of `Content-Length`; nothing if it has none."""
        self.cost: Final = 3 * self._longest + _PER_LINE * head.count(b"\n")
        """Estimated memory, in bytes: the head as it came, and as it was read."""

    def read(self, data: bytes) -> tuple[int, bytes] | None:
        """The length of the body, and what is behind the head, if `data` begins with this head.

        Then `fields` are those in `data`.
        """
        body = data.find(_END, 0, self._longest) + len(_END)
        length = len(data) - body
        if data[:body] == b"%b%d%b" % (self._before_digits, length, self._after_digits):
            return length, data[body:]  # a whole message, in which all but the length is as in the last, as mostly
        return self._read_gaps(data)

    def _read_gaps(self, data: bytes) -> tuple[int, bytes] | None:
        """As `read`, of any message."""
        start = len(self._first)
        if not data.startswith(self._first):
            return None
        fields, length, before, after = self._original, 0, b"", 0
        for name, remembered, behind in self._parts:
            end = data.find(behind, start, self._longest)
            if end < 0:
                return None
            value = data[start:end]
            if remembered is None:
                if not (value.isdigit() and len(value) <= MAX_DIGITS):
                    return None
                length, before, after = int(value), data[:start], end
            elif value != remembered:
                if not value.isascii() or not _is_plain(text := value.decode()):
                    return None
                fields = Headers(fields) if fields is self._original else fields
                fields[name] = text
            start = end + len(behind)
        self.fields, self._before_digits, self._after_digits = fields, before, data[after:start] if before else b""
        return length, data[start:]

    def keep(self, note: object, generation: object) -> None:
        """Keep a note that follows from the head outside of its gaps, and from `generation`."""
        self._note, self._generation = note, generation

    def note(self, generation: object) -> object:
        """The note that was kept last, if that was in this generation; else None."""
        return self._note if self._generation is generation else None


class HeadCache(Generic[T]):
    """The heads that one peer repeats."""

    __slots__ = ("heads",)

    def __init__(self) -> None:
        self.heads: list[KnownHead[T]] = []

    def add(self, parsed: T, fields: Headers, head: bytes, gaps: Collection[str] = ()) -> KnownHead[T] | None:
        """Remember a head that llhttp has read (see `plain_head`), if there is room for it and it can be recognised."""
        names = {_CONTENT_LENGTH} if fields.has_repeated else {_CONTENT_LENGTH, *gaps}
        places = [place for place in _places(head) if place.name in names]
        lengths = [head[place.start : place.end] for place in places if place.name == _CONTENT_LENGTH]
        if len(lengths) != (_LENGTH in head.lower()) or not all(map(bytes.isdigit, lengths)):
            return None
        known = KnownHead(parsed, fields, head, places, gaps)
        if len(self.heads) == MOST_KNOWN or known.cost + sum(each.cost for each in self.heads) > MOST_BYTES:
            return None
        self.heads.append(known)
        return known

    def remove(self, known: KnownHead[T]) -> None:
        """Forget a head. Idempotent."""
        if known in self.heads:
            self.heads.remove(known)

    def clear(self) -> None:
        """Forget all of them."""
        self.heads.clear()


def plain_head(data: bytes, lines: int) -> bytes | None:
    """The head that `data` begins with, if it can be remembered: short, and just the `lines` that llhttp read."""
    head = data[: data.find(_END, 0, LONGEST_KNOWN) + len(_END)]
    is_plain = head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r") == lines + 2
    return head if is_plain and lines <= MOST_LINES else None


def _is_plain(value: str) -> bool:
    """Whether any parser reads a value of ASCII as it stands (RFC 9110, section 5.5)."""
    return value.isprintable() and value != "" and value[0] != " " != value[-1]


class _Place(NamedTuple):
    """Where in a head the value of a field is."""

    name: str
    """In lower case."""
    start: int
    end: int


def _places(head: bytes) -> Iterator[_Place]:
    """The values in a head that stand behind a colon and a space, in order."""
    start = 0
    for line in head.removesuffix(_END).split(b"\r\n"):
        name, separator, _ = line.partition(b": ")
        if separator and start:
            yield _Place(name.decode("latin-1").lower(), start + len(name) + len(separator), start + len(line))
        start += len(line) + 2
