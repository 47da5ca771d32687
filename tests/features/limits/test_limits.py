"""The twin of `mcproxy.features.limits.limits`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mcproxy.call.identity import Principal
from mcproxy.features.limits.limits import DAY, Exceeded, Limits
from mcproxy.settings.access.limits import RateLimits

MIDNIGHT = 20_000 * DAY


def limits(max_keys: int = 1000, **rules: dict[str, object]) -> Limits:
    return Limits(RateLimits.model_validate({"rules": rules, "max_keys": max_keys}))


Ask = tuple[Principal, str, str | None]


def ask(name: str = "ann", upstream: str = "gh", tool: str | None = "push", roles: tuple[str, ...] = ()) -> Ask:
    return Principal(name, frozenset(roles)), upstream, tool


def admitted(limits: Limits, ask: Ask, now: float, times: int = 1, utc: float = MIDNIGHT) -> int:
    """How many of so many calls get in."""
    count = 0
    for _ in range(times):
        try:
            limits.admit(*ask, now, utc)
        except Exceeded:
            continue
        count += 1
    return count


def refusal(limits: Limits, ask: Ask, now: float, utc: float = MIDNIGHT) -> Exceeded:
    with pytest.raises(Exceeded) as caught:
        limits.admit(*ask, now, utc)
    return caught.value


def test_a_bucket_gives_its_burst_at_once_and_then_its_rate() -> None:
    bucket = limits(r={"rate": "2/s", "burst": 5})
    assert admitted(bucket, ask(), 0, times=9) == 5
    assert admitted(bucket, ask(), 0.4) == 0
    assert admitted(bucket, ask(), 0.5, times=3) == 1
    assert admitted(bucket, ask(), 100, times=9) == 5


def test_a_caller_that_waits_as_long_as_it_was_told_gets_in() -> None:
    bucket = limits(r={"rate": "1/m"})
    bucket.admit(*ask(), 7, MIDNIGHT)
    told = refusal(bucket, ask(), 17)
    assert (told.limit, told.retry_after) == ("r", 50)
    assert "1 a minute" in told.sentence
    assert admitted(bucket, ask(), 17 + told.retry_after) == 1


@given(st.floats(0.01, 100), st.integers(1, 20), st.lists(st.floats(0, 5), max_size=60))
def test_no_window_ever_has_more_than_burst_and_rate(rate: float, burst: int, gaps: list[float]) -> None:
    bucket, now, let_in = limits(r={"rate": rate, "burst": burst}), 0.0, list[float]()
    for gap in gaps:
        now += gap
        if admitted(bucket, ask(), now):
            let_in.append(now)
    for first, start in enumerate(let_in):
        for last, end in enumerate(let_in[first:], first):
            assert last - first + 1 <= burst + (end - start) * rate + 1e-6


def test_callers_upstreams_and_tools_have_counts_of_their_own_where_a_limit_says_so() -> None:
    each = limits(r={"rate": "1/h", "per": ["principal", "upstream", "tool"]})
    others = [ask("bob"), ask(upstream="gl"), ask(tool="pull"), ask()]
    assert [admitted(each, other, 0, times=2) for other in others] == [1, 1, 1, 1]
    together = limits(r={"rate": "1/h"})
    assert [admitted(together, other, 0) for other in others] == [1, 0, 0, 0]


def test_a_tool_of_one_upstream_is_not_the_tool_of_that_name_of_another() -> None:
    per_tool = limits(r={"rate": "1/h", "per": ["tool"]})
    assert admitted(per_tool, ask(upstream="gh"), 0) == admitted(per_tool, ask(upstream="gl"), 0) == 1


def test_globs_say_which_calls_a_limit_is_about() -> None:
    some = limits(r={"rate": "1/h", "upstreams": ["g*"], "tools": ["push_*"]})
    assert admitted(some, ask(upstream="x", tool="push_it"), 0, times=3) == 3
    assert admitted(some, ask(tool="pull"), 0, times=3) == 3
    assert admitted(some, ask(tool=None), 0, times=3) == 3
    assert admitted(some, ask(tool="push_it"), 0, times=3) == 1


def test_a_list_counts_for_a_limit_on_everything_alone() -> None:
    listing = ask(upstream="", tool=None)
    assert admitted(limits(r={"rate": "1/h", "per": ["principal"]}), listing, 0, times=2) == 1
    assert admitted(limits(r={"rate": "1/h", "upstreams": ["gh"]}), listing, 0, times=2) == 2
    assert admitted(limits(r={"rate": "1/h", "per": ["upstream"]}), listing, 0, times=2) == 2


def test_calls_at_once_are_bounded_until_they_end() -> None:
    two = limits(r={"at_once": 2, "per": ["principal"]})
    first = two.admit(*ask(), 0, MIDNIGHT)
    second = two.admit(*ask(), 0, MIDNIGHT)
    assert refusal(two, ask(), 0).retry_after == 1
    assert admitted(two, ask("bob"), 0) == 1
    two.release(first)
    assert admitted(two, ask(), 0, times=2) == 1
    two.release(second)
    assert admitted(two, ask(), 0) == 1


def test_a_quota_lasts_until_midnight_in_utc() -> None:
    daily = limits(r={"daily": 2, "per": ["principal", "tool"]})
    assert admitted(daily, ask(), 0, times=3, utc=MIDNIGHT + 10) == 2
    assert refusal(daily, ask(), 0, MIDNIGHT + 80_000).retry_after == DAY - 80_000
    assert admitted(daily, ask(tool="pull"), 0, utc=MIDNIGHT + 80_000) == 1
    assert admitted(daily, ask(), 0, times=3, utc=MIDNIGHT + DAY) == 2


def test_a_call_that_one_limit_refuses_counts_towards_no_other() -> None:
    both = limits(wide={"rate": "1/h", "burst": 3}, narrow={"rate": "1/h", "tools": ["push"]})
    assert admitted(both, ask(), 0, times=5) == 1
    assert admitted(both, ask(tool="pull"), 0, times=5) == 2


def test_a_role_is_allowed_its_own_and_several_the_most_of_each() -> None:
    roles = {"ci": {"rate": "1/h", "burst": 5}, "admin": {"rate": "1/h", "burst": 3, "daily": 4}, "root": {}}
    some = limits(r={"rate": "1/h", "per": ["principal"], "roles": roles})
    assert admitted(some, ask("a"), 0, times=9) == 1
    assert admitted(some, ask("b", roles=("ci",)), 0, times=9) == 5
    assert admitted(some, ask("c", roles=("admin",)), 0, times=9) == 3
    assert admitted(some, ask("d", roles=("ci", "admin")), 0, times=9) == 5
    assert admitted(some, ask("e", roles=("ci", "root")), 0, times=9) == 9


def test_what_is_kept_of_callers_is_bounded_and_the_idle_are_forgotten() -> None:
    some = limits(10, r={"rate": "1/s", "daily": 9, "at_once": 9, "per": ["principal"]})
    for number in range(100):
        some.release(some.admit(*ask(f"p{number}"), 0, MIDNIGHT))
    assert (len(some._counters), some._counters.running) == (10, 0)
    some.release(some.admit(*ask("last"), 60, MIDNIGHT + DAY))
    assert (len(some._counters), some._counters.running) == (1, 0)


def test_a_refused_client_leaves_nothing_behind_and_takes_no_place() -> None:
    some = limits(3, tool={"rate": "1/h", "per": ["tool"]}, caller={"rate": "1/h", "burst": 2, "per": ["principal"]})
    assert admitted(some, ask(tool="push"), 0) == 1
    assert admitted(some, ask(tool="pull"), 0) == 1
    before = list(some._counters)
    assert [admitted(some, ask(tool=f"made-up-{number}"), 0) for number in range(100)] == [0] * 100
    assert list(some._counters) == before
    assert refusal(some, ask("bob", tool="push"), 0).limit == "tool"


def test_a_count_that_gives_way_still_knows_what_runs() -> None:
    some = limits(2, r={"at_once": 1, "per": ["principal"]})
    first = some.admit(*ask("first"), 0, MIDNIGHT)
    for number in range(10):
        some.release(some.admit(*ask(f"p{number}"), 0, MIDNIGHT))
    assert some._counters.running == 1
    assert admitted(some, ask("first"), 0) == 0
    some.release(first)
    assert some._counters.running == 0
    again = some.admit(*ask("first"), 0, MIDNIGHT)
    some.admit(*ask("p0"), 0, MIDNIGHT)
    some.admit(*ask("p1"), 0, MIDNIGHT)
    some.release(again)
    assert admitted(some, ask("first"), 0, times=2) == 1


def test_other_numbers_count_on_with_what_was_counted() -> None:
    some = limits(r={"daily": 2})
    assert admitted(some, ask(), 0, times=3) == 2
    some.reconfigure(RateLimits.model_validate({"rules": {"r": {"daily": 3}}}))
    assert admitted(some, ask(), 0, times=3) == 1
    some.reconfigure(RateLimits())
    assert not some
    assert admitted(some, ask(), 0, times=3) == 3


@pytest.mark.parametrize("rate", ["10", "ten/s", "10/w", "0/s", -1, "1/s/s"])
def test_a_rate_that_says_nothing_is_refused(rate: object) -> None:
    with pytest.raises(ValidationError):
        RateLimits.model_validate({"rules": {"r": {"rate": rate}}})


def test_a_burst_is_of_a_rate() -> None:
    with pytest.raises(ValidationError, match="needs a rate"):
        RateLimits.model_validate({"rules": {"r": {"burst": 3}}})
