"""The signing keys (JWKS) of one issuer: fetched, cached, and fetched again when old or not found.

Known keys are used even while the issuer is down. One fetch runs at a time, no more often than the cooldown allows,
in a task of its own: callers wait for it together, and one that hangs up ends no other's wait. Verifies nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import anyio
import msgspec
import structlog

from mcproxy.access.oauth.fetching import Fetch, FetchFailed
from mcproxy.concurrency.spawn import Spawn
from mcproxy.settings.access.authentication import Issuer, OAuth
from mcproxy.settings.issuers import is_same_issuer

if TYPE_CHECKING:
    from jwt.algorithms import AllowedPublicKeys

log = structlog.get_logger()

MAX_KEYS: Final = 100
"""Keys that are taken of an issuer's set."""
RSA_BITS: Final = range(2048, 8192 + 1)
"""Bounds of an RSA key. RFC 7518, section 3.3: at least 2048; and no key that takes long to verify with."""

RSA: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
ALGORITHMS: Final = {
    ("RSA", None): RSA,
    ("EC", "P-256"): frozenset({"ES256"}),
    ("EC", "P-384"): frozenset({"ES384"}),
    ("EC", "P-521"): frozenset({"ES512"}),
    ("OKP", "Ed25519"): frozenset({"EdDSA"}),
}
"""Signature algorithms of a key, by its `kty` and `crv`.

Other keys, symmetric ones above all, count for none (RFC 8725).
"""


_SERVER: Final = "/.well-known/oauth-authorization-server"
_OPENID: Final = "/.well-known/openid-configuration"


class KeysUnavailable(Exception):
    """The issuer's keys cannot be fetched, so none of its tokens can be verified."""


class SigningKey(msgspec.Struct, frozen=True, eq=False):
    """`algorithms` are those that it may be used with."""

    kid: str | None
    algorithms: frozenset[str]
    public: AllowedPublicKeys


SigningKeys = tuple[SigningKey, ...]


class KeySet:
    """An issuer's keys. `clock` is monotonic, in seconds."""

    def __init__(
        self, issuer: Issuer, oauth: OAuth, spawn: Spawn, fetch: Fetch, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.issuer = issuer
        self.oauth = oauth
        """The issuer's settings; a reload replaces them."""
        self._spawn = spawn
        self._fetch = fetch
        self._clock = clock
        self._keys: SigningKeys = ()
        self._document = b""
        self._tried: float | None = None
        self._failure: str | None = None
        self._running: anyio.Event | None = None

    @property
    def keys(self) -> SigningKeys:
        """The current keys; the same object for as long as the issuer publishes the same."""
        return self._keys

    async def find(self, kid: str | None, algorithm: str) -> SigningKeys:
        """The keys that may have signed a token; none if the issuer has no such key. Raises KeysUnavailable."""
        if self._is_old():
            self.refresh()
        found = self._matching(kid, algorithm)
        if found:
            return found
        self.refresh()
        if self._running is not None:
            await self._running.wait()
        found = self._matching(kid, algorithm)
        if not found and self._failure is not None:
            raise KeysUnavailable(self._failure)
        return found

    def refresh(self) -> None:
        """Begins to fetch the keys, unless a fetch runs or ran a moment ago."""
        now = self._clock()
        cooling = self._tried is not None and now - self._tried < self.oauth.keys_cooldown
        if self._running is None and not cooling:
            self._tried = now
            self._running = anyio.Event()
            self._spawn(self._refresh)

    def _is_old(self) -> bool:
        return self._tried is None or self._clock() - self._tried >= self.oauth.keys_lifetime

    def _matching(self, kid: str | None, algorithm: str) -> SigningKeys:
        """A token without a `kid` may be signed by any key of the algorithm."""
        return tuple(key for key in self._keys if algorithm in key.algorithms and (kid is None or kid == key.kid))

    async def _refresh(self) -> None:
        assert self._running is not None
        try:
            with anyio.fail_after(self.oauth.keys_timeout):
                self._take(await self._fetched())
        except TimeoutError:
            self._fail(f"no answer within {self.oauth.keys_timeout:g} s (oauth.keys_timeout)")
        except FetchFailed as error:
            self._fail(str(error))
        finally:
            self._running.set()
            self._running = None

    def _fail(self, why: str) -> None:
        if self._failure is None:
            log.warning("keys of an issuer cannot be had", issuer=self.issuer.issuer, why=why)
        self._failure = why

    def _take(self, document: bytes) -> None:
        if document != self._document:
            self._keys = read_keys(document)
            self._document = document
            log.info("keys of an issuer", issuer=self.issuer.issuer, keys=[key.kid for key in self._keys])
        self._failure = None

    async def _fetched(self) -> bytes:
        most = self.oauth.keys_max_bytes
        if self.issuer.jwks_url is not None:
            return await self._fetch(self.issuer.jwks_url, most)
        url = await self._discovered(most)
        return await self._fetch(url, most, public=_origin(url) != _origin(self.issuer.issuer))

    async def _discovered(self, most: int) -> str:
        """The URL of the keys, by the issuer's metadata (authorization-server-discovery)."""
        said: list[str] = []
        for url in metadata_urls(self.issuer.issuer):
            try:
                return _jwks_url(await self._fetch(url, most), self.issuer.issuer, url)
            except FetchFailed as failed:
                said.append(str(failed))
        raise FetchFailed(f"the issuer's metadata is nowhere ({'; '.join(said)}); set jwks_url")


class _Metadata(msgspec.Struct):
    issuer: str
    jwks_uri: str


class _JwkSet(msgspec.Struct):
    keys: list[msgspec.Raw]


class _Jwk(msgspec.Struct, omit_defaults=True):
    """The public members of a key, and its use (RFC 7517, section 4)."""

    kty: str
    crv: str | None = None
    n: str | None = None
    e: str | None = None
    x: str | None = None
    y: str | None = None
    kid: str | None = None
    alg: str | None = None
    use: str = "sig"
    key_ops: frozenset[str] = frozenset({"verify"})


def metadata_urls(issuer: str) -> tuple[str, ...]:
    """URLs at which an issuer's metadata may be, in the order of the specification. Raises ValueError if it is no URL.

    For an issuer with a path, the root of its host comes last: what is found there counts if it names that issuer.
    """
    parts = urlsplit(issuer)
    root, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    at_root = (f"{root}{_SERVER}", f"{root}{_OPENID}")
    if not path:
        return at_root
    return (f"{root}{_SERVER}{path}", f"{root}{_OPENID}{path}", f"{root}{path}{_OPENID}", *at_root)


def read_keys(document: bytes) -> SigningKeys:
    """The keys of a JWK Set (RFC 7517) that signatures can be checked with; others are left out. Raises FetchFailed."""
    try:
        listed = msgspec.json.decode(document, type=_JwkSet).keys
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FetchFailed("the issuer's keys are no JWK Set") from error
    return tuple(key for jwk in listed[:MAX_KEYS] for key in _signing_key(jwk))


def _signing_key(raw: msgspec.Raw) -> Iterator[SigningKey]:
    import jwt
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    try:
        jwk = msgspec.json.decode(raw, type=_Jwk)
        algorithms = ALGORITHMS.get((jwk.kty, jwk.crv), frozenset())
        algorithms &= {jwk.alg} if jwk.alg is not None else algorithms
        if not algorithms or jwk.use != "sig" or "verify" not in jwk.key_ops:
            return
        public = jwt.PyJWK(msgspec.to_builtins(jwk), algorithm=min(algorithms)).key
    except (msgspec.MsgspecError, RecursionError, jwt.PyJWTError, ValueError):
        return
    if not isinstance(public, RSAPublicKey) or public.key_size in RSA_BITS:
        yield SigningKey(jwk.kid, algorithms, public)


def _jwks_url(document: bytes, issuer: str, where: str) -> str:
    try:
        metadata = msgspec.json.decode(document, type=_Metadata)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FetchFailed(f"{where} is no metadata with issuer and jwks_uri") from error
    # RFC 8414, section 3.3: metadata of another issuer MUST NOT be used.
    if not is_same_issuer(metadata.issuer, issuer):
        raise FetchFailed(f"{where} is the metadata of another issuer")
    return metadata.jwks_uri


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc
