"""The header fields of a request, as they came. Says what is there, and judges nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


class Fields:
    """By name, in lower case. A name that came more than once has several values."""

    __slots__ = ("_first", "_lines")

    def __init__(self, lines: Sequence[tuple[str, str]]) -> None:
        self._lines = lines
        """In the order that they came."""
        self._first = dict(lines)
        if len(self._first) < len(lines):
            self._first = dict(reversed(lines))

    @classmethod
    def of(cls, lines: Iterable[tuple[str, str]]) -> Fields:
        """Of names as they are spelled."""
        return cls([(name.lower(), value) for name, value in lines])

    def __contains__(self, name: str) -> bool:
        return name in self._first

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Each line."""
        return iter(self._lines)

    def get(self, name: str, default: str = "") -> str:
        """The first value."""
        return self._first.get(name, default)

    def all(self, name: str) -> Sequence[str]:
        if len(self._first) == len(self._lines):
            return (self._first[name],) if name in self._first else ()
        return [value for key, value in self._lines if key == name]

    def joined(self, name: str) -> str | None:
        """The value of a field that is a list, whose members may have come in several lines (RFC 9110, 5.3)."""
        values = self.all(name)
        return ", ".join(values) if values else None
