"""Bytes that arrive in pieces until they are joined: however small the pieces are, they take little more than they are.

A bytes object of one character takes 34 bytes, and its place in a list 8.
"""

from __future__ import annotations

from typing import Final

LONG_PIECE: Final = 1024
"""Bytes from which a piece is kept as it came; shorter ones are put together."""


class Pieces:
    """`size` is that of all pieces in bytes."""

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []
        self.size = 0

    def add(self, piece: bytes) -> None:
        """Keeps a piece behind the others."""
        self.size += len(piece)
        if not self._pieces or len(piece) >= LONG_PIECE:
            self._pieces.append(piece)
        elif isinstance(last := self._pieces[-1], bytearray):
            last += piece
        else:
            self._pieces.append(bytearray(piece))

    def taken(self) -> bytes:
        """All of them joined; none is kept."""
        pieces, self._pieces, self.size = self._pieces, [], 0
        return b"".join(pieces)
