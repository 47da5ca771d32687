"""Token requests and their answers (RFC 6749, sections 4 to 6; RFC 7523; RFC 7009). Sends nothing, keeps nothing."""

from __future__ import annotations

import base64
import secrets
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from mcproxy.settings.issuers import is_same_issuer
from mcproxy.upstream.oauth import leniency
from mcproxy.upstream.oauth.leniency import Note, unnoted
from mcproxy.upstream.oauth.login import Login
from mcproxy.upstream.oauth.metadata import ServerMetadata
from mcproxy.upstream.oauth.registration import ClientIdentity

ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"
ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"
ID_TOKEN: Final = "urn:ietf:params:oauth:token-type:id_token"
JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASSERTION_LIFE: Final = 300
"""Seconds for which one of our signed assertions is valid."""
MAX_REASON: Final = 300
"""Characters of an authorization server's own words that are kept."""

MIN_CONCEALED: Final = 8
"""Characters of a secret at least; shorter ones occur in ordinary text."""
MAX_SUBJECT: Final = 256
"""Characters of the name of the person who logged in."""

_PASSING: Final = frozenset(
    {
        "temporarily_unavailable",
        "server_error",
        "slow_down",
        # Slack's, which come with 200.
        "ratelimited",
        "internal_error",
        "fatal_error",
        "service_unavailable",
        "request_timeout",
    }
)
"""Error codes that say nothing about the grant."""

TokenForm = dict[str, str]


_OF_GRANT: Final = frozenset(
    {"invalid_grant", "invalid_scope", "invalid_target", "authorization_pending", "expired_token", "access_denied"}
)
"""Error codes that are about the grant, and so not about the client's authentication."""


class Token(msgspec.Struct, frozen=True):
    """An access token, and the facts that came with it."""

    access: str
    expires_at: float | None
    """Unix seconds; None if the server did not say."""
    obtained_at: float
    refresh: str | None = None
    scopes: tuple[str, ...] | None = None
    """The granted scopes; None if they are those that were requested."""
    subject: str | None = None
    """The person who logged in, according to the identity token; None without one."""
    identity: str | None = None
    """The identity token that came along (OpenID Connect); not stored."""

    def __repr__(self) -> str:
        return f"Token(expires_at={self.expires_at})"

    @property
    def headers(self) -> dict[str, str]:
        """The header of requests that carry it (RFC 6750, section 2.1)."""
        return {"Authorization": f"Bearer {self.access}"}

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.access,)

    def is_over(self, now: float) -> bool:
        """Whether it has expired at `now`, in Unix seconds; a token without a known expiry never has."""
        return self.expires_at is not None and self.expires_at <= now


class TokenRefused(Exception):
    """The authorization server's refusal; `code` is OAuth's name for it, as `invalid_grant`."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code: Final = code


class TokenUnavailable(Exception):
    """No decisive answer: the same request may succeed later. `code` as in `TokenRefused`."""

    def __init__(
        self, words: str, code: str | None = None, retry_after: float | None = None, status: int | None = None
    ) -> None:
        super().__init__(words)
        self.code: Final = code
        self.retry_after: Final = retry_after
        """Seconds to wait, if the answer says so."""
        self.status: Final = status
        """The HTTP status of the answer; None without one."""


def may_want_secret(problem: TokenRefused | TokenUnavailable) -> bool:
    """Whether a refusal may be for want of the client's secret, of which servers tell in many words."""
    if isinstance(problem, TokenRefused):
        return problem.code not in _OF_GRANT
    return problem.status in {400, 401, 403} and problem.code is None


def code_exchange(login: Login, code: str) -> TokenForm:
    """The form that redeems a code: RFC 6749, section 4.1.3, with PKCE (RFC 7636, section 4.5) and the resource."""
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": login.redirect_uri,
        "code_verifier": login.verifier,
    }
    return _for(login.resource, form)


def refreshing(token: str, resource: str) -> TokenForm:
    """The form that redeems a refresh token. It names no scopes: the granted ones stay."""
    return _for(resource, {"grant_type": "refresh_token", "refresh_token": token})


def client_credentials(resource: str, scopes: tuple[str, ...]) -> TokenForm:
    """The form of RFC 6749, section 4.4.2, with the resource (RFC 8707)."""
    return _scoped(_for(resource, {"grant_type": "client_credentials"}), scopes)


def by_assertion(assertion: str, resource: str, scopes: tuple[str, ...]) -> TokenForm:
    """The form of RFC 7523, section 2.1: the assertion is the grant."""
    return _scoped(_for(resource, {"grant_type": JWT_BEARER, "assertion": assertion}), scopes)


def identity_exchange(id_token: str, audience: str, resource: str, scopes: tuple[str, ...]) -> TokenForm:
    """The form that exchanges an identity token for an assertion for `audience` (RFC 8693, ID-JAG)."""
    form = {
        "grant_type": TOKEN_EXCHANGE,
        "requested_token_type": ID_JAG,
        "subject_token": id_token,
        "subject_token_type": ID_TOKEN,
        "audience": audience,
    }
    return _scoped(_for(resource, form), scopes)


def token_exchange(inbound_token: str, resource: str, scopes: tuple[str, ...]) -> TokenForm:
    """The form that exchanges a caller's token for one of the same caller at `resource` (RFC 8693, section 2.1)."""
    form = {
        "grant_type": TOKEN_EXCHANGE,
        "requested_token_type": ACCESS_TOKEN,
        "subject_token": inbound_token,
        "subject_token_type": ACCESS_TOKEN,
    }
    return _scoped(_for(resource, form), scopes)


def is_identity_token(token: str, issuer: str) -> bool:
    """Whether a verified token is an identity token of `issuer`, and no access token (RFC 9068, section 4)."""
    import jwt

    try:
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        return False
    kind = str(header.get("typ", "JWT")).lower().removeprefix("application/")
    return kind == "jwt" and is_same_issuer(str(claims.get("iss")), issuer)


def _for(resource: str, form: TokenForm) -> TokenForm:
    """The form with the resource indicator (RFC 8707); without one if `oauth.resource` says so."""
    return {**form, "resource": resource} if resource else form


def _scoped(form: TokenForm, scopes: tuple[str, ...]) -> TokenForm:
    return {**form, "scope": " ".join(scopes)} if scopes else form


_SECRET_FIELDS: Final = ("refresh_token", "code", "code_verifier", "device_code", "assertion", "subject_token", "token")
"""Members of a request that no error may quote."""


def concealed(words: str, form: TokenForm, client: ClientIdentity) -> str:
    """An authorization server's own words without the request's secrets (requirement R44)."""
    for secret in (*(form.get(field) for field in _SECRET_FIELDS), client.secret):
        if secret and len(secret) >= MIN_CONCEALED:
            words = words.replace(secret, "[redacted]")
    return words


def token_request(
    form: TokenForm, client: ClientIdentity, server: ServerMetadata, now: float
) -> tuple[bytes, dict[str, str]]:
    """The body and headers of a request to the token or revocation endpoint, with the client's proof.

    Raises TokenRefused if the client's key cannot sign.
    """
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    match client.method:
        case "client_secret_basic":
            # RFC 6749, section 2.3.1: both are form-encoded before they are joined.
            pair = f"{quote(client.id, safe='')}:{quote(client.secret or '', safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        case "private_key_jwt":
            proof = {"client_assertion_type": ASSERTION_TYPE, "client_assertion": _assertion(client, server, now)}
            form = {**form, "client_id": client.id, **proof}
        case "client_secret_post":
            form = {**form, "client_id": client.id, "client_secret": client.secret or ""}
        case _:
            form = {**form, "client_id": client.id} if client.id else form
    return urlencode(form).encode(), headers


def _assertion(client: ClientIdentity, server: ServerMetadata, now: float) -> str:
    """A signed assertion.

    RFC 7523, section 3: its audience is the issuer, which identifies the server unambiguously.
    """
    import jwt

    assert client.key is not None, "its method is private_key_jwt"
    claims = {
        "iss": client.id,
        "sub": client.id,
        "aud": server.issuer,
        "iat": int(now),
        "exp": int(now) + ASSERTION_LIFE,
        "jti": secrets.token_urlsafe(16),
    }
    try:
        return jwt.encode(claims, client.key, algorithm=client.algorithm or _algorithm(client.key))
    except (ValueError, TypeError, jwt.PyJWTError) as error:
        raise TokenRefused(
            "invalid_client", "oauth.client.key cannot sign: it should be a private key in PEM"
        ) from error


def _algorithm(pem: str) -> str:
    """The signature algorithm for a private key, if none is configured."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    match load_pem_private_key(pem.encode(), None):
        case ec.EllipticCurvePrivateKey(key_size=384):
            return "ES384"
        case ec.EllipticCurvePrivateKey():
            return "ES256"
        case ed25519.Ed25519PrivateKey() | ed448.Ed448PrivateKey():
            return "EdDSA"
        case _:
            return "RS256"


def read_token(
    status: int,
    body: bytes,
    now: float,
    *,
    kind: str = "bearer",
    retry_after: float | None = None,
    note: Note = unnoted,
) -> Token:
    """The token in an answer. Raises TokenRefused and TokenUnavailable.

    `kind` is the expected `token_type`: a token exchange may also return tokens that requests cannot carry.

    A refusal counts only if it names an error (RFC 6749, section 5.2): a proxy's 502 or a limit's 429 decides nothing.
    """
    members = leniency.token_members(body, note)
    access = None if members is None else leniency.access_token(members, note)
    if members is not None and access is not None and leniency.is_success(status, "token", note):
        given = leniency.token_type(members.get("token_type"), note)
        if given != kind:
            raise TokenRefused("unsupported_token_type", f"it gives tokens of type {given!r}, not {kind}")
        life = leniency.seconds(members.get("expires_in"), "expires_in", note)
        identity = leniency.text(members.get("id_token"))
        return Token(
            access,
            None if life is None else now + life,
            now,
            leniency.text(members.get("refresh_token")),
            leniency.granted_scopes(members.get("scope"), note),
            _subject(identity),
            identity,
        )
    refusal = None if members is None else _refusal(status, members, note)
    if refusal is not None:
        raise refusal
    code = None if members is None else leniency.error_code(members)
    words = _own_words(members, body)
    raise TokenUnavailable(
        f"the token endpoint answered HTTP {status} without a token{words}", code, retry_after, status
    )


def refusal_of(status: int, body: bytes, note: Note = unnoted) -> TokenRefused | None:
    """The refusal in a JSON answer; None if it decides nothing."""
    members = leniency.json_object(body, note)
    return None if members is None else _refusal(status, members, note)


def _refusal(status: int, members: leniency.Members, note: Note) -> TokenRefused | None:
    error = leniency.error_code(members)
    if error is None or error in _PASSING or not leniency.is_refusal_status(status, note):
        return None
    description = leniency.text(members.get("error_description"))
    words = error if description is None else f"{error}: {description}"
    return TokenRefused(error[:MAX_REASON], words[:MAX_REASON])


def _own_words(members: leniency.Members | None, body: bytes) -> str:
    """What an answer that decides nothing says, as part of a sentence; nothing of a web page."""
    if members is None:
        said = "" if body.lstrip()[:1] in {b"<", b"{", b"["} else body[:MAX_REASON].decode(errors="replace")
    else:
        found = (members.get(name) for name in ("error_description", "message", "error"))
        said = next((each for each in found if isinstance(each, str)), "")
    words = " ".join(said[:MAX_REASON].split())
    return f": {words}" if words else ""


def _subject(id_token: str | None) -> str | None:
    """The `sub` of an identity token. Not verified: it came from the issuer itself, and nothing is decided by it."""
    import jwt

    try:
        claims = jwt.decode(id_token or "", options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        return None
    subject = claims.get("sub")
    return subject[:MAX_SUBJECT] if isinstance(subject, str) else None
