"""Which host names and addresses mean this very machine."""

from __future__ import annotations

import pytest

from mcproxy.settings.loopback import is_loopback


@pytest.mark.parametrize("host", ["localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"])
def test_loopback_names_and_addresses_are_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "::", "[::]", "localhost.example", "127.0.0.1.example", "notlocalhost", "[", "*"],
)
def test_other_names_and_addresses_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)
