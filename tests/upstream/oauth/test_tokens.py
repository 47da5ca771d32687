"""Token requests and what their answers are worth."""

from __future__ import annotations

import base64
from urllib.parse import parse_qs

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mcproxy.upstream.oauth.metadata import ServerMetadata
from mcproxy.upstream.oauth.registration import ClientIdentity
from mcproxy.upstream.oauth.tokens import (
    TokenRefused,
    TokenUnavailable,
    client_credentials,
    read_token,
    refreshing,
    token_request,
)

SERVER = ServerMetadata("https://as.example", "https://as.example/token")
RESOURCE = "https://a.example/mcp"


def form_of(client: ClientIdentity) -> tuple[dict[str, str], dict[str, str]]:
    body, headers = token_request(refreshing("r", RESOURCE), client, SERVER, 1000)
    return {name: values[0] for name, values in parse_qs(body.decode()).items()}, headers


def test_every_request_names_its_resource() -> None:
    assert refreshing("r", RESOURCE)["resource"] == RESOURCE
    assert client_credentials(RESOURCE, ("a", "b")) == {
        "grant_type": "client_credentials",
        "resource": RESOURCE,
        "scope": "a b",
    }


def test_a_public_client_names_itself_in_the_form() -> None:
    form, headers = form_of(ClientIdentity("me"))
    assert form["client_id"] == "me"
    assert "Authorization" not in headers


def test_a_secret_goes_in_the_header_or_in_the_form_and_never_in_both() -> None:
    form, headers = form_of(ClientIdentity("m:e", "s&ä", method="client_secret_basic"))
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"m%3Ae:s%26%C3%A4"
    assert "client_secret" not in form
    form, headers = form_of(ClientIdentity("me", "s&", method="client_secret_post"))
    assert (form["client_id"], form["client_secret"]) == ("me", "s&")
    assert "Authorization" not in headers


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (ec.generate_private_key(ec.SECP256R1()), "ES256"),
        (ec.generate_private_key(ec.SECP384R1()), "ES384"),
        (ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
        (rsa.generate_private_key(65537, 2048), "RS256"),
    ],
)
def test_an_assertion_is_signed_with_what_the_key_can(
    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey, algorithm: str
) -> None:
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    form, _ = form_of(ClientIdentity("me", key=pem, method="private_key_jwt"))
    claims = jwt.decode(
        form["client_assertion"],
        key.public_key(),
        [algorithm],
        audience="https://as.example",
        options={"verify_exp": False, "verify_iat": False},
    )
    assert (claims["iss"], claims["sub"], claims["exp"]) == ("me", "me", 1300)


@pytest.mark.parametrize("key", ["", "no key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
@pytest.mark.parametrize("algorithm", [None, "ES256", "RS256"])
def test_a_key_that_cannot_sign_is_told_by_its_setting(key: str, algorithm: str | None) -> None:
    with pytest.raises(TokenRefused, match=r"oauth\.client\.key"):
        form_of(ClientIdentity("me", key=key, algorithm=algorithm, method="private_key_jwt"))


def test_a_token_says_until_when_and_what_for() -> None:
    answer = {"access_token": "t", "token_type": "bearer", "expires_in": 60, "refresh_token": "r", "scope": "a b"}
    token = read_token(200, msgspec.json.encode(answer), 1000)
    assert (token.access, token.expires_at, token.refresh, token.scopes) == ("t", 1060, "r", ("a", "b"))
    assert not token.is_over(1059)
    assert token.is_over(1060)
    assert "t" not in repr(token).replace("Token(expires_at", "")


def test_r65_an_answer_in_the_form_of_a_form_is_read_too() -> None:
    body = b"access_token=t&token_type=Bearer&expires_in=60&scope=a%20b"
    token = read_token(200, body, 1000)
    assert (token.access, token.expires_at, token.scopes) == ("t", 1060, ("a", "b"))


@pytest.mark.parametrize("life", ["60", 60, 60.0])
def test_a_life_may_be_written_as_text(life: object) -> None:
    assert read_token(200, msgspec.json.encode({"access_token": "t", "expires_in": life}), 0).expires_at == 60


@pytest.mark.parametrize("life", [None, "soon", -1, 1e300])
def test_a_life_that_says_nothing_is_none(life: object) -> None:
    assert read_token(200, msgspec.json.encode({"access_token": "t", "expires_in": life}), 0).expires_at is None


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b'{"error": "invalid_grant"}'),
        (503, b"busy"),
        (429, b'{"error": "invalid_grant"}'),
        (400, b'{"error": "temporarily_unavailable"}'),
        (400, b"<html>"),
        (200, b"[" * 200_000),
        (200, b'{"x":' + b"[" * 200_000),
        (200, b"{}"),
        (200, b""),
        (204, b""),
        (404, b'{"message": "no"}'),
    ],
)
def test_r65_what_is_no_refusal_of_the_authorization_server_decides_nothing(status: int, body: bytes) -> None:
    with pytest.raises(TokenUnavailable, match=str(status)):
        read_token(status, body, 0)


def test_a_refusal_says_why_in_the_servers_own_words_and_not_in_many() -> None:
    with pytest.raises(TokenRefused) as refused:
        read_token(400, msgspec.json.encode({"error": "invalid_grant", "error_description": "w" * 999}), 0)
    assert refused.value.code == "invalid_grant"
    assert str(refused.value).startswith("invalid_grant: www")
    assert len(str(refused.value)) <= 300


def test_a_token_of_another_kind_than_bearer_is_not_used() -> None:
    with pytest.raises(TokenRefused, match="mac"):
        read_token(200, b'{"access_token": "t", "token_type": "mac"}', 0)
