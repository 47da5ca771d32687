"""A queue bounded in number and in bytes: the oldest items are dropped, and the newest is always kept.

The caller bounds the size of one item.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class BoundedQueue(Generic[T]):
    """First in, first out; at most `most` items of `most_bytes` bytes together, except for a larger newest one."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        # No deque, which takes 700 bytes: every client has one of these, mostly empty.
        self._waiting: list[tuple[T, int]] = []
        self._size = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: T, size: int) -> None:
        """Adds an item of `size` bytes, and drops the oldest beyond the limits. Never blocks."""
        self._waiting.append((item, size))
        self._size += size
        while len(self._waiting) > self._most or (self._size > self._most_bytes and len(self._waiting) > 1):
            self.take()

    def take(self) -> T:
        """Removes and returns the oldest item."""
        item, size = self._waiting.pop(0)
        self._size -= size
        return item
