"""The twin of `mcproxy.upstream.oauth.device`: what a person is shown, and how often the token is asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcproxy.upstream.oauth.device import (
    MAX_INTERVAL,
    MAX_LIFE,
    DeviceLogin,
    device_request,
    next_interval,
    polling,
    read_device_login,
)
from mcproxy.upstream.oauth.login import LoginFailed
from mcproxy.upstream.oauth.metadata import ServerMetadata
from mcproxy.upstream.oauth.registration import ClientIdentity
from mcproxy.upstream.oauth.tokens import TokenRefused, TokenUnavailable

SERVER = ServerMetadata("https://as.example", "https://as.example/token")
BEGUN = {
    "device_code": "d",
    "user_code": "WDJB-MJHT",
    "verification_uri": "https://as.example/activate",
    "expires_in": 600,
}


def begun(status: int = 200, **changed: Any) -> DeviceLogin:
    body = json.dumps({**BEGUN, **changed}).encode()
    client = ClientIdentity("me")
    return read_device_login(
        status, body, 1000.0, server=SERVER, client=client, resource="https://a.example", scopes=("read",)
    )


def test_what_is_shown_and_what_is_asked_with_come_from_the_answer() -> None:
    login = begun(interval=7, verification_uri_complete="https://as.example/activate?c=1")
    assert (login.user_code, login.verification_uri) == ("WDJB-MJHT", "https://as.example/activate")
    assert login.verification_uri_complete == "https://as.example/activate?c=1"
    assert (login.interval, login.expires_at) == (7, 1600)
    assert polling(login)["device_code"] == "d"
    assert polling(login)["resource"] == device_request("https://a.example", ())["resource"] == "https://a.example"
    assert device_request("https://a.example", ("read", "write"))["scope"] == "read write"


def test_r44_the_device_code_is_not_shown() -> None:
    assert "device" not in repr(begun(device_code="device")).replace("DeviceLogin", "")


@pytest.mark.parametrize(("said", "meant"), [(None, 5), (0, 1), (-1, 1), (1e9, MAX_INTERVAL)])
def test_an_interval_is_held_within_bounds(said: float | None, meant: float) -> None:
    assert (begun() if said is None else begun(interval=said)).interval == meant


def test_a_code_is_not_waited_for_for_ever() -> None:
    assert begun(expires_in=1e12).expires_at == 1000 + MAX_LIFE


@pytest.mark.parametrize(
    "changed",
    [
        {"user_code": ""},
        {"user_code": "\x1b[2J"},
        {"user_code": "x" * 100},
        {"verification_uri": "javascript:alert(1)"},
        {"verification_uri": "https://as.example/\x1b[2J"},
        {"verification_uri": "https:///nowhere"},
        {"verification_uri": "https://[::1/"},
    ],
)
def test_what_would_harm_a_terminal_or_leads_nowhere_is_not_shown(changed: dict[str, Any]) -> None:
    with pytest.raises(LoginFailed, match="cannot be shown"):
        begun(**changed)


def test_a_link_with_the_code_in_it_is_left_out_where_it_cannot_be_shown() -> None:
    assert begun(verification_uri_complete="javascript:alert(1)").verification_uri_complete is None


def test_a_refusal_to_begin_is_told_in_the_servers_words() -> None:
    with pytest.raises(LoginFailed, match=r"https://as\.example refused: invalid_scope"):
        begun(400, error="invalid_scope")
    with pytest.raises(TokenUnavailable, match="HTTP 502"):
        begun(502)
    with pytest.raises(LoginFailed, match="with something invalid"):
        begun(device_code=None)


@pytest.mark.parametrize(
    ("problem", "seconds"),
    [
        (TokenRefused("authorization_pending", ""), 5),
        (TokenUnavailable("", "slow_down"), 10),
        (TokenUnavailable("no answer"), 10),
    ],
)
def test_the_next_request_comes_when_the_server_wants_it(
    problem: TokenRefused | TokenUnavailable, seconds: float
) -> None:
    assert next_interval(begun(), 5, problem, 1100) == seconds


def test_slowing_down_again_and_again_has_a_bound() -> None:
    interval = 5.0
    for _ in range(50):
        interval = next_interval(begun(), interval, TokenUnavailable("", "slow_down"), 1000)
    assert interval == MAX_INTERVAL


@pytest.mark.parametrize(
    ("problem", "now", "says"),
    [
        (TokenRefused("access_denied", ""), 1100, r"denied at https://as\.example"),
        (TokenRefused("expired_token", ""), 1100, "has expired before it was entered"),
        (TokenRefused("authorization_pending", ""), 1598, "has expired before it was entered"),
        (TokenRefused("invalid_client", "invalid_client: unknown"), 1100, "invalid_client: unknown"),
    ],
)
def test_the_end_of_it_is_told(problem: TokenRefused, now: float, says: str) -> None:
    with pytest.raises(LoginFailed, match=says):
        next_interval(begun(), 5, problem, now)
