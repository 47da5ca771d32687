"""The twin of `mcproxy.features.approvals.approval`: every edge of its table, and what an answer means."""

from __future__ import annotations

from collections import deque

import pytest

from mcproxy.features.approvals.approval import (
    MAX_ASKED,
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


def approval(given: object = None, final: object = None) -> Approval:
    given = given or {"path": "/a"}
    return Approval("1", SUBJECT, "caller", "files__rm", raw(given), raw(final or given), 1.0, 2.0, lambda: True)


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


HIDDEN_TAIL = {"path": "A" * 2500 + "; rm -rf /"}


def test_a_caller_is_shown_what_it_gave_and_an_operator_what_the_upstream_gets() -> None:
    one = approval({"to": "a"}, {"path": "a", "depth": 1})
    message = decoded(one.question.params)["message"]
    assert message == ('Approve this call? The tool files__rm of the server files would be called with: {"to":"a"}')
    assert one.shown_arguments == '{"path":"a","depth":1}'


def test_what_stands_behind_a_long_beginning_is_shown_to_who_approves() -> None:
    one = approval(HIDDEN_TAIL)
    assert "; rm -rf /" in str(decoded(one.question.params)["message"])
    assert "; rm -rf /" in one.shown_arguments


def test_of_what_is_too_long_for_a_form_a_caller_is_told_how_much_is_left_out() -> None:
    one = approval({"path": "A" * 10_000 + "; rm -rf /"})
    message = str(decoded(one.question.params)["message"])
    assert "[... the middle is left out here, of 10021 characters in all; SHA-256 of all: " in message
    assert message.endswith('; rm -rf /"}')
    assert len(message) < MAX_ASKED + 300
    assert "A" * 10_000 in one.shown_arguments, "an operator is shown the whole"
    assert len(approval({"path": "A" * 2 * MAX_SHOWN}).shown_arguments) < MAX_SHOWN + 300


def test_what_cannot_be_seen_in_arguments_is_shown_as_escapes() -> None:
    one = approval({"path": "/a\u202e\u200b"})
    assert "/a\\u202e\\u200b" in str(decoded(one.question.params)["message"])
    assert one.shown_arguments == '{"path":"/a\\u202e\\u200b"}'


def test_the_webhook_is_told_what_is_to_be_decided() -> None:
    told = {
        "type": "approval", "id": "1", "principal": "alice", "upstream": "files", "tool": "rm",
        "arguments": {"path": "/a"}, "expires": 2.0,
    }  # fmt: skip
    assert decoded(payload(approval(), None)) == told
    assert decoded(payload(approval(), "http://ops/1")) == {**told, "link": "http://ops/1"}
