"""Vector arithmetic for embeddings. Needs numpy, which is optional: imported only if embeddings are configured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Matrix: TypeAlias = NDArray[np.float32]


def unit_vectors(rows: Sequence[Sequence[float]]) -> Matrix | None:
    """The rows scaled to length 1; None if a number is not finite or a row is zero."""
    matrix = np.array(rows, dtype=np.float64)
    if not np.isfinite(matrix).all():
        return None
    greatest = np.abs(matrix).max(axis=1, keepdims=True)
    if not (greatest > 0).all():
        return None
    matrix = matrix / greatest  # else a square could overflow
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    found: Matrix = matrix.astype(np.float32)
    return found


def stacked(rows: Sequence[Matrix]) -> Matrix:
    """One matrix of all vectors."""
    return np.stack(rows)


def nearest(matrix: Matrix, vector: Matrix, limit: int) -> list[int]:
    """Indexes of the rows closest in direction to `vector`, best first; among equals the lowest index first."""
    likeness = matrix @ vector
    order = np.argsort(-likeness, kind="stable")[:limit]
    return [int(row) for row in order]
