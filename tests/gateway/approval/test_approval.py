"""The twin of `mcproxy.gateway.approval.approval`: every edge of its table, and what an answer means."""

from __future__ import annotations

from collections import deque

import pytest

from mcproxy.gateway.approval.approval import (
    MAX_SHOWN,
    TRANSITIONS,
    Approval,
    ApprovalEvent,
    ApprovalState,
    ApprovalSubject,
    event_of,
    payload,
)
from mcproxy.protocol.jsonrpc import raw
from tests.fakes.upstream import decoded

SUBJECT = ApprovalSubject("alice", "files", "rm", "digest", "entry", 1)


def approval(arguments: object = None) -> Approval:
    return Approval("1", SUBJECT, "caller", "files__rm", raw(arguments or {"path": "/a"}), 1.0, 2.0, lambda: True)


def way_to(state: ApprovalState) -> list[ApprovalEvent]:
    ways: deque[tuple[ApprovalState, list[ApprovalEvent]]] = deque([(ApprovalState.WAITING, [])])
    while ways[0][0] is not state:
        here, way = ways.popleft()
        ways.extend((after, [*way, event]) for event, after in TRANSITIONS.get(here, {}).items())
    return ways[0][1]


@pytest.mark.parametrize("event", ApprovalEvent)
@pytest.mark.parametrize("state", ApprovalState)
def test_an_approval_takes_every_edge_of_the_table_and_no_other(state: ApprovalState, event: ApprovalEvent) -> None:
    one = approval()
    for step in way_to(state):
        assert one.move(step)
    after = TRANSITIONS.get(state, {}).get(event)
    assert one.move(event) is (after is not None)
    assert one.state is (after or state)


@pytest.mark.parametrize(
    ("answer", "event"),
    [
        ({"action": "accept", "content": {"approve": True}}, ApprovalEvent.APPROVED),
        ({"action": "accept", "content": {"approve": False}}, ApprovalEvent.DENIED),
        ({"action": "accept", "content": {"approve": "true"}}, ApprovalEvent.DENIED),
        ({"action": "accept", "content": {"approve": 1}}, ApprovalEvent.DENIED),
        ({"action": "accept", "content": {}}, ApprovalEvent.DENIED),
        ({"action": "accept"}, ApprovalEvent.DENIED),
        ({"action": "decline"}, ApprovalEvent.DENIED),
        ({"action": "decline", "content": {"approve": True}}, ApprovalEvent.DENIED),
        ({"action": "cancel"}, ApprovalEvent.GIVEN_UP),
        ({}, ApprovalEvent.GIVEN_UP),
        ([], ApprovalEvent.GIVEN_UP),
    ],
)
def test_nothing_but_a_plain_yes_approves(answer: object, event: ApprovalEvent) -> None:
    assert event_of(raw(answer)) is event


def test_a_person_is_shown_the_tool_and_its_arguments_which_are_cut() -> None:
    question = decoded(approval({"path": "x" * 10_000}).question.params)
    assert '{"path":"xxx' in str(question["message"])
    assert "(10011 characters)" in str(question["message"])
    assert len(str(question["message"])) < MAX_SHOWN + 300


def test_the_webhook_is_told_what_is_to_be_decided() -> None:
    told = {
        "type": "approval", "id": "1", "principal": "alice", "upstream": "files", "tool": "rm",
        "arguments": {"path": "/a"}, "expires": 2.0,
    }  # fmt: skip
    assert decoded(payload(approval(), None)) == told
    assert decoded(payload(approval(), "http://ops/1")) == {**told, "link": "http://ops/1"}
