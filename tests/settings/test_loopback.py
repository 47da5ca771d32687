"""Which host names and addresses mean this very machine."""

from __future__ import annotations

import pytest

from mcproxy.settings.admin import Admin
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


@pytest.mark.parametrize("url", ["https://ops.example/gw", "http://127.0.0.1:9000", "http://[::1]/"])
def test_a_url_is_safe_over_https_or_on_loopback(url: str) -> None:
    assert Admin(public_url=url).public_url == url


@pytest.mark.parametrize(
    "url", ["http://ops.example", "ftp://ops.example", "https://", "https://me:pw@ops.example", "x"]
)
def test_a_url_that_others_could_listen_to_or_that_names_no_host_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="should be"):
        Admin(public_url=url)
