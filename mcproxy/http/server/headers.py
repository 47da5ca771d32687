"""The header fields of a request, as they came. Says what is there, and judges nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol, TypeVar, cast

import msgspec

HeaderLine = tuple[str, str]
T = TypeVar("T")

NONE: Final[Mapping[str, str]] = MappingProxyType({})


class HeadMemory(msgspec.Struct, frozen=True):
    """What an application worked out from the head of a request, and the object that it is valid for."""

    value: object
    valid_for: object


class HeaderNotes(Protocol):
    """A dict of values by their own types, one of each."""

    def get(self, kind: type[T], /) -> T | None: ...

    def __setitem__(self, kind: type[T], note: T, /) -> None: ...


class Headers(dict[str, str]):
    """The first value of each name, which is in lower case; of names that came more than once, `all` knows the rest.

    They belong to one connection. Requests whose heads are equal but for `Content-Length` share one object from
    `Request.remember` on.
    """

    __slots__ = ("_repeated", "memory", "noted")

    def __init__(self, first: Mapping[str, str] = NONE, repeated: Sequence[HeaderLine] = ()) -> None:
        """`repeated` are all lines in their order, where a name came more than once."""
        super().__init__(first)
        self._repeated: Final = repeated
        self.memory: HeadMemory | None = None
        """See `Request.remember`."""
        self.noted: Final = cast(HeaderNotes, {})
        """What was found out about them, and would be found out again with each request."""

    @classmethod
    def of(cls, lines: Iterable[HeaderLine]) -> Headers:
        """Of names as they are spelled."""
        read = [(name.lower(), value) for name, value in lines]
        first = dict(reversed(read))
        return cls(first, read if len(first) < len(read) else ())

    def all(self, name: str) -> Sequence[str]:
        if self._repeated:
            return [value for key, value in self._repeated if key == name]
        return (self[name],) if name in self else ()

    def joined(self, name: str) -> str | None:
        """The value of a field that is a list, whose members may have come in several lines (RFC 9110, 5.3)."""
        return ", ".join(self.all(name)) or None if self._repeated else self.get(name)
