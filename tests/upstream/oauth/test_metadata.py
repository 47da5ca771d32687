"""Where metadata is looked for, and which documents must not be used."""

from __future__ import annotations

import msgspec
import pytest

from mcproxy.upstream.oauth.challenge import BearerChallenge
from mcproxy.upstream.oauth.metadata import (
    InvalidMetadata,
    ResourceMetadata,
    ServerMetadata,
    read_resource_metadata,
    read_server_metadata,
    resource_metadata_urls,
    resource_of,
    scopes_to_ask,
    server_metadata_urls,
)


@pytest.mark.parametrize(
    ("url", "resource"),
    [
        ("https://MCP.example.com/mcp", "https://mcp.example.com/mcp"),
        ("HTTPS://mcp.example.com/", "https://mcp.example.com"),
        ("https://mcp.example.com:443/mcp", "https://mcp.example.com/mcp"),
        ("https://mcp.example.com:8443/mcp/", "https://mcp.example.com:8443/mcp/"),
        ("http://[::1]:8000/mcp", "http://[::1]:8000/mcp"),
        ("https://user:secret@mcp.example.com/mcp#part", "https://mcp.example.com/mcp"),
    ],
)
def test_the_canonical_uri_holds_no_default_port_no_credentials_and_no_fragment(url: str, resource: str) -> None:
    assert resource_of(url) == resource


def test_the_challenge_says_where_the_metadata_is_else_the_path_comes_before_the_root() -> None:
    url = "https://a.example/team/mcp"
    named = resource_metadata_urls(url, BearerChallenge("https://a.example/here"))
    assert named == ["https://a.example/here", *resource_metadata_urls(url, None)]
    assert resource_metadata_urls(url, BearerChallenge("../here"))[0] == "https://a.example/here"
    assert resource_metadata_urls(url, None) == [
        "https://a.example/.well-known/oauth-protected-resource/team/mcp",
        "https://a.example/.well-known/oauth-protected-resource",
    ]
    assert resource_metadata_urls("https://a.example/", BearerChallenge()) == [
        "https://a.example/.well-known/oauth-protected-resource"
    ]


def test_an_issuer_with_a_path_has_five_places_and_one_without_has_two() -> None:
    at_root = (
        "https://a.example/.well-known/oauth-authorization-server",
        "https://a.example/.well-known/openid-configuration",
    )
    assert server_metadata_urls("https://a.example/tenant1") == (
        "https://a.example/.well-known/oauth-authorization-server/tenant1",
        "https://a.example/.well-known/openid-configuration/tenant1",
        "https://a.example/tenant1/.well-known/openid-configuration",
        *at_root,
    )
    assert server_metadata_urls("https://a.example") == at_root


def test_an_issuer_that_is_no_url_is_not_asked() -> None:
    with pytest.raises(InvalidMetadata, match="is no URL"):
        server_metadata_urls("https://[broken")


def resource_document(resource: str, servers: tuple[str, ...] = ("https://as.example",)) -> bytes:
    return msgspec.json.encode({"resource": resource, "authorization_servers": servers})


@pytest.mark.parametrize(
    "resource", ["https://a.example/mcp", "https://a.example", "https://a.example/", "https://A.example:443/mcp"]
)
def test_r69_metadata_of_the_server_or_of_what_holds_it_is_used(resource: str) -> None:
    read = read_resource_metadata(resource_document(resource), "https://a.example/mcp")
    assert read.authorization_servers == ("https://as.example",)


@pytest.mark.parametrize(
    "document",
    [
        resource_document("https://b.example/mcp"),
        resource_document("http://a.example/mcp"),
        resource_document("https://a.example/mc"),
        resource_document("https://a.example/mcp/deeper"),
        resource_document("https://a.example:8443/mcp"),
        resource_document("https://a.example/mcp", ()),
        resource_document("https://[broken"),
        b"{}",
        b"[1]",
        b"\xff\xfe",
        b'{"x":' + b"[" * 200_000,
        b'{"resource": 7}',
    ],
)
def test_r69_metadata_of_another_resource_or_of_none_is_not_used(document: bytes) -> None:
    with pytest.raises(InvalidMetadata):
        read_resource_metadata(document, "https://a.example/mcp")


@pytest.mark.parametrize(
    "issuer", ["https://evil.example", "https://as.example/x", "https://as.example//", "https://AS.example"]
)
def test_r69_metadata_of_another_issuer_is_not_used_however_alike_it_is(issuer: str) -> None:
    document = msgspec.json.encode({"issuer": issuer, "token_endpoint": "https://as.example/token"})
    with pytest.raises(InvalidMetadata, match=r"https://as\.example"):
        read_server_metadata(document, ["https://as.example"])


@pytest.mark.parametrize("issuer", ["https://as.example", "https://as.example/"])
def test_an_issuer_is_the_same_with_the_slash_of_an_empty_path(issuer: str) -> None:
    document = msgspec.json.encode({"issuer": issuer, "token_endpoint": "https://as.example/token"})
    assert read_server_metadata(document, ["https://as.example"]).issuer == issuer
    assert read_server_metadata(document, ["https://as.example/"]).issuer == issuer


SERVER = ServerMetadata("https://as.example", "https://as.example/token")
OFFLINE = msgspec.structs.replace(SERVER, scopes_supported=("a", "offline_access"))
RESOURCE = ResourceMetadata("https://a.example", ("https://as.example",), ("read", "write"))


@pytest.mark.parametrize(
    ("challenge", "resource", "server", "scopes"),
    [
        (BearerChallenge(scopes=("one",)), RESOURCE, SERVER, ("one",)),
        (BearerChallenge(), RESOURCE, SERVER, ("read", "write")),
        (None, msgspec.structs.replace(RESOURCE, scopes_supported=None), SERVER, ()),
        (None, RESOURCE, OFFLINE, ("read", "write", "offline_access")),
    ],
)
def test_scopes_are_the_challenges_else_the_resources_else_none(
    challenge: BearerChallenge | None, resource: ResourceMetadata, server: ServerMetadata, scopes: tuple[str, ...]
) -> None:
    assert scopes_to_ask(challenge, resource, server) == scopes
