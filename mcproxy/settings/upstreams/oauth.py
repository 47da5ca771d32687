"""Settings of OAuth toward one upstream: by which grant the gateway gets its tokens, and for whom."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mcproxy.settings.section import Section

RequestedScope = Annotated[str, Field(pattern=r"^[\x21\x23-\x5b\x5d-\x7e]+$", max_length=256)]
"""One scope (RFC 6749, section 3.3)."""
Https = Annotated[str, Field(pattern=r"^https?://[^\s?#]+$", max_length=2048)]
"""A URL without query and fragment; http is for loopback alone, which is checked where it is used."""


class OAuthClient(Section):
    """What the authorization server knows the gateway as, where it was registered there beforehand."""

    id: str | None = None
    """The client identifier; without it the gateway publishes a metadata document or registers itself."""
    secret: str | None = Field(default=None, repr=False)
    """The client's secret, as `${VARIABLE}`."""
    key: str | None = Field(default=None, repr=False)
    """A private key in PEM, as `${file:/path}`: the client proves itself by signed assertions (private_key_jwt)."""
    algorithm: Literal["RS256", "PS256", "ES256", "ES384", "EdDSA"] | None = None
    """How assertions are signed; found out from the key where it is not given."""
    metadata_url: Https | None = None
    """Where the client's metadata document is published; `proxy.public_url` + `/oauth/client.json` by default."""

    @model_validator(mode="after")
    def _a_proof_belongs_to_an_id(self) -> OAuthClient:
        if self.id is None and (self.secret or self.key):
            raise ValueError("has a secret or key, and no id that it belongs to")
        if self.secret is not None and self.key is not None:
            raise ValueError("has both a secret and a key: keep one")
        return self


class WorkloadSettings(Section):
    """Of grant `workload`: the assertion that the platform gives this process (RFC 7523)."""

    token_file: str
    """A file with a JSON Web Token, read anew for each token request."""


class EnterpriseSettings(Section):
    """Of grant `enterprise`: the identity provider whose word the authorization server takes (Cross-App Access).

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
    """How the gateway gets tokens for an upstream. `oauth: {}` finds everything out."""

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
    """The authorization server. Found out at first, and kept to from then on, where it is not given."""
    client: OAuthClient = OAuthClient()
    """The gateway as this authorization server knows it."""
    scopes: tuple[RequestedScope, ...] = ()
    """Scopes that are asked for beside those that the server wants."""
    scopes_allowed: tuple[str, ...] = ("*",)
    """Globs of the scopes that may be asked for: the ceiling of what a server's challenges can lead to."""
    enterprise: EnterpriseSettings | None = None
    """Of grant `enterprise`."""
    workload: WorkloadSettings | None = None
    """Of grant `workload`."""

    @property
    def exchanges(self) -> bool:
        """Whether the tokens by which callers authenticate here are exchanged."""
        is_own = self.enterprise is not None and self.enterprise.id_token_file is None
        return self.grant == "token_exchange" or is_own

    @model_validator(mode="after")
    def _the_grant_has_what_it_needs(self) -> OAuthSettings:
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
