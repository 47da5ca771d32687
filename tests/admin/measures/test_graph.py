"""The picture of clients and servers: what is drawn, in which order, and that nothing from outside is markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from mcproxy.admin.measures.graph import MAX_CLIENTS, MAX_SERVERS, MAX_STROKE, ClientNode, ServerNode, graph

HOSTILE = "<script>alert(1)</script>\"'&"


def drawn(clients: list[ClientNode], servers: list[ServerNode]) -> ElementTree.Element:
    return ElementTree.fromstring(graph(clients, servers))


def texts(picture: ElementTree.Element) -> list[str]:
    return ["".join(each.itertext()) for each in picture.iter("text")]


def test_each_client_and_server_has_its_name_what_is_said_of_it_and_a_line() -> None:
    picture = drawn([ClientNode("cursor", 2)], [ServerNode("git", "ready", True, 5)])
    assert texts(picture) == ["mcproxy", "cursor", "2 open", "git", "ready, 5 calls"]
    assert len(list(picture.iter("path"))) == 2
    assert picture.get("aria-label") == "2 open sessions and streams, 1 of 1 servers ready"


def test_servers_in_trouble_come_first_and_their_lines_are_marked() -> None:
    picture = drawn([], [ServerNode("well", "ready", True, 9), ServerNode("ill", "backing off", False, 0)])
    assert texts(picture)[1:] == ["ill", "backing off, 0 calls", "well", "ready, 9 calls"]
    assert [path.get("class") for path in picture.iter("path")] == ["link lost", "link"]


def test_a_busier_server_has_a_thicker_line_within_bounds() -> None:
    servers = [ServerNode(str(calls), "ready", True, calls) for calls in (10**9, 100, 1, 0)]
    widths = [float(path.get("stroke-width") or 0) for path in drawn([], servers).iter("path")]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == MAX_STROKE
    assert widths[-1] == 1


def test_more_than_fit_are_counted() -> None:
    clients = [ClientNode(f"c{number}", 1) for number in range(MAX_CLIENTS + 3)]
    servers = [ServerNode(f"s{number}", "ready", True, 0) for number in range(MAX_SERVERS + 2)]
    said = texts(drawn(clients, servers))
    assert [text for text in said if text.startswith("and ")] == ["and 3 more", "and 2 more"]
    assert len(said) == 1 + 2 * (MAX_CLIENTS + MAX_SERVERS) + 2


@pytest.mark.parametrize("count", [0, 1, 7, MAX_SERVERS + 1])
def test_nothing_is_drawn_outside_of_the_picture(count: int) -> None:
    picture = drawn([ClientNode("c", 1)], [ServerNode(str(n), "ready", True, n) for n in range(count)])
    height = float((picture.get("viewBox") or "").split()[3])
    heights = [float(text.get("y") or 0) for text in picture.iter("text")]
    assert min(heights) > 0
    assert max(heights) < height


def test_names_are_text_and_long_ones_are_cut() -> None:
    picture = graph([ClientNode(HOSTILE, 1)], [ServerNode("x" * 1000, HOSTILE, False, 0)])
    assert "<script>" not in picture
    assert re.search(r"x{25}…", picture)
    assert "x" * 26 not in picture
