"""Sign in at an issuer of the gateway's callers: an authorization code with PKCE, for a token that names the principal.

The token is verified like callers' tokens (`access.identity`), so that the same rules yield the same principal. It is
used for nothing else, and not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from mcproxy.access.identity import Identified, Identity, NotIdentified
from mcproxy.call.identity import Principal
from mcproxy.settings.access.authentication import Issuer
from mcproxy.settings.upstreams.oauth import OAuthSettings
from mcproxy.upstream.oauth.flow import Discovered, OAuthFlow
from mcproxy.upstream.oauth.login import Login, LoginFailed
from mcproxy.upstream.oauth.storage.store import GrantStore

_OPENID: Final = "openid"


class StartedSignIn(NamedTuple):
    """A sign-in that has begun: what must be remembered until its redirect comes."""

    issuer: str
    login: Login
    found: Discovered
    url: str
    """The URL for the person's browser."""


class ShownCredential(msgspec.Struct, frozen=True):
    """A key or token that a visitor showed (implements `access.identity.Presented`)."""

    secret: str
    audience: Callable[[str], bool]
    resource: str
    peer: str | None = None

    def header(self, name: str) -> Sequence[str]:
        return (f"Bearer {self.secret}",) if name == "Authorization" else ()

    def certificate(self) -> Collection[tuple[str, str]]:
        return ()

    def is_audience(self, audience: str) -> bool:
        return self.audience(audience)


class SignIn:
    """`resource` is the gateway's own URL, the audience of the token."""

    def __init__(self, identity: Identity, store: GrantStore) -> None:
        self._identity = identity
        self._store = store

    async def begin(self, issuer: Issuer, resource: str, redirect_uri: str, document_url: str | None) -> StartedSignIn:
        """Raises as `OAuthFlow` does."""
        flow = self._flow(issuer, resource)
        server = await flow.server(issuer.issuer)
        scopes = self._identity.settings.oauth.required_scopes
        if _OPENID in (server.scopes_supported or ()):
            scopes = tuple(dict.fromkeys((*scopes, _OPENID)))
        found = Discovered(server, scopes, resource)
        login, url = await flow.begin_login(found, redirect_uri, document_url)
        return StartedSignIn(issuer.issuer, login, found, url)

    async def finish(self, started: StartedSignIn, redirected: Mapping[str, str]) -> Principal:
        """The principal who signed in. Raises NotIdentified, and as `OAuthFlow` does."""
        resource = started.found.resource
        issuers = self._identity.settings.oauth.issuers
        issuer = next((issuer for issuer in issuers if issuer.issuer == started.issuer), None)
        if issuer is None:
            raise LoginFailed(f"issuer {started.issuer} is not one of the gateway's any more")
        flow = self._flow(issuer, resource)
        token = await flow.redeem(started.login, started.found.server, redirected)
        try:
            return _own(await self._identified(token.access, resource), issuer)
        except NotIdentified:
            if token.identity is None:
                raise
        # Some issuers' access tokens are opaque, or for themselves. An identity token is for the client that asked.
        client = started.login.client.id
        shown = ShownCredential(token.identity, lambda audience: audience == client, resource)
        return _own(await self._identity.identify(shown), issuer)

    async def principal(self, secret: str, resource: str) -> Principal:
        """The principal of a key or token. Raises NotIdentified."""
        return (await self._identified(secret, resource)).principal

    async def _identified(self, secret: str, resource: str) -> Identified:
        def is_audience(audience: str) -> bool:
            return audience.removesuffix("/") == resource

        return await self._identity.identify(ShownCredential(secret, is_audience, resource))

    def _flow(self, issuer: Issuer, resource: str) -> OAuthFlow:
        settings = OAuthSettings(issuer=issuer.issuer, client=issuer.client)
        return OAuthFlow("", resource, settings, self._store, egress=self._identity.settings.oauth.leaving)


def _own(found: Identified, issuer: Issuer) -> Principal:
    """The principal of what an issuer gave. Raises LoginFailed where another made it: it speaks for its own alone."""
    if found.token is None or found.token.source.issuer.issuer != issuer.issuer:
        raise LoginFailed(f"issuer {issuer.issuer} gave a token that it did not make itself")
    return found.principal
