"""The twin of `mcproxy.concurrency.bounded_queue`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.concurrency.bounded_queue import BoundedQueue


def drained(backlog: BoundedQueue[int]) -> list[int]:
    return [backlog.take() for _ in range(len(backlog))]


@given(st.lists(st.integers(0, 20)), st.integers(1, 5), st.integers(1, 30))
def test_r23_the_newest_that_fit_are_kept_in_order(sizes: list[int], most: int, most_bytes: int) -> None:
    backlog: BoundedQueue[int] = BoundedQueue(most, most_bytes)
    for number, size in enumerate(sizes):
        backlog.put(number, size)
    kept = drained(backlog)
    assert kept == list(range(len(sizes) - len(kept), len(sizes)))
    assert len(kept) <= most
    assert len(kept) <= 1 or sum(sizes[number] for number in kept) <= most_bytes
    assert bool(kept) == bool(sizes)


def test_what_was_taken_leaves_room() -> None:
    backlog: BoundedQueue[int] = BoundedQueue(10, 100)
    for number in range(4):
        backlog.put(number, 100)
        assert drained(backlog) == [number]
