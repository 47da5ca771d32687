"""Metadata of protected resources (RFC 9728) and authorization servers (RFC 8414): where to find it, and its validity.

Pure: lists the URLs to try, in order, and checks the documents (basic/authorization, "Authorization Server Discovery").
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from mcproxy.upstream.oauth.challenge import BearerChallenge

_RESOURCE: Final = "/.well-known/oauth-protected-resource"
_SERVER: Final = "/.well-known/oauth-authorization-server"
_OPENID: Final = "/.well-known/openid-configuration"

S256: Final = "S256"


class InvalidMetadata(Exception):
    """A document that must not be used. The text says whose it is and what is wrong with it."""


class ResourceMetadata(msgspec.Struct, frozen=True):
    """A protected resource's metadata (RFC 9728, section 2), as far as a client uses it."""

    resource: str
    authorization_servers: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] | None = None


class ServerMetadata(msgspec.Struct, frozen=True):
    """An authorization server's metadata (RFC 8414, section 2), as far as a client uses it."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    device_authorization_endpoint: str | None = None
    scopes_supported: tuple[str, ...] | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    client_id_metadata_document_supported: bool = False
    authorization_response_iss_parameter_supported: bool = False


def resource_of(url: str) -> str:
    """The canonical URI of the server at `url`, for the `resource` of every request (RFC 8707, section 2)."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    if ":" in host:
        host = f"[{host}]"
    default = {"https": 443, "http": 80}.get(parts.scheme.lower())
    port = "" if parts.port in {None, default} else f":{parts.port}"
    path = "" if parts.path == "/" else parts.path
    return urlunsplit((parts.scheme.lower(), host + port, path, parts.query, ""))


def resource_metadata_urls(url: str, challenge: BearerChallenge | None) -> list[str]:
    """URLs at which the metadata of the server at `url` may be, in the order to try."""
    if challenge is not None and challenge.resource_metadata is not None:
        return [challenge.resource_metadata]
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    found = [_at(url, _RESOURCE + path), _at(url, _RESOURCE)]
    return list(dict.fromkeys(found))


def read_resource_metadata(document: bytes, url: str) -> ResourceMetadata:
    """The metadata of the server at `url`. Raises InvalidMetadata if it is another's (RFC 9728, section 3.3)."""
    try:
        read = msgspec.json.decode(document, type=ResourceMetadata)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMetadata(f"its protected resource metadata cannot be read: {error}") from error
    if not _covers(read.resource, url):
        raise InvalidMetadata(f"its protected resource metadata is that of {read.resource[:200]!r}, not of {url}")
    if not read.authorization_servers:
        raise InvalidMetadata("its protected resource metadata names no authorization server")
    return read


def _covers(resource: str, url: str) -> bool:
    """Whether a resource is the one at `url` or contains it: same origin, and its path is a prefix."""
    try:
        own, asked = urlsplit(resource_of(resource)), urlsplit(resource_of(url))
    except ValueError:
        return False
    if (own.scheme, own.netloc) != (asked.scheme, asked.netloc):
        return False
    whole = own.path.rstrip("/")
    return asked.path.rstrip("/") == whole or asked.path.startswith(whole + "/")


def server_metadata_urls(issuer: str) -> list[str]:
    """URLs at which an issuer's metadata may be, in the order to try. Raises InvalidMetadata if it is no URL."""
    try:
        path = urlsplit(issuer).path.rstrip("/")
    except ValueError as error:
        raise InvalidMetadata(f"the issuer {issuer[:200]!r} is no URL") from error
    if not path:
        return [_at(issuer, _SERVER), _at(issuer, _OPENID)]
    return [_at(issuer, _SERVER + path), _at(issuer, _OPENID + path), _at(issuer, path + _OPENID)]


def read_server_metadata(document: bytes, issuer: str, *, is_origin: bool = False) -> ServerMetadata:
    """The metadata of an issuer. Raises InvalidMetadata where it is another's (RFC 8414, section 3.3).

    `is_origin` says that the issuer is assumed (`origin_as_issuer`): its own name may end with a slash.
    """
    try:
        read = msgspec.json.decode(document, type=ServerMetadata)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMetadata(f"the metadata of issuer {issuer} cannot be read: {error}") from error
    if read.issuer != issuer and not (is_origin and read.issuer == f"{issuer}/"):
        raise InvalidMetadata(f"the metadata found for issuer {issuer} is that of {read.issuer[:200]!r}")
    return read


def origin_as_issuer(url: str) -> str:
    """The authorization server of a server that names none: itself, by its origin (2025-03-26, authorization)."""
    return _at(url, "")


def endpoints_by_default(issuer: str) -> ServerMetadata:
    """The default endpoints of an authorization server of 2025-03-26 without metadata."""
    return ServerMetadata(
        issuer=issuer,
        token_endpoint=_at(issuer, "/token"),
        authorization_endpoint=_at(issuer, "/authorize"),
        registration_endpoint=_at(issuer, "/register"),
        code_challenge_methods_supported=(S256,),
    )


def scopes_to_ask(
    challenge: BearerChallenge | None, resource: ResourceMetadata | None, server: ServerMetadata
) -> tuple[str, ...]:
    """The scopes to request (Scope Selection Strategy): the challenge's, else all the resource supports, else none.

    `offline_access` is added if the authorization server lists it: some issue no refresh token without it.
    """
    scopes: tuple[str, ...] = ()
    if challenge is not None and challenge.scopes:
        scopes = challenge.scopes
    elif resource is not None and resource.scopes_supported:
        scopes = resource.scopes_supported
    if "offline_access" in (server.scopes_supported or ()) and "offline_access" not in scopes:
        scopes = (*scopes, "offline_access")
    return scopes


def _at(url: str, path: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))
