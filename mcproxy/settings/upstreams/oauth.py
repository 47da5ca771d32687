"""Settings of OAuth toward one upstream: the grant by which the gateway gets tokens, and for which callers."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mcproxy.settings.section import Section, worded

RequestedScope = Annotated[
    str,
    Field(pattern=r"^[\x21\x23-\x5b\x5d-\x7e]+$", max_length=256),
    worded("should be one scope, without spaces, quotation marks and backslashes, of at most 256 characters"),
]
"""One scope (RFC 6749, section 3.3)."""
Https = Annotated[
    str,
    Field(pattern=r"^https?://[^\s?#]+$", max_length=2048),
    worded("should be a URL without query and fragment, of at most 2048 characters"),
]
"""A URL without query and fragment; http is for loopback alone, which is checked where it is used."""

ResourceIndicator = Annotated[
    str,
    Field(pattern=r"^(omit|[A-Za-z][A-Za-z0-9+.-]*:[\x21\x22\x24-\x7e]+)$", max_length=2048),
    worded("should be `omit`, or a URI without a fragment, of at most 2048 characters"),
]
"""A resource indicator (RFC 8707, section 2), or `omit`."""


class OAuthClient(Section):
    """The gateway's client at the authorization server, if it was registered there beforehand."""

    id: str | None = None
    """The client identifier; without it the gateway publishes a metadata document or registers itself."""
    secret: str | None = Field(default=None, repr=False)
    """The client's secret, as `${VARIABLE}`."""
    key: str | None = Field(default=None, repr=False)
    """A private key in PEM, as `${file:/path}`: the client authenticates by signed assertions (private_key_jwt)."""
    algorithm: Literal["RS256", "PS256", "ES256", "ES384", "EdDSA"] | None = None
    """Signature algorithm of assertions. Default: chosen by the key."""
    name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Name under which the gateway registers itself; some servers register only clients of certain names.
    Default: `mcproxy`.
    """
    metadata_url: Https | None = None
    """URL of the client's metadata document. Default: `proxy.public_url` + `/oauth/client.json`."""

    @model_validator(mode="after")
    def _a_proof_belongs_to_an_id(self) -> Self:
        if self.id is None and (self.secret or self.key):
            raise ValueError("has a secret or key, and no id that it belongs to")
        if self.secret is not None and self.key is not None:
            raise ValueError("has both a secret and a key: keep one")
        return self


class WorkloadSettings(Section):
    """For the grant `workload`: the assertion that the platform gives this process (RFC 7523)."""

    token_file: str
    """A file with a JSON Web Token, read for each token request."""


class EnterpriseSettings(Section):
    """For the grant `enterprise`: the identity provider that the authorization server trusts (Cross-App Access).

    The identity token is exchanged there for an assertion (ID-JAG, RFC 8693), and that for the access token (RFC 7523).
    """

    issuer: Https
    """The identity provider."""
    client: OAuthClient = OAuthClient()
    """The gateway as the identity provider knows it."""
    id_token_file: str | None = None
    """A file with the identity token, read anew for each token request. Default: the caller's own, by which it
    authenticated to the gateway.
    """


class OAuthSettings(Section):
    """How the gateway gets tokens for an upstream. `oauth: {}` discovers everything."""

    grant: Literal["authorization_code", "client_credentials", "token_exchange", "enterprise", "workload"] = (
        "authorization_code"
    )
    """`authorization_code`: a person logs in once. `token_exchange`: the token by which a caller authenticated here is
    exchanged at `issuer` for one of its own (RFC 8693). With the others the gateway asks for itself.
    """
    per: Literal["principal", "gateway"] | None = None
    """`principal`: each caller logs in for itself; `gateway`: one login serves every caller.

    Default: `principal` for a login of people where callers authenticate, else `gateway`.
    """
    issuer: Https | None = None
    """The authorization server. Default: the one that the server names; `client` is used with the first such alone."""
    client: OAuthClient = OAuthClient()
    """The gateway as this authorization server knows it."""
    scopes: tuple[RequestedScope, ...] = ()
    """Scopes to request beside those that the server demands."""
    scopes_allowed: tuple[str, ...] = ("*",)
    """Globs of the scopes that may be requested: the ceiling for a server's challenges."""
    pkce: Literal["advertised", "assumed"] = "advertised"
    """`assumed`: use a server whose metadata does not say that it supports PKCE (S256), because its documentation does,
    as that of Entra ID and Cognito. A server that ignores PKCE gives no protection against stolen codes.
    """
    resource: ResourceIndicator | None = None
    """Value of the parameter `resource` (RFC 8707) that names the server to its authorization server; `omit` sends
    none, as Entra ID may want. Default: what the server's metadata names, else its URL.
    """
    enterprise: EnterpriseSettings | None = None
    """For the grant `enterprise`."""
    workload: WorkloadSettings | None = None
    """For the grant `workload`."""

    @property
    def exchanges(self) -> bool:
        """Whether the tokens with which callers authenticate to the gateway are exchanged."""
        is_own = self.enterprise is not None and self.enterprise.id_token_file is None
        return self.grant == "token_exchange" or is_own

    @model_validator(mode="after")
    def _the_grant_has_what_it_needs(self) -> Self:
        if self.grant == "client_credentials" and not (self.client.id and (self.client.secret or self.client.key)):
            raise ValueError("grant client_credentials needs client: {id: ..., secret: ...} or {id: ..., key: ...}")
        if self.grant == "token_exchange" and self.issuer is None:
            # The operator, and no upstream, names the server that callers' tokens are sent to.
            raise ValueError("grant token_exchange needs issuer: where callers' tokens are exchanged")
        if self.exchanges and self.per == "gateway":
            raise ValueError("exchanges each caller's own token: `per: gateway` has no meaning")
        for grant, section in (("enterprise", self.enterprise), ("workload", self.workload)):
            if (self.grant == grant) != (section is not None):
                raise ValueError(f"grant {grant} and the key `{grant}` go together")
        return self
