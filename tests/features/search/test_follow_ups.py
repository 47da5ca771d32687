"""Whether a search was followed by a call of what it found."""

from __future__ import annotations

from mcproxy.call.identity import Caller, Principal
from mcproxy.features.search.follow_ups import MAX_CALLERS, PATIENCE, FollowUps
from mcproxy.protocol.eras import LATEST
from tests.fakes.reading import Clock

ANN = Caller(Principal("ann"), LATEST)


def test_a_call_of_a_found_tool_follows_the_search_once() -> None:
    follow_ups = FollowUps(Clock())
    follow_ups.searched(ANN, ["log"])
    assert not follow_ups.called(ANN, "push")
    assert follow_ups.called(ANN, "log")
    assert not follow_ups.called(ANN, "log")
    follow_ups.searched(ANN, ["log"])
    assert follow_ups.take_unfollowed() == 0


def test_another_search_ends_the_one_before() -> None:
    follow_ups = FollowUps(Clock())
    follow_ups.searched(ANN, ["log"])
    follow_ups.searched(ANN, ["push"])
    assert [follow_ups.take_unfollowed(), follow_ups.take_unfollowed()] == [1, 0]
    assert not follow_ups.called(ANN, "log")


def test_callers_do_not_follow_each_others_searches() -> None:
    follow_ups = FollowUps(Clock())
    follow_ups.searched(ANN, ["log"])
    assert not follow_ups.called(Caller(Principal("eve"), LATEST), "log")
    assert not follow_ups.called(Caller(Principal("ann"), LATEST, endpoint="/other"), "log")


def test_a_search_is_over_after_a_while_though_nothing_comes_after_it() -> None:
    clock = Clock()
    follow_ups = FollowUps(clock)
    follow_ups.searched(ANN, ["log"])
    clock.now += PATIENCE
    assert follow_ups.take_unfollowed() == 0
    clock.now += 1
    assert follow_ups.take_unfollowed() == 1


def test_a_call_that_comes_too_late_follows_no_search() -> None:
    clock = Clock()
    follow_ups = FollowUps(clock)
    follow_ups.searched(ANN, ["log"])
    clock.now += PATIENCE + 1
    assert not follow_ups.called(ANN, "log")
    assert follow_ups.take_unfollowed() == 1


def test_no_more_callers_are_remembered_than_the_limit() -> None:
    follow_ups = FollowUps(Clock())
    for number in range(MAX_CALLERS + 2):
        follow_ups.searched(Caller(Principal(str(number)), LATEST), [])
    assert follow_ups.take_unfollowed() == 2
