"""Verify JSON Web Tokens of the configured issuers, and read the principal from their claims (RFC 7519, 8725, 9068).

A signature is verified once and remembered by the token's hash; time and audience are checked at every use. A token
cannot say where its key is or how to verify it: `jku`, `x5u`, `jwk` and their like are not read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from cachetools import LRUCache

from mcproxy.access.oauth.fetching import Fetch
from mcproxy.access.oauth.issuers import KeySet, SigningKeys
from mcproxy.access.refusals import RefusalReason
from mcproxy.call.identity import Principal, may_name_principal
from mcproxy.concurrency.spawn import Spawn
from mcproxy.settings.access.authentication import RESERVED, Issuer, OAuth
from mcproxy.settings.issuers import is_same_issuer, normal_issuer

if TYPE_CHECKING:
    from jwt.algorithms import AllowedPublicKeys

OF_ONE_TOKEN: Final = frozenset({"exp", "iat", "nbf", "jti", "at_hash", "c_hash"})
"""Claims in which tokens differ that grant the same: when one is valid, its id, and what was issued beside it."""
MAX_CANDIDATES: Final = 8
"""Keys that are tried on a token without a `kid`."""

Claims = dict[str, object]
IsAudience = Callable[[str], bool]
T = TypeVar("T")


class InvalidToken(Exception):
    """A token that is not valid here. The text says why, and quotes nothing of the token.

    `expected` are the audiences that the settings of its issuer name, where it is for another.
    """

    def __init__(self, sentence: str, reason: RefusalReason, expected: Collection[str] = ()) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.expected = expected


class InsufficientScope(Exception):
    """A good token that lacks required scopes."""


class _Header(msgspec.Struct):
    alg: str
    typ: str | None = None
    kid: str | None = None
    crit: msgspec.Raw | None = None


class _Origin(msgspec.Struct):
    iss: str


class _Bounds(msgspec.Struct):
    """The times and audience of a token. Times are Unix times in seconds."""

    exp: float
    aud: str | list[str]
    nbf: float | None = None
    iat: float | None = None


class Verified(msgspec.Struct, frozen=True):
    """A token whose signature is valid. `keys` are its issuer's keys at that time."""

    principal: Principal
    grants: bytes
    """A digest of its type and of all claims except `OF_ONE_TOKEN`: tokens that share it grant the same."""
    bounds: _Bounds
    source: KeySet
    keys: SigningKeys

    @property
    def is_current(self) -> bool:
        """Whether its issuer still has the keys that verified it."""
        return self.keys is self.source.keys

    @property
    def since(self) -> float:
        """The Unix time from which on it is valid."""
        return max(self.bounds.nbf or 0, self.bounds.iat or 0) - self.source.issuer.leeway

    @property
    def until(self) -> float:
        """Its expiry with the issuer's leeway: a Unix time in seconds (RFC 7519, section 4.1.4)."""
        return self.bounds.exp + self.source.issuer.leeway


class Tokens:
    """`spawn` starts tasks that fetch keys. `wall` is the Unix time in seconds."""

    def __init__(self, oauth: OAuth, spawn: Spawn, fetch: Fetch, wall: Callable[[], float]) -> None:
        self._spawn = spawn
        self._fetch = fetch
        self._wall = wall
        self._sources: dict[str, KeySet] = {}
        self.reconfigure(oauth)

    def reconfigure(self, oauth: OAuth) -> None:
        """Keeps the keys of issuers that stay the same. Tokens are verified anew, as another claim may count."""
        known, self._sources, self._oauth = self._sources, {}, oauth
        for issuer in oauth.issuers:
            source = known.get(normal_issuer(issuer.issuer))
            if source is None or source.issuer != issuer:
                source = KeySet(issuer, oauth, self._spawn, self._fetch)
            source.oauth = oauth
            self._sources[normal_issuer(issuer.issuer)] = source
        self._verified: LRUCache[bytes, Verified] = LRUCache(oauth.max_tokens)

    def __len__(self) -> int:
        """The number of remembered tokens."""
        return len(self._verified)

    def prepare(self) -> None:
        """Fetches keys before the first token comes."""
        for source in self._sources.values():
            source.refresh()

    async def verified(self, token: str, hashed: bytes, is_audience: IsAudience) -> Verified:
        """A valid token; `hashed` identifies it. `is_audience` returns whether an `aud` names the requested endpoint.

        Raises InvalidToken, InsufficientScope, and KeysUnavailable where that cannot be told.
        """
        verified = self._verified.get(hashed)
        if verified is None or not verified.is_current:
            verified = self._verified[hashed] = await self._verify(token)
        self._check_bounds(verified, is_audience)
        self._check_scopes(verified.principal)
        return verified

    async def _verify(self, token: str) -> Verified:
        if len(token) > self._oauth.max_token_bytes:
            raise InvalidToken("the token is too long (oauth.max_token_bytes)", RefusalReason.MALFORMED)
        header, source = self._opened(token)
        keys = await source.find(header.kid, header.alg)
        for key in keys[:MAX_CANDIDATES]:
            payload = _payload(token, key.public, header.alg)
            if payload is not None:
                # Remembered with the issuer's present keys: `find` may have waited for these.
                claims = _decoded(payload, Claims)
                principal = self._named(claims, source.issuer)
                return Verified(principal, _grants(header, claims), _decoded(payload, _Bounds), source, source.keys)
        raise InvalidToken("the token is not signed by a key of its issuer", RefusalReason.SIGNATURE)

    def _opened(self, token: str) -> tuple[_Header, KeySet]:
        """A token's header and claims, unverified: enough to choose a configured key."""
        parts = token.split(".")
        if len(parts) != 3:
            raise InvalidToken("the token is no signed JSON Web Token", RefusalReason.MALFORMED)
        header = _decoded(_base64(parts[0]), _Header)
        source = self._sources.get(normal_issuer(_decoded(_base64(parts[1]), _Origin).iss))
        if source is None:
            raise InvalidToken("the token is of an issuer that is not trusted here", RefusalReason.UNTRUSTED_ISSUER)
        if header.alg not in source.issuer.algorithms:
            raise InvalidToken("the token's signature algorithm is not accepted", RefusalReason.SIGNATURE)
        # RFC 7515, section 4.1.11: what must be understood, and is not, makes a token invalid.
        if header.crit is not None:
            raise InvalidToken("the token has a critical header that is not understood", RefusalReason.SIGNATURE)
        return header, source

    def _named(self, claims: Claims, issuer: Issuer) -> Principal:
        if not is_same_issuer(str(claims.get("iss")), issuer.issuer):
            raise InvalidToken("the token is of another issuer than it seems", RefusalReason.UNTRUSTED_ISSUER)
        name = _claim(claims, issuer.name_claim)
        if not isinstance(name, str) or not may_name_principal(name):
            sentence = f"the token names no caller: its claim {issuer.name_claim} (name_claim) is missing, or no name"
            raise InvalidToken(sentence, RefusalReason.NAME)
        full = issuer.prefix + name
        if full == RESERVED:
            raise InvalidToken(f"the token's {issuer.name_claim} is a reserved name", RefusalReason.NAME)
        scopes = frozenset(_words(_claim(claims, issuer.scopes_claim)))
        roles = frozenset(_entries(_claim(claims, issuer.roles_claim)))
        kept = ((claim, _claim(claims, claim)) for claim in issuer.attribute_claims)
        attributes = tuple((claim, value) for claim, value in kept if isinstance(value, str))
        return Principal(full, roles | set(issuer.roles), self._with_implied(scopes), attributes)

    def _with_implied(self, scopes: frozenset[str]) -> frozenset[str]:
        """basic/authorization: servers "MUST account for scope hierarchies"."""
        found, left = set(scopes), list(scopes)
        while left:
            fresh = set(self._oauth.implied_scopes.get(left.pop(), ())) - found
            found |= fresh
            left += fresh
        return frozenset(found)

    def _check_bounds(self, verified: Verified, is_audience: IsAudience) -> None:
        now, issuer, bounds = self._wall(), verified.source.issuer, verified.bounds
        if now >= verified.until:
            raise InvalidToken("the token has expired", RefusalReason.EXPIRED)
        if now < verified.since:
            raise InvalidToken("the token is not valid yet", RefusalReason.NOT_YET_VALID)
        named = [bounds.aud] if isinstance(bounds.aud, str) else bounds.aud
        # security-considerations: servers "MUST only accept tokens specifically intended for themselves".
        if not any(name in issuer.audience or is_audience(name) for name in named):
            raise InvalidToken("the token is for another audience", RefusalReason.AUDIENCE, issuer.audience)

    def _check_scopes(self, principal: Principal) -> None:
        lacking = [scope for scope in self._oauth.required_scopes if scope not in principal.scopes]
        if lacking:
            raise InsufficientScope(f"the token lacks a scope: {' '.join(lacking)}")


def _payload(token: str, key: AllowedPublicKeys, algorithm: str) -> bytes | None:
    """The verified payload; None if this key did not sign it."""
    import jwt

    try:
        payload = jwt.PyJWS(algorithms=[algorithm]).decode(token, key=key, algorithms=[algorithm])
    except (jwt.PyJWTError, ValueError, RecursionError):
        return None
    assert isinstance(payload, bytes)
    return payload


def _grants(header: _Header, claims: Claims) -> bytes:
    lasting = {name: value for name, value in claims.items() if name not in OF_ONE_TOKEN}
    return hashlib.sha256(msgspec.json.encode([header.typ, lasting], order="sorted")).digest()


def _decoded(data: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.MsgspecError, RecursionError) as error:
        sentence = "the token lacks a claim, or has one of the wrong type"
        raise InvalidToken(sentence, RefusalReason.MALFORMED) from error


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidToken("the token is no signed JSON Web Token", RefusalReason.MALFORMED) from error


def _claim(claims: Claims, name: str) -> object:
    """The claim of that very name, else the member that dots lead to: Auth0's names are URLs, Keycloak nests."""
    if name in claims:
        return claims[name]
    value: object = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _entries(value: object) -> Iterator[str]:
    yield from (entry for entry in (value if isinstance(value, list) else [value]) if isinstance(entry, str))


def _words(value: object) -> Iterator[str]:
    for entry in _entries(value):
        yield from entry.split(" ")
