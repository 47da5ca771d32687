"""The gateway's client identity at an authorization server: preregistered, by metadata document, or registered now.

Pure: chooses, writes the request and reads the answer (basic/authorization, "Client Registration"; RFC 7591).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

import msgspec

from mcproxy.settings.upstreams.oauth import OAuthClient
from mcproxy.upstream.oauth.leniency import Note, json_object, seconds, text, unnoted
from mcproxy.upstream.oauth.metadata import ServerMetadata

NAME: Final = "mcproxy"
MAX_SCOPES: Final = 256
"""The most scopes that a client is registered for, and that a login or a token request asks for."""
GRANTS: Final = ("authorization_code", "refresh_token")
DEVICE_GRANTS: Final = ("urn:ietf:params:oauth:grant-type:device_code", "refresh_token")
NO_REDIRECT: Final = ""
"""The redirect URI of a client that logs in by a code on another device (RFC 8628)."""
DOCUMENT_PATH: Final = "/oauth/client.json"
"""The path of the gateway's metadata document, below `proxy.public_url`."""
CALLBACK_PATH: Final = "/oauth/callback"
"""The path of the gateway's redirect URI, below `proxy.public_url`."""
LOOPBACK_CALLBACKS: Final = ("http://127.0.0.1/callback", "http://[::1]/callback")
"""The redirect URIs of `mcproxy login`, on any port (RFC 8252, section 7.3)."""

NONE, BASIC, POST, ASSERTION = "none", "client_secret_basic", "client_secret_post", "private_key_jwt"


class CannotRegister(Exception):
    """The gateway has no identity at an authorization server. The text says why, and what to do."""


class ClientIdentity(msgspec.Struct, frozen=True):
    """The gateway's identity at one authorization server; valid at no other."""

    id: str
    secret: str | None = None
    key: str | None = None
    """A private key in PEM, for signed assertions."""
    algorithm: str | None = None
    method: str = NONE
    """The authentication method at the token endpoint, by its registered OAuth name."""
    redirect_uris: tuple[str, ...] = ()
    """The registered redirect URIs; empty if an operator registered the client."""
    expires_at: float = 0
    """The expiry of its secret in Unix seconds; 0 for never."""
    scopes: tuple[str, ...] = ()
    """The scopes for which the gateway registered it: some authorization servers allow it no others."""
    name: str = NAME
    """The name under which the gateway registered it."""
    is_doubtful: bool = False
    """Whether a login was begun with it and has not come back: the authorization server may have forgotten it.

    Then it shows a page with `invalid_client` to the person, and nothing to the gateway.
    """

    def serves(self, redirect_uri: str, scopes: Collection[str], now: float, name: str = NAME) -> bool:
        """Whether a client that the gateway registered is still valid, for that redirect URI, scopes and name."""
        is_over = bool(self.expires_at) and self.expires_at <= now
        is_known = not is_over and not self.is_doubtful and self.name == name
        return is_known and redirect_uri in (self.redirect_uris or (NO_REDIRECT,)) and set(scopes) <= set(self.scopes)

    @property
    def has_unused_secret(self) -> bool:
        """Whether it was given a secret and told to use none: Figma wants the secret nevertheless.

        github.com/NousResearch/hermes-agent/pull/73141.
        """
        return self.method == NONE and self.secret is not None


def scopes_to_register(stored: ClientIdentity | None, wanted: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The scopes to register a client for, in the order to try.

    First all that it was registered for before, so that logins with different scopes, perhaps to several upstreams of
    one issuer, come to share a client. An issuer that knows one of them not may refuse; it may allow all to a client
    that is registered for none.
    """
    both = (*wanted, *(() if stored is None else stored.scopes))[:MAX_SCOPES]
    return list(dict.fromkeys((tuple(dict.fromkeys(both)), wanted, ())))


def configured(client: OAuthClient, server: ServerMetadata) -> ClientIdentity | None:
    """The identity in the settings, if any."""
    if client.id is None:
        return None
    method = _method(server, has_secret=client.secret is not None, has_key=client.key is not None)
    return ClientIdentity(client.id, client.secret, client.key, client.algorithm, method)


def by_document(url: str | None, server: ServerMetadata, redirect_uri: str) -> ClientIdentity | None:
    """The identity given by the document at `url` (Client ID Metadata Documents), if the server accepts these."""
    if url is None or not server.client_id_metadata_document_supported:
        return None
    parts = urlsplit(url)
    if parts.scheme != "https" or parts.path in {"", "/"}:
        return None
    return ClientIdentity(url, redirect_uris=(redirect_uri,) if redirect_uri else ())


def document_url(public_url: str | None) -> str | None:
    """The URL of the gateway's metadata document; None if it has no https URL that others reach."""
    if public_url is None or urlsplit(public_url).scheme != "https":
        return None
    return public_url + DOCUMENT_PATH


def document(public_url: str | None) -> dict[str, object] | None:
    """The gateway's metadata document, for callers' logins and `mcproxy login`; None if it has none."""
    url = document_url(public_url)
    if url is None:
        return None
    redirects = (f"{public_url}{CALLBACK_PATH}", *LOOPBACK_CALLBACKS)
    metadata = {**_metadata(redirects), "grant_types": [*GRANTS, *DEVICE_GRANTS[:1]]}
    return {"client_id": url, **metadata, "client_uri": public_url, "token_endpoint_auth_method": NONE}


def registration_request(
    server: ServerMetadata, redirect_uri: str, scopes: tuple[str, ...], name: str = NAME
) -> dict[str, object]:
    """The body for the registration endpoint. Raises CannotRegister if there is none."""
    if server.registration_endpoint is None:
        raise CannotRegister(
            f"issuer {server.issuer} takes no clients by themselves: register the gateway there, "
            f"{described(redirect_uri)}, and set oauth.client.id (and secret)"
        )
    supported = server.token_endpoint_auth_methods_supported
    method = NONE if supported is None or NONE in supported else _preferred(supported)
    redirects = (redirect_uri,) if redirect_uri else ()
    wanted: dict[str, object] = {**_metadata(redirects), "client_name": name, "token_endpoint_auth_method": method}
    return {**wanted, "scope": " ".join(scopes)} if scopes else wanted


def _preferred(supported: tuple[str, ...]) -> str:
    return next((method for method in (BASIC, POST) if method in supported), NONE)


def described(redirect_uri: str) -> str:
    """How to register the client by hand, as part of an error's text."""
    return f"with the redirect {redirect_uri}" if redirect_uri else "for the device flow"


def _metadata(redirect_uris: tuple[str, ...]) -> dict[str, object]:
    # OpenID Connect Registration, section 2: only a native client has redirects over http, to loopback.
    is_native = not redirect_uris or any(urlsplit(uri).scheme == "http" for uri in redirect_uris)
    return {
        "client_name": NAME,
        "redirect_uris": list(redirect_uris),
        "grant_types": list(GRANTS if redirect_uris else DEVICE_GRANTS),
        "response_types": ["code"] if redirect_uris else [],
        "application_type": "native" if is_native else "web",
    }


def read_registration(
    answer: bytes,
    server: ServerMetadata,
    redirect_uri: str,
    scopes: tuple[str, ...],
    *,
    name: str = NAME,
    note: Note = unnoted,
) -> ClientIdentity:
    """Reads the answer to a registration (RFC 7591, section 3.2.1). Raises CannotRegister."""
    given = json_object(answer, note) or {}
    client_id, secret = text(given.get("client_id")), text(given.get("client_secret"))
    if client_id is None:
        raise CannotRegister(f"issuer {server.issuer} gave an invalid answer to the registration: it has no client_id")
    method = text(given.get("token_endpoint_auth_method"))
    if method not in {NONE, BASIC, POST} or (method != NONE and secret is None):
        method = _method(server, has_secret=secret is not None, has_key=False)
    expires_at = seconds(given.get("client_secret_expires_at"), "client_secret_expires_at", note) or 0
    return ClientIdentity(
        client_id,
        secret,
        method=method,
        redirect_uris=(redirect_uri,) if redirect_uri else (),
        expires_at=expires_at if secret is not None else 0,
        scopes=scopes,
        name=name,
    )


def _method(server: ServerMetadata, *, has_secret: bool, has_key: bool) -> str:
    """The authentication method if none is configured: without metadata, RFC 8414 means `client_secret_basic`."""
    supported = server.token_endpoint_auth_methods_supported
    if has_key:
        return ASSERTION
    if not has_secret:
        return NONE
    return BASIC if supported is None else _preferred(supported) if {BASIC, POST} & set(supported) else BASIC
