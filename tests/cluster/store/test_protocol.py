"""The twin of `mcproxy.cluster.store.protocol`."""

from __future__ import annotations

import pytest

from mcproxy.cluster.store.protocol import START, StreamPosition, follows


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (START, StreamPosition(7, 1), True),
        (START, StreamPosition(7, 2), False),
        (StreamPosition(7, 1), StreamPosition(7, 2), True),
        (StreamPosition(7, 1), StreamPosition(7, 3), False),
        (StreamPosition(7, 1), StreamPosition(8, 2), False),
        (StreamPosition(7, 0), StreamPosition(8, 1), False),
    ],
)
def test_an_entry_follows_another_of_the_same_epoch_with_the_number_before(
    before: StreamPosition, after: StreamPosition, expected: bool
) -> None:
    assert follows(before, after) is expected
