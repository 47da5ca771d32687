"""Vector arithmetic for embeddings. Needs numpy, which is optional: imported only where embeddings are configured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Matrix: TypeAlias = NDArray[np.float32]


def unit_vectors(rows: Sequence[Sequence[float]]) -> Matrix | None:
    """The rows, made as long as 1 each; None where a number is not finite or a row is nought."""
    matrix = np.array(rows, dtype=np.float64)
    if not np.isfinite(matrix).all():
        return None
    greatest = np.abs(matrix).max(axis=1, keepdims=True)
    if not (greatest > 0).all():
        return None
    matrix = matrix / greatest  # else a square could be too large for a number
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    found: Matrix = matrix.astype(np.float32)
    return found


def stacked(rows: Sequence[Matrix]) -> Matrix:
    """One matrix of vectors."""
    return np.stack(rows)


def nearest(matrix: Matrix, vector: Matrix, limit: int) -> list[int]:
    """The rows whose direction is most like that of `vector`, the best first; of equals the first."""
    likeness = matrix @ vector
    order = np.argsort(-likeness, kind="stable")[:limit]
    return [int(row) for row in order]
