"""The twin of `mcproxy.access.approval_links`."""

from __future__ import annotations

import pytest

from mcproxy.access.approval_links import ApprovalLinks
from mcproxy.sealing import Sealer


@pytest.fixture
def links() -> ApprovalLinks:
    made = ApprovalLinks(Sealer(b"secret"))
    made.base = "https://ops.example/gw/"
    return made


def token(link: str | None) -> str:
    assert link is not None
    return link.rpartition("/")[2]


def test_a_link_is_below_the_operators_listener_and_leads_back_to_its_approval(links: ApprovalLinks) -> None:
    link = links.link("one")
    assert link is not None
    assert link.startswith("https://ops.example/gw/approvals/")
    assert links.opened(token(link)) == "one"


def test_without_a_listener_there_is_no_link() -> None:
    assert ApprovalLinks(Sealer(b"secret")).link("one") is None


def test_what_another_gateway_sealed_or_what_is_sealed_for_another_purpose_opens_nothing(links: ApprovalLinks) -> None:
    other = ApprovalLinks(Sealer(b"another"))
    other.base = "https://ops.example"
    for strange in (token(other.link("one")), Sealer(b"secret").seal("requestState", b"one"), "one", ""):
        assert links.opened(strange) is None


def test_a_link_of_another_replica_opens_and_is_told_from_its_own() -> None:
    first, second = (ApprovalLinks(Sealer(b"secret", label=label)) for label in ("a-1", "a-2"))
    first.base = second.base = "https://ops.example"
    found = token(first.link("one"))
    assert first.opened(found) == second.opened(found) == "one"
    assert (first.is_of_another_replica(found), second.is_of_another_replica(found)) == (False, True)
