"""One login of a person: what the browser is sent to, and what its redirect is worth."""

from __future__ import annotations

import base64
import hashlib
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from mcproxy.upstream.oauth.login import Login, LoginFailed, authorization_url, begin, code_of
from mcproxy.upstream.oauth.metadata import ServerMetadata
from mcproxy.upstream.oauth.registration import ClientIdentity

ISSUER = "https://as.example"
SERVER = ServerMetadata(
    ISSUER,
    f"{ISSUER}/token",
    authorization_endpoint=f"{ISSUER}/authorize?tenant=7",
    code_challenge_methods_supported=("S256",),
)
CLIENT = ClientIdentity("me")


def begun(server: ServerMetadata = SERVER, scopes: tuple[str, ...] = ("read",)) -> Login:
    return begin(
        server,
        CLIENT,
        redirect_uri="http://127.0.0.1:1/callback",
        resource="https://a.example/mcp",
        scopes=scopes,
        randomness=lambda count: bytes(range(count)),
    )


def test_the_browser_is_sent_with_pkce_state_and_resource() -> None:
    login = begun()
    parts = urlsplit(authorization_url(login, SERVER))
    asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
    digest = hashlib.sha256(login.verifier.encode()).digest()
    assert parts.path == "/authorize"
    assert asked == {
        "tenant": "7",
        "response_type": "code",
        "client_id": "me",
        "redirect_uri": "http://127.0.0.1:1/callback",
        "state": login.state,
        "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
        "code_challenge_method": "S256",
        "resource": "https://a.example/mcp",
        "scope": "read",
    }
    assert 43 <= len(login.verifier) <= 128


def test_a_login_that_is_to_last_asks_for_consent() -> None:
    asked = parse_qs(urlsplit(authorization_url(begun(scopes=("offline_access",)), SERVER)).query)
    assert asked["prompt"] == ["consent"]


@pytest.mark.parametrize("methods", [None, (), ("plain",)])
def test_a_server_that_does_not_say_that_it_has_pkce_is_not_used(methods: tuple[str, ...] | None) -> None:
    with pytest.raises(LoginFailed, match="PKCE"):
        begun(msgspec.structs.replace(SERVER, code_challenge_methods_supported=methods))


def test_a_server_without_an_authorization_endpoint_is_not_used() -> None:
    with pytest.raises(LoginFailed, match="no authorization endpoint"):
        begun(msgspec.structs.replace(SERVER, authorization_endpoint=None))


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://as.example/authorize",
        "file:///usr/bin/program",
        "javascript:alert(1)",
        "vscode://extension/run",
        "--utility-cmd-prefix=program",
        "https://as.example/\x1b[2J",
        "https:///nowhere",
        "https://[::1/",
        "",
    ],
)
def test_nobody_is_sent_to_an_authorization_endpoint_that_is_no_https_url(endpoint: str) -> None:
    with pytest.raises(LoginFailed, match="no https URL"):
        begun(msgspec.structs.replace(SERVER, authorization_endpoint=endpoint))


def test_an_authorization_endpoint_on_loopback_needs_no_tls() -> None:
    server = msgspec.structs.replace(SERVER, authorization_endpoint="http://127.0.0.1:1/authorize")
    assert authorization_url(begun(server), server).startswith("http://127.0.0.1:1/authorize?")


SUPPORTED = msgspec.structs.replace(SERVER, authorization_response_iss_parameter_supported=True)


@pytest.mark.parametrize(
    ("server", "iss", "accepted"),
    [
        (SUPPORTED, ISSUER, True),
        (SUPPORTED, None, False),
        (SERVER, ISSUER, True),
        (SERVER, None, True),
        (SERVER, "https://evil.example", False),
        (SUPPORTED, "https://evil.example", False),
        (SUPPORTED, f"{ISSUER}/", False),
        (SERVER, f"{ISSUER}/", True),
        (msgspec.structs.replace(SUPPORTED, is_spelled_twice=True), f"{ISSUER}/", True),
        (SERVER, f"{ISSUER}/x", False),
        (SUPPORTED, "https://AS.example", False),
        (SUPPORTED, f"{ISSUER}:443", False),
        (SUPPORTED, "", False),
    ],
)
def test_r69_an_answer_is_judged_by_the_issuer_that_was_recorded(
    server: ServerMetadata, iss: str | None, *, accepted: bool
) -> None:
    login = begun(server)
    answer = {"state": login.state, "code": "c"} | ({} if iss is None else {"iss": iss})
    if accepted:
        assert code_of(login, answer) == "c"
        return
    with pytest.raises(LoginFailed):
        code_of(login, answer)


def test_r69_of_an_error_from_another_issuer_nothing_is_shown() -> None:
    login = begun()
    answer = {"state": login.state, "iss": "https://evil.example", "error": "call-me", "error_description": "0900-1"}
    with pytest.raises(LoginFailed) as failed:
        code_of(login, answer)
    assert "0900" not in str(failed.value)
    assert "call-me" not in str(failed.value)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"state": "another", "code": "c"}, "no login that was begun here"),
        ({"code": "c"}, "no login that was begun here"),
        ({"state": "", "error": "access_denied"}, "no login that was begun here"),
        ({"error": "access_denied"}, "refused: access_denied"),
        ({"error": "x", "error_description": "w" * 1000}, "refused: " + "w" * 300),
        ({}, "neither a code nor an error"),
    ],
)
def test_r68_what_does_not_answer_this_login_brings_no_code(answer: dict[str, str], says: str) -> None:
    login = begun()
    answer = answer if "state" in answer or "code" in answer else {"state": login.state, **answer}
    with pytest.raises(LoginFailed) as failed:
        code_of(login, answer)
    assert str(failed.value).endswith(says) or says in str(failed.value)
