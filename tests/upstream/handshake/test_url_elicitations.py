"""Whom it is told that a visit is over."""

from __future__ import annotations

from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.protocol.jsonrpc import URL_ELICITATION_REQUIRED, ErrorObject, Params, raw
from mcproxy.upstream.handshake.server_requests import UrlElicitations
from tests.upstream.support import FakeListener


def listener() -> FakeListener:
    return FakeListener(Caller(ANONYMOUS, "2025-11-25"), None)


def visit(id: object) -> Params:
    return {"elicitationId": raw(id)}


def test_an_elicitation_is_complete_once_and_for_the_client_that_was_asked() -> None:
    url_elicitations, one, two = UrlElicitations(2), listener(), listener()
    url_elicitations.note(visit("a"), one)
    url_elicitations.note(visit("b"), two)
    assert url_elicitations.complete(visit("b")) is two
    assert url_elicitations.complete(visit("b")) is None
    assert url_elicitations.complete(visit("a")) is one


def test_the_oldest_give_way() -> None:
    url_elicitations, who = UrlElicitations(2), listener()
    for id in ("a", "b", "a", "c"):
        url_elicitations.note(visit(id), who)
    assert [url_elicitations.complete(visit(id)) for id in ("a", "b", "c")] == [who, None, who]


def test_an_error_may_ask_for_url_elicitations() -> None:
    url_elicitations, who = UrlElicitations(2), listener()
    data = raw({"elicitations": [{"mode": "url", "elicitationId": "a"}, {"elicitationId": 1}]})
    url_elicitations.note_required(ErrorObject(URL_ELICITATION_REQUIRED, "visit", data), who)
    url_elicitations.note_required(ErrorObject(URL_ELICITATION_REQUIRED, "visit", raw([1])), who)
    url_elicitations.note_required(ErrorObject(-1, "other", raw({"elicitations": [{"elicitationId": "b"}]})), who)
    assert url_elicitations.complete(visit("a")) is who
    assert url_elicitations.complete(visit("b")) is None


def test_an_elicitation_without_an_id_or_a_listener_is_not_kept() -> None:
    url_elicitations = UrlElicitations(2)
    url_elicitations.note({}, listener())
    url_elicitations.note(visit("a"), None)
    assert url_elicitations.complete({}) is None
    assert url_elicitations.complete(visit("a")) is None
