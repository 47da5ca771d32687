"""The twin of `mcproxy.features.limits.counters`."""

from __future__ import annotations

import pytest

from mcproxy.call.identity import Principal
from mcproxy.features.limits.limits import DAY, Exceeded, Limits
from mcproxy.settings.access.limits import RateLimits

MIDNIGHT = 20_000 * DAY
ANN, BOB = Principal("ann"), Principal("bob")
BY_TOOL = ("principal", "tool")


def limits(max_keys: int, **rule: object) -> Limits:
    return Limits(RateLimits.model_validate({"rules": {"r": rule}, "max_keys": max_keys}))


def use(limits: Limits, caller: Principal, tool: str, times: int = 1, *, listed: bool = True, utc: float = 0) -> int:
    """How many of so many calls get in; each ends at once."""
    admitted = 0
    for _ in range(times):
        try:
            limits.release(limits.admit(caller, "gh", tool, 0, MIDNIGHT + utc, listed=listed))
        except Exceeded:
            continue
        admitted += 1
    return admitted


def test_names_in_no_list_share_one_counter_for_each_upstream() -> None:
    some = limits(100, daily=3, per=BY_TOOL)
    assert sum(use(some, ANN, f"made-up-{number}", listed=False) for number in range(1000)) == 3
    assert len(some._counters) == 1
    assert use(some, BOB, "made-up", times=5, listed=False) == 3
    assert use(some, ANN, "push", times=5) == 3


def test_names_in_no_list_count_whatever_the_globs_say() -> None:
    some = limits(100, daily=3, per=("principal",), tools=["push"])
    assert use(some, ANN, "exposed-name-of-push", times=5, listed=False) == 3
    assert use(some, ANN, "push") == 0


@pytest.mark.parametrize("used", [2, 3])
def test_no_caller_gets_a_new_quota_by_any_number_of_tools(used: int) -> None:
    some = limits(50, daily=3, per=BY_TOOL)
    assert use(some, BOB, "push", times=used) == used
    assert use(some, ANN, "push", times=used) == used
    for number in range(500):
        use(some, ANN, f"tool-{number}")
    assert len(some._counters) <= 50
    assert use(some, BOB, "push", times=5) == 3 - used
    assert use(some, BOB, "pull", times=5) == 3
    assert use(some, ANN, "push", times=5) <= 3 - used
    assert use(some, ANN, "push", times=5, utc=DAY) == 3


def test_the_counters_of_callers_together_do_not_push_out_those_of_one() -> None:
    some = limits(50, daily=3, per=BY_TOOL)
    assert use(some, BOB, "push", times=3) == 3
    for number in range(2000):
        use(some, Principal(f"p{number % 10}"), f"tool-{number}")
        assert len(some._counters) <= 50
    assert use(some, BOB, "push") == 0


def test_a_spent_quota_is_remembered_until_its_day_ends() -> None:
    some = limits(10, daily=1, per=("principal",))
    assert [use(some, Principal(f"p{number}"), "push") for number in range(15)] == [1] * 10 + [0] * 5
    assert [use(some, Principal(f"p{number}"), "push") for number in range(10)] == [0] * 10
    with pytest.raises(Exceeded, match="max_keys"):
        some.admit(ANN, "gh", "push", 0, MIDNIGHT)
    assert use(some, ANN, "push", utc=DAY) == 1


def test_an_upstream_that_lists_without_end_pushes_out_no_callers_counters() -> None:
    some = Limits(
        RateLimits.model_validate(
            {
                "rules": {"mine": {"daily": 3, "per": ["principal"]}, "each": {"daily": 9, "per": ["tool"]}},
                "max_keys": 50,
            }
        )
    )
    assert use(some, BOB, "push", times=2) == 2
    for number in range(500):
        use(some, Principal(f"p{number % 5}"), f"tool-{number}")
    assert use(some, BOB, "push", times=5) <= 1


def test_calls_that_run_are_counted_where_they_began_after_counters_were_merged() -> None:
    some = limits(5, at_once=1, daily=100, per=BY_TOOL)
    running = some.admit(ANN, "gh", "push", 0, MIDNIGHT)
    for number in range(50):
        use(some, ANN, f"tool-{number}")
    assert use(some, ANN, "push") == 0
    some.release(running)
    assert use(some, ANN, "push", times=2) == 2
    assert some._counters.running == 0
