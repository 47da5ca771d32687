"""A few seconds of the fuzzer of upstreams' answers: see `tests.fuzz` for an hour of it."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.answers import main, told
from tests.fuzz.http import SPARE

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


async def test_no_answer_of_an_upstream_harms_more_than_its_call() -> None:
    report = await main(minutes=5 / 60, seed=7, at_least=60)
    assert report.findings == []
    assert report.files[1] <= report.files[0] + SPARE
    assert report.counts["errors"] > 10
    assert report.counts["results"] > 0


def test_the_same_seed_makes_the_same_answers() -> None:
    assert told(random.Random(3), "m") == told(random.Random(3), "m")
