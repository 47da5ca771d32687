"""One login of a person at an authorization server: the authorization request, and the check of its redirect.

Sans-I/O (RFC 6749, section 4.1; PKCE, RFC 7636; issuer identification, RFC 9207). `tokens` exchanges the code.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from mcproxy.settings.issuers import is_same_issuer
from mcproxy.settings.loopback import is_loopback
from mcproxy.upstream.oauth.metadata import S256, ServerMetadata
from mcproxy.upstream.oauth.registration import ClientIdentity

INVALID_SCOPE: Final = "invalid_scope"
"""The error code for scopes that an authorization server does not know or give (RFC 6749, sections 4.1.2.1, 5.2)."""
_STATE_BYTES: Final = 24
_VERIFIER_BYTES: Final = 48
"""Random bytes of a code verifier: 64 characters, within the 43 to 128 of RFC 7636, section 4.1."""
MAX_REASON: Final = 300
"""Characters of an authorization server's own words that are shown."""
_URL: Final = re.compile(r"https?://[\x21-\x7e]{1,2000}")


class LoginFailed(Exception):
    """A login that cannot begin, or failed. The text says why, for the person who tried.

    `code` is OAuth's name for the authorization server's refusal, as `invalid_scope`; empty without one.
    """

    def __init__(self, words: str, code: str = "") -> None:
        super().__init__(words)
        self.code: Final = code


class Login(msgspec.Struct, frozen=True):
    """A login under way: what must be remembered until its redirect comes."""

    state: str
    verifier: str
    issuer: str
    """Recorded before the redirect, whose issuer is compared with this even if the metadata has changed by then."""
    requires_iss: bool
    compares_iss_exactly: bool
    """Whether an `iss` with another slash at its end is another issuer's.

    So it is at a server that follows RFC 9207, and spells its issuer in one way: the official conformance suite asks
    for that. Elsewhere `is_same_issuer` decides.
    """
    redirect_uri: str
    client: ClientIdentity
    resource: str
    scopes: tuple[str, ...]


def begin(
    server: ServerMetadata,
    client: ClientIdentity,
    *,
    redirect_uri: str,
    resource: str,
    scopes: tuple[str, ...],
    randomness: Callable[[int], bytes],
    assumes_pkce: bool = False,
) -> Login:
    """Begins a login. Raises LoginFailed if the authorization server cannot be used safely."""
    if server.authorization_endpoint is None:
        raise LoginFailed(f"issuer {server.issuer} has no authorization endpoint: nobody can log in there")
    if not may_be_opened(server.authorization_endpoint):
        raise LoginFailed(
            f"issuer {server.issuer} names an authorization endpoint that is no https URL: nobody is sent there"
        )
    methods = server.code_challenge_methods_supported
    if S256 not in (methods or ()) and not (assumes_pkce and methods is None):
        remedy = "; if its documentation says that it does, set oauth.pkce: assumed" if methods is None else ""
        raise LoginFailed(f"issuer {server.issuer} does not say that it supports PKCE (S256){remedy}")
    return Login(
        state=_text(randomness(_STATE_BYTES)),
        verifier=_text(randomness(_VERIFIER_BYTES)),
        issuer=server.issuer,
        requires_iss=server.authorization_response_iss_parameter_supported,
        compares_iss_exactly=server.authorization_response_iss_parameter_supported and not server.is_spelled_twice,
        redirect_uri=redirect_uri,
        client=client,
        resource=resource,
        scopes=scopes,
    )


def may_be_opened(url: str) -> bool:
    """Whether a person may be sent to a URL that a server names: https, or http on loopback, in printable ASCII.

    It is given to a program that opens URLs, which would take another scheme, or a hyphen, as the server meant it.
    """
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return _URL.fullmatch(url) is not None and host != "" and (url.startswith("https:") or is_loopback(host))


def authorization_url(login: Login, server: ServerMetadata) -> str:
    """The URL for the person's browser."""
    assert server.authorization_endpoint is not None, "`begin` saw to it"
    parts = urlsplit(server.authorization_endpoint)
    challenge = _text(hashlib.sha256(login.verifier.encode()).digest())
    asked = {
        "response_type": "code",
        "client_id": login.client.id,
        "redirect_uri": login.redirect_uri,
        "state": login.state,
        "code_challenge": challenge,
        "code_challenge_method": S256,
    }
    if login.resource:
        asked["resource"] = login.resource
    if login.scopes:
        asked["scope"] = " ".join(login.scopes)
    if "offline_access" in login.scopes:
        asked["prompt"] = "consent"  # OpenID Connect Core, section 11: else the scope is ignored
    query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), *asked.items()])
    return urlunsplit(parts._replace(query=query))


def code_of(login: Login, redirected: Mapping[str, str]) -> str:
    """The code that a redirect brought. Raises LoginFailed.

    The issuer is checked first, whether the redirect carries an error or not: nothing from another issuer is acted on
    or shown (basic/authorization, "Authorization Response Issuer Validation").
    """
    if not hmac.compare_digest(redirected.get("state", "").encode(), login.state.encode()):
        raise LoginFailed("the answer belongs to no login that was begun here: begin again")
    issuer = redirected.get("iss")
    if issuer is None and login.requires_iss:
        raise LoginFailed(f"the answer does not say that it comes from {login.issuer}, which says that it always does")
    is_same = str.__eq__ if login.compares_iss_exactly else is_same_issuer
    if issuer is not None and not is_same(issuer, login.issuer):
        raise LoginFailed(f"the answer comes from another authorization server than {login.issuer}")
    if "error" in redirected:
        code, words = redirected["error"], redirected.get("error_description") or redirected["error"]
        # Cognito writes it into the description: github.com/openchoreo/openchoreo/issues/3217.
        code = INVALID_SCOPE if INVALID_SCOPE in words else code
        raise LoginFailed(f"{login.issuer} refused: {words[:MAX_REASON]}", code[:MAX_REASON])
    if not redirected.get("code"):
        raise LoginFailed(f"{login.issuer} sent neither a code nor an error")
    return redirected["code"]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
