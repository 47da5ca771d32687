"""Which addresses a server's word may make the gateway connect to."""

from __future__ import annotations

import pytest

from mcproxy.egress.addresses import is_address, is_public


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fd00::1",
        "ff0e::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::808:808",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "2001:0:a9fe:a9fe:0:0:f7f7:f7f7",
        "::127.0.0.1",
        "::a9fe:a9fe",
    ],
)
def test_r43_an_address_that_leads_into_a_private_network_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_what_anybody_can_reach_is_public(address: str) -> None:
    assert is_public(address)


def test_a_name_is_no_address() -> None:
    assert [is_address(host) for host in ("example.com", "127.1", "1.2.3.4", "::1")] == [False, False, True, True]
