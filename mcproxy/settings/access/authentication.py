"""Settings of authentication (`access.authentication`): API keys, OAuth, a trusted proxy, TLS certificates, stdio.

If none is configured, every caller is anonymous; if any is, every HTTP request needs credentials. Callers' names are
unique: each source of names except the keys has a prefix of its own. `access.identity` applies them.
"""

from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, AwareDatetime, Field, PlainValidator, WithJsonSchema, model_validator

from mcproxy.settings.egress import Leaving
from mcproxy.settings.issuers import normal_issuer
from mcproxy.settings.loopback import is_loopback
from mcproxy.settings.section import Bytes, InvalidKey, Positive, Seconds, SecondsOrNone, Section, worded
from mcproxy.settings.upstreams.oauth import OAuthClient

RESERVED: Final = "anonymous"
"""The name of every caller that is not authenticated."""

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]
"""Signatures by public keys alone: a key that verifies one of these cannot make one."""

KeyName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]*$", max_length=128),
    worded("the name of a caller should be letters, digits and . _ @ -, a letter or digit first, at most 128"),
]
NamePrefix = Annotated[
    str,
    Field(pattern=r"^([a-z][a-z0-9-]*:)?$", max_length=32),
    worded("should be lower-case letters, digits and -, a letter first, and a colon at the end, such as corp:"),
]
HeaderName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]*$", max_length=64),
    worded("should be the name of a header, such as X-Api-Key: letters, digits and -, at most 64"),
]
Scope = Annotated[
    str,
    Field(pattern=r"^[\x21\x23-\x5B\x5D-\x7E]+$"),
    worded("should be one scope, without spaces, quotation marks and backslashes"),
]
"""RFC 6749, appendix A.4."""


def _check_trusted(url: str) -> str:
    """A server whose responses are trusted is asked over TLS (OAuth 2.1, section 1.5)."""
    try:
        parts = urlsplit(url)
        complete = bool(parts.hostname) and parts.port != 0
    except ValueError:
        complete = False
    if not complete or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("should be a URL of a host, without user, query and fragment")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise ValueError("should be an https URL, or http to loopback")
    return url


TrustedUrl = Annotated[str, AfterValidator(_check_trusted)]


def _network(value: object) -> IPv4Network | IPv6Network:
    """The network that a text names. A number is none, though it can be read as an address. Raises ValueError."""
    if isinstance(value, str):
        with suppress(ValueError):
            return ip_network(value)
    raise ValueError("should be an address, such as 10.1.2.3, or a whole network, such as 10.0.0.0/8")


# pydantic's own type would be imported with all its types of URLs.
Network = Annotated[
    IPv4Network | IPv6Network,
    PlainValidator(_network),
    WithJsonSchema({"type": "string", "format": "ipvanynetwork"}),
]


def _check_some(algorithms: tuple[Algorithm, ...]) -> tuple[Algorithm, ...]:
    if not algorithms:
        raise ValueError("should have at least 1 item")
    return algorithms


class ApiKeySettings(Section):
    """One API key of a caller, as `mcproxy keys add` prints it."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$"), worded("should be 64 hexadecimal digits in lower case")]
    """SHA-256 of the key, in hexadecimal."""
    roles: tuple[str, ...] = ()
    """Roles of a caller that authenticates with this key."""
    expires: AwareDatetime | None = None
    """Time at which the key expires, with a time zone: 2027-01-01T00:00:00Z."""


class Issuer(Section):
    """An authorization server whose tokens are accepted."""

    issuer: TrustedUrl
    """Its identifier, exactly the `iss` of its tokens."""
    audience: tuple[str, ...] = ()
    """Values of `aud` that mean this gateway, beside the URL of the requested endpoint."""
    jwks_url: TrustedUrl | None = None
    """URL of its keys. Default: from its metadata (RFC 8414, OpenID Connect Discovery)."""
    algorithms: Annotated[tuple[Algorithm, ...], AfterValidator(_check_some)] = (
        "RS256",
        "RS384",
        "RS512",
        "PS256",
        "PS384",
        "PS512",
        "ES256",
        "ES384",
        "EdDSA",
    )
    """Signature algorithms that are accepted."""
    prefix: NamePrefix = "oidc:"
    """Precedes the names of its callers, so that no other source has them."""
    name_claim: str = "sub"
    """Claim with the caller's name: unique at the issuer, and not chosen by the caller."""
    roles_claim: str = "roles"
    """Claim that lists roles; `realm_access.roles` descends into objects."""
    scopes_claim: str = "scope"
    """Claim with the scopes: a list, or a text separated by spaces."""
    attribute_claims: tuple[str, ...] = ()
    """Claims recorded in the audit log, if they are texts."""
    roles: tuple[str, ...] = ()
    """Roles of all its callers, beside those in their tokens."""
    leeway: SecondsOrNone = 30
    """Allowed difference between its clock and the gateway's."""
    client: OAuthClient = OAuthClient()
    """The gateway as it knows it, for people who sign in on the page where they log in to upstreams (`oauth`)."""


class OAuth(Leaving):
    """The gateway as an OAuth 2.1 resource server (basic/authorization)."""

    issuers: tuple[Issuer, ...] = ()
    """Authorization servers whose tokens are accepted. Needs `proxy.public_url` unless on loopback.

    Each has `issuer: https://login.example`, the `iss` of its tokens; `audience: []`, values of `aud` beside the URL of
    the endpoint; `jwks_url: URL`, by default from its metadata; `algorithms: [RS256, ...]`; `prefix: 'oidc:'` before
    its callers' names; `name_claim: sub`, `roles_claim: roles` (`realm_access.roles` descends into objects),
    `scopes_claim: scope`, `attribute_claims: []` for the audit log; `roles: []` of all its callers; `leeway: 30`
    seconds between its clock and the gateway's; `client: {id, secret}`, the gateway as it knows it, for people who sign
    in on the page where they log in to upstreams.
    """
    required_scopes: tuple[Scope, ...] = ()
    """Scopes that every token must have."""
    scopes_supported: tuple[Scope, ...] = ()
    """Scopes announced to clients beside the required ones."""
    implied_scopes: dict[Scope, tuple[Scope, ...]] = Field(default_factory=dict)
    """The narrower scopes that a broader scope includes, by the broader one."""
    max_token_bytes: Bytes = 16 * 1024
    """Longer tokens are refused unread."""
    max_tokens: Positive = 10_000
    """Verified tokens that are remembered; the least recently used go first."""
    keys_lifetime: Seconds = 3600
    """Time for which an issuer's keys are used before they are fetched again."""
    keys_cooldown: Seconds = 30
    """Least time between two fetches of an issuer's keys, for any key that tokens name."""
    keys_timeout: Seconds = 10
    """Time that an issuer has to respond."""
    keys_max_bytes: Bytes = 256 * 1024
    """The largest response of an issuer."""

    @model_validator(mode="after")
    def _issuers_differ(self) -> Self:
        identifiers = [normal_issuer(issuer.issuer) for issuer in self.issuers]
        for index, identifier in enumerate(identifiers):
            if identifier in identifiers[:index]:
                raise InvalidKey("is already the identifier of another issuer", "issuers", index, "issuer")
        return self


class Forwarded(Section):
    """Callers named by a trusted reverse proxy (`access.authentication.forwarded`)."""

    trusted: tuple[Network, ...] = ()
    """Addresses of trusted proxies, as 10.1.2.3 or 10.0.0.0/8; others' headers are ignored."""
    user_header: HeaderName = "X-Forwarded-User"
    """Header with the caller's name."""
    roles_header: HeaderName | None = None
    """Header with the caller's roles, separated by commas."""
    prefix: NamePrefix = "proxy:"
    """Precedes the names of its callers, so that no other source has them."""
    roles: tuple[str, ...] = ()
    """Roles of all its callers, beside those in the header."""


class Certificates(Section):
    """Callers named by TLS certificates (`access.authentication.certificates`)."""

    enabled: bool = False
    """Take the caller's name from its certificate."""
    name: Literal["common_name", "dns", "email", "uri"] = "common_name"
    """Which name of the certificate: `common_name`, or an alternative name: `dns`, `email` or `uri`. It must have
    exactly one.
    """
    prefix: NamePrefix = "cert:"
    """Precedes the names of its callers, so that no other source has them."""
    roles: tuple[str, ...] = ()
    """Roles of all its callers."""


class StdioCaller(Section):
    """The caller over stdio (`access.authentication.stdio`)."""

    name: KeyName = RESERVED
    """The caller's name."""
    roles: tuple[str, ...] = ()
    """The caller's roles."""


class Authentication(Section):
    """How callers prove who they are; any one way suffices."""

    keys: dict[KeyName, tuple[ApiKeySettings, ...]] = Field(default_factory=dict)
    """API keys by the names of callers, as `mcproxy keys add` prints them.

    {ci-bot: [{sha256: HASH, roles: [reader], expires: 2027-01-01T00:00:00Z}]}. A caller may have several, so that they
    can be replaced one by one.
    """
    key_header: HeaderName | None = None
    """Header that may hold a key, as X-API-Key, beside `Authorization: Bearer`."""
    oauth: OAuth = OAuth()
    """The gateway as an OAuth 2.1 resource server: tokens of OpenID providers and other authorization servers."""
    forwarded: Forwarded = Forwarded()
    """A trusted reverse proxy that names the caller in a header, which it never passes on from clients."""
    certificates: Certificates = Certificates()
    """Clients' TLS certificates, signed by an authority of `proxy.tls.client_ca`."""
    stdio: StdioCaller = StdioCaller()
    """The caller over stdio: the user who started the gateway."""

    @property
    def required(self) -> bool:
        """Whether callers over HTTP must show who they are."""
        return bool(self.keys or self.oauth.issuers or self.forwarded.trusted or self.certificates.enabled)

    @model_validator(mode="after")
    def _keys_are_theirs_alone(self) -> Self:
        if RESERVED in self.keys:
            raise InvalidKey("is the name of callers without credentials: choose another", "keys", RESERVED)
        owners: dict[str, str] = {}
        for caller, keys in self.keys.items():
            for index, key in enumerate(keys):
                if key.sha256 in owners:
                    sentence = f"is already a key of {owners[key.sha256]!r}"
                    raise InvalidKey(sentence, "keys", caller, index, "sha256")
                owners[key.sha256] = caller
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        prefixes: dict[tuple[str | int, ...], str] = {
            ("oauth", "issuers", index, "prefix"): issuer.prefix for index, issuer in enumerate(self.oauth.issuers)
        }
        if self.forwarded.trusted:
            prefixes["forwarded", "prefix"] = self.forwarded.prefix
        if self.certificates.enabled:
            prefixes["certificates", "prefix"] = self.certificates.prefix
        seen: set[str] = set()
        for path, prefix in prefixes.items():
            if prefix in seen:
                sentence = "is the prefix of another source of names too: two callers could have the same name"
                raise InvalidKey(sentence, *path)
            if not prefix and (len(prefixes) > 1 or self.keys):
                sentence = "is empty beside another source of names: two callers could have the same name"
                raise InvalidKey(sentence, *path)
            seen.add(prefix)
        return self

    @model_validator(mode="after")
    def _headers_are_their_own(self) -> Self:
        headers = {
            ("forwarded", "user_header"): self.forwarded.user_header,
            ("forwarded", "roles_header"): self.forwarded.roles_header,
            ("key_header",): self.key_header,
        }
        taken = {"authorization", "cookie"}
        for path, header in headers.items():
            if header is None:
                continue
            if header.lower() in taken:
                raise InvalidKey(f"the header {header} has another purpose already", *path)
            taken.add(header.lower())
        return self
