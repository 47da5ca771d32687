"""Where people are sent to log in."""

from __future__ import annotations

import pytest

from mcproxy.login.links import ConnectLinks
from mcproxy.login.site import GatewaySite
from mcproxy.sealing import Sealer
from mcproxy.settings import Proxy, Settings


@pytest.mark.parametrize(
    ("public", "listening", "base"),
    [
        ("https://gw.example/x", "http://10.0.0.1:8000", "https://gw.example/x"),
        ("http://localhost:9000", "http://127.0.0.1:8000", "http://localhost:9000"),
        ("http://gw.example", "http://127.0.0.1:8000", None),
        (None, "http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        (None, "http://10.0.0.1:8000", None),
        (None, None, None),
    ],
)
def test_people_are_sent_to_pages_over_https_or_on_their_own_machine(
    public: str | None, listening: str | None, base: str | None
) -> None:
    """authorization, Communication Security: the redirect at the end of a login must be one of the two."""
    settings = Settings(proxy=Proxy(public_url=public))
    site = GatewaySite(settings, lambda name: None, ConnectLinks(Sealer(b"secret")))
    site.listening_url = listening
    assert site.base_url == base
