"""Who the gateway is to an authorization server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mcproxy.settings.upstreams.oauth import OAuthClient
from mcproxy.upstream.oauth.metadata import ServerMetadata
from mcproxy.upstream.oauth.registration import (
    MAX_SCOPES,
    NO_REDIRECT,
    CannotRegister,
    by_document,
    configured,
    document,
    document_url,
    read_registration,
    registration_request,
    scopes_to_register,
)

LOOPBACK = "http://127.0.0.1:5/callback"
WEB = "https://gateway.example/oauth/callback"


def server(**more: Any) -> ServerMetadata:
    return ServerMetadata("https://as.example", "https://as.example/token", **more)


@pytest.mark.parametrize(
    ("client", "supported", "method"),
    [
        (OAuthClient(id="me"), None, "none"),
        (OAuthClient(id="me", secret="s"), None, "client_secret_basic"),
        (OAuthClient(id="me", secret="s"), ("client_secret_post",), "client_secret_post"),
        (OAuthClient(id="me", secret="s"), ("client_secret_post", "client_secret_basic"), "client_secret_basic"),
        (OAuthClient(id="me", secret="s"), ("private_key_jwt",), "client_secret_basic"),
        (OAuthClient(id="me", key="pem"), ("private_key_jwt",), "private_key_jwt"),
    ],
)
def test_a_configured_client_proves_itself_as_the_server_has_it(
    client: OAuthClient, supported: tuple[str, ...] | None, method: str
) -> None:
    found = configured(client, server(token_endpoint_auth_methods_supported=supported))
    assert found is not None
    assert found.method == method


def test_without_an_id_nothing_is_configured() -> None:
    assert configured(OAuthClient(), server()) is None


@pytest.mark.parametrize("url", [None, "http://gateway.example/client.json", "https://gateway.example/"])
def test_a_document_needs_an_https_url_with_a_path(url: str | None) -> None:
    assert by_document(url, server(client_id_metadata_document_supported=True), WEB) is None


def test_the_document_is_the_identity_where_the_server_takes_such() -> None:
    url = "https://gateway.example/oauth/client.json"
    found = by_document(url, server(client_id_metadata_document_supported=True), WEB)
    assert found is not None
    assert found.id == url
    assert by_document(url, server(), WEB) is None


def test_the_gateways_own_document_is_named_by_its_url_and_holds_every_redirect() -> None:
    published = document("https://gateway.example/base")
    assert published is not None
    assert published["client_id"] == document_url("https://gateway.example/base")
    assert published["client_id"] == "https://gateway.example/base/oauth/client.json"
    assert published["redirect_uris"] == [
        "https://gateway.example/base/oauth/callback",
        "http://127.0.0.1/callback",
        "http://[::1]/callback",
    ]
    assert published["token_endpoint_auth_method"] == "none"
    assert published["application_type"] == "native", "or redirects to loopback are refused"


@pytest.mark.parametrize("public_url", [None, "http://gateway.example"])
def test_a_gateway_without_an_https_url_of_its_own_publishes_no_document(public_url: str | None) -> None:
    assert document(public_url) is None


def test_a_client_that_logs_in_by_code_is_registered_without_a_redirect() -> None:
    wanted = registration_request(server(registration_endpoint="https://as.example/register"), NO_REDIRECT, ())
    assert wanted["redirect_uris"] == wanted["response_types"] == []
    assert "urn:ietf:params:oauth:grant-type:device_code" in str(wanted["grant_types"])


@pytest.mark.parametrize(("redirect", "kind"), [(LOOPBACK, "native"), (WEB, "web")])
def test_a_registration_says_of_what_kind_the_application_is(redirect: str, kind: str) -> None:
    wanted = registration_request(server(registration_endpoint="https://as.example/register"), redirect, ("a", "b"))
    assert wanted["application_type"] == kind
    assert wanted["redirect_uris"] == [redirect]
    assert wanted["scope"] == "a b"
    assert "refresh_token" in str(wanted["grant_types"])


def test_a_server_without_registration_is_reported_with_the_redirect_to_register() -> None:
    with pytest.raises(CannotRegister, match=r"oauth\.client\.id") as failed:
        registration_request(server(), WEB, ())
    assert WEB in str(failed.value)


def test_a_registration_is_good_for_its_redirect_and_until_its_secret_ends() -> None:
    answer = {"client_id": "c", "client_secret": "s", "client_secret_expires_at": 100}
    client = read_registration(msgspec.json.encode(answer), server(), LOOPBACK, ("a", "b"))
    assert (client.id, client.secret, client.method) == ("c", "s", "client_secret_basic")
    assert client.serves(LOOPBACK, ("b", "a"), 99)
    assert not client.serves(LOOPBACK, ("b", "a"), 100)
    assert not client.serves(WEB, ("b", "a"), 0)


def test_a_registration_is_good_for_its_scopes_alone() -> None:
    client = read_registration(b'{"client_id": "c"}', server(), LOOPBACK, ("a", "b"))
    assert client.serves(LOOPBACK, (), 0)
    assert not client.serves(LOOPBACK, ("a", "c"), 0)
    assert scopes_to_register(client, ("a", "c")) == [("a", "c", "b"), ("a", "c"), ()]
    assert scopes_to_register(None, ("a",)) == [("a",), ()]
    assert scopes_to_register(None, ()) == [()]
    many = tuple(str(number) for number in range(MAX_SCOPES))
    assert scopes_to_register(client, many) == [many, ()]


@pytest.mark.parametrize("answer", [b"", b"{}", b'{"client_id": 7}', b"\xff"])
def test_an_answer_without_an_identity_is_none(answer: bytes) -> None:
    with pytest.raises(CannotRegister, match=r"as\.example"):
        read_registration(answer, server(), LOOPBACK, ())
