"""A few seconds of the fuzzer of HTTP: see `tests.fuzz.http` for hours of it."""

from __future__ import annotations

import pytest

from tests.fuzz.http import SPARE, Chance, main, mutated, seeds

pytestmark = pytest.mark.anyio

MUCH = 100
"""MiB that a gateway of so few sessions has no reason to grow by."""


async def test_nothing_breaks_the_gateway_or_stays_with_it() -> None:
    report = await main(minutes=4 / 60, seed=7, at_least=100)
    assert report.findings == []
    assert report.files[1] <= report.files[0] + SPARE
    assert report.memory[1] - report.memory[0] < MUCH
    assert {200, 400, 401} <= report.statuses.keys()


def test_the_same_seed_makes_the_same_requests() -> None:
    samples = seeds()
    assert [mutated(Chance(3), samples) for _ in range(9)] == [mutated(Chance(3), samples) for _ in range(9)]
