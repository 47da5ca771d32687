"""A queue bounded in number and in bytes: the oldest items are dropped, and the newest is always kept.

The size of one item is bounded where it comes in.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class BoundedQueue(Generic[T]):
    """First in, first out; at most `most` items of `most_bytes` bytes together, but for a newest one that is larger."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        # No deque, which takes 700 bytes: there is one of these for every client, and mostly nothing in it.
        self._waiting: list[tuple[T, int]] = []
        self._size = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: T, size: int) -> None:
        """Adds an item of `size` bytes, and drops the oldest that are too much. Never blocks."""
        self._waiting.append((item, size))
        self._size += size
        while len(self._waiting) > self._most or (self._size > self._most_bytes and len(self._waiting) > 1):
            self.take()

    def take(self) -> T:
        """The oldest."""
        item, size = self._waiting.pop(0)
        self._size -= size
        return item
