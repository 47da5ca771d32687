"""Metadata of protected resources (RFC 9728) and authorization servers (RFC 8414): where to find it, and its validity.

Pure: lists the URLs to try, in order, and checks the documents (basic/authorization, "Authorization Server Discovery").
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from mcproxy.access.oauth.issuers import metadata_urls
from mcproxy.upstream.oauth.challenge import BearerChallenge
from mcproxy.upstream.oauth.leniency import (
    Members,
    Note,
    json_object,
    noted_issuer,
    resource_metadata_url,
    text,
    texts,
    unnoted,
)

_RESOURCE: Final = "/.well-known/oauth-protected-resource"

S256: Final = "S256"


class InvalidMetadata(Exception):
    """A document that must not be used. The text says whose it is and what is wrong with it."""


class OthersMetadata(InvalidMetadata):
    """Valid metadata of another resource or issuer than the one that was asked for."""


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
    is_spelled_twice: bool = False
    """Whether the issuer was named with a slash at its end and names itself without, or the reverse."""


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


def resource_metadata_urls(url: str, challenge: BearerChallenge | None, note: Note = unnoted) -> list[str]:
    """URLs at which the metadata of the server at `url` may be, in the order to try: the challenge's comes first."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    named = None if challenge is None else challenge.resource_metadata
    first = [] if named is None else [resource_metadata_url(named, url, note)]
    return list(dict.fromkeys((*first, _at(url, _RESOURCE + path), _at(url, _RESOURCE))))


def read_resource_metadata(document: bytes, url: str, note: Note = unnoted) -> ResourceMetadata:
    """The metadata of the server at `url`.

    Raises InvalidMetadata if it is none, and OthersMetadata if it is another's (RFC 9728, section 3.3).
    """
    members = _members(document, note)
    resource = text(members.get("resource"))
    if resource is None:
        raise InvalidMetadata("it names no resource")
    if not _covers(resource, url):
        raise OthersMetadata(f"it is the metadata of {resource[:200]!r}, not of {url}")
    servers = texts(members.get("authorization_servers"), note)
    if not servers:
        raise InvalidMetadata("it names no authorization server")
    return ResourceMetadata(resource, servers, texts(members.get("scopes_supported"), note))


def _members(document: bytes, note: Note) -> Members:
    """The members of a metadata document. Raises InvalidMetadata if it is none."""
    members = json_object(document, note)
    if members is None:
        what = "a web page" if document.lstrip()[:1] == b"<" else "no JSON object"
        raise InvalidMetadata(f"it is {what}")
    return members


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


def server_metadata_urls(issuer: str) -> tuple[str, ...]:
    """URLs at which an issuer's metadata may be, in the order to try. Raises InvalidMetadata if it is no URL."""
    try:
        return metadata_urls(issuer)
    except ValueError as error:
        raise InvalidMetadata(f"the issuer {issuer[:200]!r} is no URL") from error


def read_server_metadata(document: bytes, issuers: Collection[str], note: Note = unnoted) -> ServerMetadata:
    """The metadata of one of `issuers`.

    Raises InvalidMetadata if it is none, and OthersMetadata if it is another's (RFC 8414, section 3.3).
    """
    members = _members(document, note)
    issuer, token_endpoint = text(members.get("issuer")), text(members.get("token_endpoint"))
    if issuer is None or token_endpoint is None:
        raise InvalidMetadata("it has no issuer, or no token_endpoint")
    if not any(noted_issuer(expected, issuer, note) for expected in issuers):
        raise OthersMetadata(
            f"it is the metadata of issuer {issuer[:200]!r}, not of {' or '.join(issuers)}; if that is meant, set "
            "oauth.issuer to it"
        )
    return ServerMetadata(
        issuer,
        token_endpoint,
        authorization_endpoint=text(members.get("authorization_endpoint")),
        registration_endpoint=text(members.get("registration_endpoint")),
        revocation_endpoint=text(members.get("revocation_endpoint")),
        device_authorization_endpoint=text(members.get("device_authorization_endpoint")),
        scopes_supported=texts(members.get("scopes_supported"), note),
        code_challenge_methods_supported=texts(members.get("code_challenge_methods_supported"), note),
        token_endpoint_auth_methods_supported=texts(members.get("token_endpoint_auth_methods_supported"), note),
        client_id_metadata_document_supported=members.get("client_id_metadata_document_supported") is True,
        authorization_response_iss_parameter_supported=members.get("authorization_response_iss_parameter_supported")
        is True,
        is_spelled_twice=issuer not in issuers,
    )


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
