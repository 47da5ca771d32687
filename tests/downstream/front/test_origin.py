"""Which Host and Origin headers are let in."""

from __future__ import annotations

import pytest

from mcproxy.downstream.front.origin import admits_host, admits_origin, preflight_headers


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:1", "127.9.9.9", "[::1]:8000", "LOCALHOST:80", "a.localhost"]
)
def test_r42_loopback_hosts_are_admitted(host: str) -> None:
    assert admits_host(host, (), ())


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:8000", "[", "10.0.0.1"),
        *("evil.example@localhost", "localhost@evil.example"),
    ],
)
def test_r42_other_hosts_are_not(host: str) -> None:
    assert not admits_host(host, (), ("10.0.0.2",))


@pytest.mark.parametrize("host", ["gw.example", "gw.example:8000"])
def test_r42_a_listed_host_is_admitted_with_and_without_its_port(host: str) -> None:
    assert admits_host(host, ("gw.example",), ())
    assert admits_host(host, ("*",), ())


def test_r42_a_host_listed_with_a_port_is_admitted_with_that_port_alone() -> None:
    assert admits_host("gw.example:1", ("gw.example:1",), ())
    assert not admits_host("gw.example:2", ("gw.example:1",), ())


def test_r42_the_address_that_a_connection_arrived_at_is_admitted() -> None:
    assert admits_host("10.0.0.2:8000", (), ("10.0.0.2",))


@pytest.mark.parametrize(
    ("origin", "admitted"),
    [
        ("http://localhost:3000", True),
        ("https://127.0.0.1", True),
        ("http://[::1]:5", True),
        ("http://gw.example:8000", True),
        ("https://app.example", True),
        ("https://evil.example", False),
        ("https://localhost.evil.example", False),
        ("null", False),
        ("chrome-extension://localhost", False),
        ("http://[", False),
    ],
)
def test_r42_origins_are_loopback_ours_or_listed(origin: str, admitted: bool) -> None:
    assert admits_origin(origin, "gw.example:8000", ("https://app.example",)) is admitted


def test_r57_parameter_headers_are_allowed_as_they_are_asked_for_and_others_are_not() -> None:
    allowed = preflight_headers("content-type, mcp-param-region, x-evil")["Access-Control-Allow-Headers"]
    assert "mcp-param-region" in allowed
    assert "x-evil" not in allowed


@pytest.mark.parametrize("allowed", [(), ("*",)])
def test_r54_names_that_are_longer_than_any_host_are_refused_and_not_remembered(allowed: tuple[str, ...]) -> None:
    assert admits_host("a." * 120 + "localhost", allowed)
    assert admits_origin("http://" + "a." * 120 + "localhost", "", allowed)
    assert not admits_host("a." * 400 + "localhost", allowed)
    assert not admits_origin("http://" + "a." * 400 + "localhost", "", allowed)
    assert not admits_origin("http://localhost/" + "a" * 600, "", allowed)


def test_r54_of_a_very_long_list_of_headers_none_is_sent_back() -> None:
    assert "mcp-param-a1" in preflight_headers("mcp-param-a1, x")["Access-Control-Allow-Headers"]
    longest = preflight_headers("mcp-param-a, " * 4000)["Access-Control-Allow-Headers"]
    assert longest == preflight_headers(None)["Access-Control-Allow-Headers"]
