"""Links to the login page: whose they are, and until when."""

from __future__ import annotations

import pytest

from mcproxy.login.links import CONNECT_PATH, LINK_LIFE, ConnectLink, ConnectLinks, InvalidLink
from mcproxy.sealing import Sealer

NOW = 1_000_000.0


def links(now: float = NOW, secret: bytes = b"secret") -> ConnectLinks:
    return ConnectLinks(Sealer(secret), lambda: now)


def sealed(path: str) -> str:
    assert path.startswith(CONNECT_PATH)
    return path.removeprefix(CONNECT_PATH)


def test_a_link_says_who_logs_in_where_and_shows_none_of_it() -> None:
    path = links().path("web", "ann@example.com", "https://as.example")
    assert links().open(sealed(path)) == ConnectLink("web", "ann@example.com", "https://as.example", NOW + LINK_LIFE)
    assert "ann" not in path
    assert "web" not in path


def test_a_link_expires() -> None:
    path = links().path("web", "ann")
    assert links(NOW + LINK_LIFE - 1).open(sealed(path)).principal == "ann"
    with pytest.raises(InvalidLink, match="expired"):
        links(NOW + LINK_LIFE).open(sealed(path))


@pytest.mark.parametrize("change", [lambda text: text[:-2] + "AA", lambda text: text[1:], lambda text: ""])
def test_a_link_that_was_changed_opens_nothing(change: object) -> None:
    assert callable(change)
    with pytest.raises(InvalidLink, match="not one that"):
        links().open(change(sealed(links().path("web", "ann"))))


def test_a_link_of_another_gateway_opens_nothing() -> None:
    with pytest.raises(InvalidLink, match="not one that"):
        links(secret=b"other").open(sealed(links().path("web", "ann")))
