"""Header fields of a message, as both the server and the client have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

HeaderLine = tuple[str, str]

NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Headers(dict[str, str]):
    """Header fields by their names in lower case: the first value of each; `all` has further ones."""

    __slots__ = ("_repeated",)

    def __init__(self, first: Mapping[str, str] = NONE, repeated: Sequence[HeaderLine] = ()) -> None:
        """`repeated`: all lines in their order, if a name came more than once."""
        super().__init__(first)
        self._repeated: Final = repeated

    @property
    def has_repeated(self) -> bool:
        """Whether a name came more than once."""
        return bool(self._repeated)

    @classmethod
    def of(cls, lines: Iterable[HeaderLine]) -> Headers:
        """Make them from lines with names as they were spelled."""
        read = [(name.lower(), value) for name, value in lines]
        first = dict(reversed(read))
        return cls(first, read if len(first) < len(read) else ())

    def all(self, name: str) -> Sequence[str]:
        """Every value of a field, in order."""
        if self._repeated:
            return [value for key, value in self._repeated if key == name]
        return (self[name],) if name in self else ()

    def joined(self, name: str) -> str | None:
        """The values of a field that is a list, as one (RFC 9110, section 5.3)."""
        return ", ".join(self.all(name)) or None if self._repeated else self.get(name)
