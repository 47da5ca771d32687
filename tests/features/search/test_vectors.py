"""Vectors of length 1, and which are nearest."""

from __future__ import annotations

import math

import pytest

from mcproxy.features.search.vectors import nearest, stacked, unit_vectors


def test_vectors_are_made_as_long_as_one() -> None:
    found = unit_vectors([[3.0, 4.0], [0.0, -1e300], [1e-300, 0.0]])
    assert found is not None
    assert [number for row in found.tolist() for number in row] == pytest.approx([0.6, 0.8, 0, -1, 1, 0], abs=1e-6)


@pytest.mark.parametrize("row", [[0.0, 0.0], [math.inf, 1.0], [math.nan, 1.0]])
def test_what_has_no_direction_is_no_vector(row: list[float]) -> None:
    assert unit_vectors([[1.0, 0.0], row]) is None


def test_the_nearest_come_first_and_of_equals_the_first() -> None:
    found = unit_vectors([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 0.0]])
    assert found is not None
    matrix = stacked(list(found))
    assert nearest(matrix, matrix[1], 3) == [1, 3, 2]
