"""The twin of `mcproxy.features.approvals.rounds`."""

from __future__ import annotations

from dataclasses import dataclass

from mcproxy.features.approvals.approval import ApprovalSubject
from mcproxy.features.approvals.rounds import ApprovedRounds
from mcproxy.settings.access.approvals import ApprovalSettings


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def subject(principal: str, upstream: str = "up") -> ApprovalSubject:
    return ApprovalSubject(principal, upstream, "rm", "", "", 0)


def rounds(clock: Clock | None = None, **limits: object) -> ApprovedRounds:
    return ApprovedRounds(ApprovalSettings.model_validate(limits), clock or Clock())


def test_a_call_goes_on_once_and_as_the_same_call_alone() -> None:
    kept = rounds()
    id, other = kept.keep(subject("alice")), kept.keep(subject("alice"))
    assert kept.take(id, subject("alice"))
    assert not kept.take(id, subject("alice"))
    assert not kept.take(other, subject("mallory"))
    assert not kept.take(None, subject("alice"))


def test_a_call_that_goes_on_after_the_time_is_asked_about_again() -> None:
    clock = Clock()
    kept = rounds(clock, timeout=50)
    ids = [kept.keep(subject("alice")) for _ in range(2)]
    clock.now = 49
    assert kept.take(ids[0], subject("alice"))
    clock.now = 50
    assert not kept.take(ids[1], subject("alice"))


def test_calls_of_one_principal_push_out_those_of_no_other() -> None:
    kept = rounds(max_waiting=3, max_waiting_per_principal=2)
    of_bob = kept.keep(subject("bob"))
    oldest, *others = [kept.keep(subject("alice")) for _ in range(3)]
    assert not kept.take(oldest, subject("alice"))
    assert all(kept.take(id, subject("alice")) for id in others)
    assert kept.take(of_bob, subject("bob"))


def test_in_all_the_oldest_give_way() -> None:
    kept = rounds(max_waiting=2)
    ids = {name: kept.keep(subject(name)) for name in ("alice", "bob", "carol")}
    assert [kept.take(id, subject(name)) for name, id in ids.items()] == [False, True, True]


def test_calls_of_an_upstream_that_was_made_anew_are_asked_about_again() -> None:
    kept = rounds()
    ids = {name: kept.keep(subject("alice", name)) for name in ("up", "other")}
    kept.reconfigure(ApprovalSettings(), {"up"})
    assert [kept.take(id, subject("alice", name)) for name, id in ids.items()] == [True, False]
