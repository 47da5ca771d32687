"""What can be said of how callers show who they are. Decides nothing; `access.identity` does.

Where nothing is given everybody is anonymous. Where anything is, nobody over HTTP is: who shows nothing is refused.
Names of callers are unique: each source of them but the keys has a prefix of its own.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, AwareDatetime, Field, IPvAnyNetwork, model_validator

from mcproxy.settings.loopback import is_loopback
from mcproxy.settings.section import Bytes, Positive, Seconds, SecondsOrNone, Section

RESERVED: Final = "anonymous"
"""The name of everybody who is not authenticated."""

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]
"""Signatures by public keys alone: whoever can check one of these cannot make one."""

KeyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]*$", max_length=128)]
NamePrefix = Annotated[str, Field(pattern=r"^([a-z][a-z0-9-]*:)?$", max_length=32)]
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]*$", max_length=64)]
Scope = Annotated[str, Field(pattern=r"^[\x21\x23-\x5B\x5D-\x7E]+$")]
"""RFC 6749, appendix A.4."""


def _check_trusted(url: str) -> str:
    """Nothing that is trusted for its answers is asked in the open (OAuth 2.1, section 1.5)."""
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


def _check_some(algorithms: tuple[Algorithm, ...]) -> tuple[Algorithm, ...]:
    if not algorithms:
        raise ValueError("should have at least 1 item")
    return algorithms


class ApiKeySettings(Section):
    """One key of a caller. `mcproxy keys add` makes it, and this."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """The SHA-256 of the key, in hexadecimal."""
    roles: tuple[str, ...] = ()
    """The roles of whoever shows the key."""
    expires: AwareDatetime | None = None
    """When the key stops being good, with a time zone: 2027-01-01T00:00:00Z."""


class Issuer(Section):
    """An authorization server whose tokens are good here."""

    issuer: TrustedUrl
    """Its identifier, which is the `iss` of its tokens, letter by letter."""
    audience: tuple[str, ...] = ()
    """Values of `aud` that mean this gateway, beside the URL of the endpoint that is asked."""
    jwks_url: TrustedUrl | None = None
    """Where its keys are; else its metadata says so (RFC 8414, OpenID Connect Discovery)."""
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
    """Signatures that are accepted."""
    prefix: NamePrefix = "oidc:"
    """Stands before the names of its callers, so that they are no other source's."""
    name_claim: str = "sub"
    """Which claim names the caller. It must be unique with the issuer, and not the caller's own to choose."""
    roles_claim: str = "roles"
    """Which claim lists roles; `realm_access.roles` goes into objects."""
    scopes_claim: str = "scope"
    """Which claim says the scopes: a text with spaces, or a list."""
    attribute_claims: tuple[str, ...] = ()
    """Claims that are kept for the audit log, where they are texts."""
    roles: tuple[str, ...] = ()
    """Roles of all its callers, beside those that their tokens say."""
    leeway: SecondsOrNone = 30
    """How far its clock and ours may be apart."""


class OAuth(Section):
    """The gateway as an OAuth 2.1 resource server (basic/authorization)."""

    issuers: tuple[Issuer, ...] = ()
    """Whose tokens are good, and where clients are sent for them. Needs `proxy.public_url` but on loopback."""
    required_scopes: tuple[Scope, ...] = ()
    """Scopes that every token must have."""
    scopes_supported: tuple[Scope, ...] = ()
    """Scopes that clients are told of beside the required ones."""
    implied_scopes: dict[Scope, tuple[Scope, ...]] = Field(default_factory=dict)
    """By a broader scope: the narrower ones that it stands for."""
    max_token_bytes: Bytes = 16 * 1024
    """A longer token is refused unread."""
    max_tokens: Positive = 10_000
    """Tokens that are remembered as verified; the least used give way."""
    keys_lifetime: Seconds = 3600
    """How long keys of an issuer are used before they are fetched again."""
    keys_cooldown: Seconds = 30
    """How often keys are fetched at most, whatever tokens name."""
    keys_timeout: Seconds = 10
    """For an issuer to answer."""
    keys_max_bytes: Bytes = 256 * 1024
    """The largest answer of an issuer."""

    @model_validator(mode="after")
    def _issuers_differ(self) -> OAuth:
        if len({issuer.issuer for issuer in self.issuers}) < len(self.issuers):
            raise ValueError("names an issuer twice")
        return self


class Forwarded(Section):
    """A proxy in front that says who its callers are, in a header that it never passes on from them."""

    trusted: tuple[IPvAnyNetwork, ...] = ()
    """Addresses of proxies, as 10.1.2.3 or 10.0.0.0/8, whose word is taken; of nobody else's request is it read."""
    user_header: HeaderName = "X-Forwarded-User"
    """Which header names the caller."""
    roles_header: HeaderName | None = None
    """Which header lists the caller's roles, with commas."""
    prefix: NamePrefix = "proxy:"
    """Stands before the names of its callers, so that they are no other source's."""
    roles: tuple[str, ...] = ()
    """Roles of all its callers, beside those of the header."""


class Certificates(Section):
    """Clients' TLS certificates, signed by `proxy.tls.client_ca`, as their names."""

    enabled: bool = False
    """Whether a certificate tells who a caller is."""
    name: Literal["common_name", "dns", "email", "uri"] = "common_name"
    """Which of its names: that of the subject, or one of its alternatives. It must have exactly one."""
    prefix: NamePrefix = "cert:"
    """Stands before the names of its callers, so that they are no other source's."""
    roles: tuple[str, ...] = ()
    """Roles of all its callers."""


class Local(Section):
    """Who asks over stdio: whoever started the gateway."""

    name: KeyName = RESERVED
    """What the caller is called."""
    roles: tuple[str, ...] = ()
    """The caller's roles."""


class Authentication(Section):
    """How callers show who they are; any one way will do."""

    keys: dict[KeyName, tuple[ApiKeySettings, ...]] = Field(default_factory=dict)
    """API keys, by the names of callers. A caller may have several, so that they can be changed one by one."""
    key_header: HeaderName | None = None
    """A header that may bring a key, as X-API-Key, beside `Authorization: Bearer`."""
    oauth: OAuth = OAuth()
    """Tokens of OpenID providers and other authorization servers."""
    forwarded: Forwarded = Forwarded()
    """The word of a proxy in front."""
    certificates: Certificates = Certificates()
    """TLS certificates of clients."""
    stdio: Local = Local()
    """Who asks over stdio."""

    @property
    def required(self) -> bool:
        """Whether callers over HTTP must show who they are."""
        return bool(self.keys or self.oauth.issuers or self.forwarded.trusted or self.certificates.enabled)

    @model_validator(mode="after")
    def _keys_are_theirs_alone(self) -> Authentication:
        if RESERVED in self.keys:
            raise ValueError(f"gives keys to {RESERVED!r}, which is who shows none")
        hashes = Counter(key.sha256 for keys in self.keys.values() for key in keys)
        if any(count > 1 for count in hashes.values()):
            raise ValueError("has one key twice")
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> Authentication:
        prefixes = [issuer.prefix for issuer in self.oauth.issuers]
        prefixes += [self.forwarded.prefix] if self.forwarded.trusted else []
        prefixes += [self.certificates.prefix] if self.certificates.enabled else []
        if len(set(prefixes)) < len(prefixes):
            raise ValueError("has two sources of names with one prefix: two callers could have one name")
        if "" in prefixes and (len(prefixes) > 1 or self.keys):
            raise ValueError("has an empty prefix, which is for the only source of names: two could have one")
        return self

    @model_validator(mode="after")
    def _headers_are_their_own(self) -> Authentication:
        headers = [self.key_header, self.forwarded.user_header, self.forwarded.roles_header, "authorization", "cookie"]
        given = [header.lower() for header in headers if header is not None]
        if len(set(given)) < len(given):
            raise ValueError("means two things by one header")
        return self
