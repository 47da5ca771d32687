"""A chaos run of a few seconds: see `tests.fuzz.chaos` for an hour of it."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.fuzz.chaos.decisions import Action, decisions
from tests.fuzz.chaos.ledger import Invariant, Ledger
from tests.fuzz.chaos.run import main, report

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


async def test_nothing_is_lost_doubled_stuck_leaked_or_misdelivered() -> None:
    chaos = await main(minutes=8 / 60, seed=7, between_calms=8, clients=1, at_least=50)
    assert chaos.ledger.findings == []
    assert chaos.ledger.counts["results"] >= 50
    assert sum(chaos.actions.values()) > 0
    assert "| calls |" in report(chaos, 8 / 60)


def test_the_same_seed_makes_the_same_decisions() -> None:
    first, second = (decisions(3, ["a"], ["b"], ["ann"]) for _ in range(2))
    assert [next(first) for _ in range(50)] == [next(second) for _ in range(50)]
    assert {decision.action for decision in islice(decisions(3, ["a"], ["b"], ["ann"]), 200)} == set(Action)


def ledger() -> tuple[Ledger, list[float]]:
    now = [0.0]
    return Ledger(lambda: now[0]), now


def test_an_answer_of_another_call_is_found() -> None:
    it, _ = ledger()
    call = it.begin("ann", "ann.0", "up", "echo")
    it.succeed(call, "ann.0.7", call.marker)
    assert it.broken[Invariant.DELIVERED] == 1


def test_an_error_is_found_unless_something_happened_to_its_upstream() -> None:
    it, now = ledger()
    it.disturb("up")
    it.fail(it.begin("ann", "ann.0", "up", "echo"), "away")
    it.settle("up", seconds=5)
    now[0] = 4
    it.fail(it.begin("ann", "ann.0", "up", "echo"), "away")
    assert it.broken[Invariant.UNDISTURBED] == 0
    now[0] = 6
    it.fail(it.begin("ann", "ann.0", "up", "echo"), "away")
    assert it.broken[Invariant.UNDISTURBED] == 1


def test_a_tool_that_ran_twice_or_never_is_found(tmp_path_factory: pytest.TempPathFactory) -> None:
    it, _ = ledger()
    for _ in range(2):
        call = it.begin("ann", "ann.0", "up", "echo")
        it.succeed(call, call.marker, call.marker)
    journal = tmp_path_factory.mktemp("chaos") / "up.journal"
    journal.write_text("pid 1\ncall ann.0.1\ncall ann.0.1\n")
    it.read_journals([journal])
    assert (it.broken[Invariant.ONCE], it.broken[Invariant.DELIVERED]) == (1, 1)
    it.read_journals([journal])
    assert it.broken.total() == 2


def test_a_result_for_a_revoked_key_is_found() -> None:
    it, now = ledger()
    it.revoked["ann"] = 1
    early = it.begin("ann", "ann.0", "up", "read")
    now[0] = 2
    late = it.begin("ann", "ann.0", "up", "read")
    for call in (early, late):
        it.succeed(call, call.marker, call.marker)
    assert it.broken[Invariant.REVOKED] == 1
