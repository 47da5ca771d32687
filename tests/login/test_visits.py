"""Visitors of the login pages: their cookie, their forms, and the logins that they have under way."""

from __future__ import annotations

import pytest

from mcproxy.login.links import ConnectLink
from mcproxy.login.visits import (
    LOGIN_LIFE,
    MAX_LOGINS_OF_SESSION,
    SESSION_LIFE,
    MemoryLogins,
    Visitor,
    Visits,
    visitor,
)
from mcproxy.sealing import Sealer
from mcproxy.upstream.oauth.under_way import MAX_LOGINS

NOW = 1_000_000.0


def visits(now: float = NOW) -> Visits:
    return Visits(Sealer(b"secret"), lambda: now)


def sent_back(cookie: str) -> str:
    """What a browser sends of a Set-Cookie header."""
    return f"other=1; {cookie.partition(';')[0]}"


@pytest.mark.parametrize("is_secure", [True, False])
def test_a_session_is_what_its_cookie_says(is_secure: bool) -> None:
    session = visits().begin("ann", is_operator=True)
    cookie = visits().cookie(session, is_secure=is_secure)
    assert visits().session(sent_back(cookie), is_secure=is_secure) == session
    assert visits(NOW + SESSION_LIFE).session(sent_back(cookie), is_secure=is_secure) is None
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert "Path=/;" in cookie
    assert "Domain" not in cookie
    assert (cookie.startswith("__Host-") and "Secure" in cookie) is is_secure
    assert "ann" not in cookie


@pytest.mark.parametrize("cookies", ["", "mcproxy-login=made-up", "mcproxy-login=", "\x00=;", "a" * 9000])
def test_a_made_up_cookie_is_no_session(cookies: str) -> None:
    assert visits().session(cookies, is_secure=False) is None


def test_a_session_over_http_is_none_over_https() -> None:
    cookie = visits().cookie(visits().begin("ann"), is_secure=False)
    assert visits().session(sent_back(cookie), is_secure=True) is None


def test_a_form_is_good_in_its_session_and_for_its_page_alone() -> None:
    here, session, other = visits(), visits().begin(), visits().begin()
    token = here.form_token(session, "page")
    assert here.is_own_form(session, "page", token)
    assert not here.is_own_form(session, "other page", token)
    assert not here.is_own_form(other, "page", token)
    assert not here.is_own_form(session, "page", "é")


@pytest.mark.parametrize(
    ("principal", "shown", "is_operator", "found"),
    [
        ("ann", None, False, Visitor.UNKNOWN),
        ("ann", "ann", False, Visitor.EXPECTED),
        ("ann", "bob", False, Visitor.STRANGER),
        ("ann", "bob", True, Visitor.STRANGER),
        ("", "bob", False, Visitor.STRANGER),
        ("", "bob", True, Visitor.EXPECTED),
    ],
)
def test_a_link_is_for_its_principal_and_the_gateways_own_login_for_operators(
    principal: str, shown: str | None, is_operator: bool, found: Visitor
) -> None:
    assert visitor(ConnectLink("web", principal, None, 0), shown, is_operator=is_operator) is found


@pytest.mark.anyio
async def test_a_state_is_good_once_in_its_session_and_in_time() -> None:
    now = NOW
    logins = MemoryLogins(lambda: now)
    await logins.add("state", "mine", "ann", b"step", LOGIN_LIFE)
    assert await logins.take("guess", "mine") is None
    assert await logins.take("", "mine") is None
    assert await logins.take("state", "other") is None
    assert await logins.take("state", "mine") == b"step"
    assert await logins.take("state", "mine") is None
    await logins.add("late", "mine", "ann", b"step", LOGIN_LIFE)
    now += LOGIN_LIFE
    assert await logins.take("late", "mine") is None


@pytest.mark.anyio
async def test_logins_under_way_are_bounded_for_a_session_and_for_all() -> None:
    logins = MemoryLogins(lambda: NOW)
    for number in range(MAX_LOGINS_OF_SESSION + 3):
        await logins.add(f"one-{number}", "one", "ann", b"step", LOGIN_LIFE)
    assert len(logins) == MAX_LOGINS_OF_SESSION
    for number in range(MAX_LOGINS + 3):
        await logins.add(f"many-{number}", str(number), "ann", b"step", LOGIN_LIFE)
    assert len(logins) == MAX_LOGINS


@pytest.mark.anyio
async def test_many_logins_by_the_links_of_one_principal_push_out_none_of_others() -> None:
    logins = MemoryLogins(lambda: NOW)
    await logins.add("other", "of another", "bob", b"step", LOGIN_LIFE)
    for number in range(MAX_LOGINS + 3):
        await logins.add(f"many-{number}", str(number), "ann", b"step", LOGIN_LIFE)
    assert len(logins) == MAX_LOGINS
    assert await logins.take("many-0", "0") is None
    assert await logins.take("other", "of another") == b"step"
