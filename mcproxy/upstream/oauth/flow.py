"""The steps of a login or a token request, in order: discovery, registration, a person's consent, token exchange."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import Final, NamedTuple

import anyio
import msgspec

from mcproxy.access.audit.grant_records import GrantAction, GrantOutcome, GrantRecord, RecordGrant, unrecorded
from mcproxy.concurrency.clock import Sleep
from mcproxy.egress.egress import Egress
from mcproxy.settings.upstreams.oauth import EnterpriseSettings, OAuthSettings
from mcproxy.upstream.oauth import device, login, metadata, registration, tokens
from mcproxy.upstream.oauth.challenge import BearerChallenge, bearer_challenge
from mcproxy.upstream.oauth.device import DeviceLogin
from mcproxy.upstream.oauth.endpoints import EndpointFailed, Endpoints
from mcproxy.upstream.oauth.grants import Grant, GrantKey, Renewal
from mcproxy.upstream.oauth.login import Login, LoginFailed
from mcproxy.upstream.oauth.metadata import InvalidMetadata, ServerMetadata
from mcproxy.upstream.oauth.registration import CannotRegister, ClientIdentity
from mcproxy.upstream.oauth.storage.store import GrantStore, StoreFailed
from mcproxy.upstream.oauth.tokens import Token, TokenForm, TokenRefused, TokenUnavailable

PASSING: Final = (EndpointFailed, TokenUnavailable, StoreFailed)
"""Failures that are not final: the same request may succeed later."""
DECISIVE: Final = (TokenRefused, InvalidMetadata, CannotRegister, LoginFailed)
"""Failures after which the same request would fail again."""
_ID_BYTES: Final = 8
_MAX_KNOWN: Final = 1024
"""Ids of logins that this process remembers having made, and having revoked."""
_NOT_THERE: Final = frozenset({400, 401, 403, 404, 405, 406, 410, 501})
"""Statuses of a well-known document's URL after which the next URL is tried."""


class Discovered(NamedTuple):
    """An authorization server, and what to request from it."""

    server: ServerMetadata
    scopes: tuple[str, ...]
    resource: str
    """The upstream's URI according to its own metadata, else its canonical form."""


class OAuthFlow:
    """The flow for the upstream at `url`.

    Each coroutine raises EndpointFailed, InvalidMetadata, CannotRegister, LoginFailed, TokenRefused, TokenUnavailable
    or StoreFailed, with a text for operators.
    """

    def __init__(
        self,
        upstream: str,
        url: str,
        settings: OAuthSettings,
        store: GrantStore,
        record: RecordGrant = unrecorded,
        *,
        egress: Egress | None = None,
        clock: Callable[[], float] = time.time,
        randomness: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.upstream: Final = upstream
        """The upstream's name."""
        self._url = url
        self.settings = settings
        self._store = store
        self._record = record
        self._made: deque[str] = deque(maxlen=_MAX_KNOWN)
        self._revoked: deque[str] = deque(maxlen=_MAX_KNOWN)
        self._clock = clock
        self._randomness = randomness
        self.resource = metadata.resource_of(url)
        """The canonical URI of the upstream."""
        self._servers: dict[str, ServerMetadata] = {}
        """The metadata found last, by issuer: a refresh needs no request for it."""
        self._issuer_of_client: str | None = None
        """The issuer that first gave the configured client a token; None before."""
        provider = None if settings.enterprise is None else settings.enterprise.issuer
        trusted = tuple(each for each in (url, settings.issuer, provider) if each is not None)
        self._endpoints = Endpoints(trusted, egress)

    def note(self, action: GrantAction, principal: str, issuer: str, subject: str | None = None) -> None:
        """Records, for the audit, a change of a grant that succeeded."""
        self._record(
            GrantRecord(
                at=self._clock(),
                action=action,
                outcome=GrantOutcome.OK,
                upstream=self.upstream,
                principal=principal,
                issuer=issuer,
                subject=subject,
            )
        )

    def has_made(self, grant: Grant) -> bool:
        """Whether this process made the login."""
        return grant.id in self._made

    def has_revoked(self, grant: Grant) -> bool:
        """Whether this process revoked the grant."""
        return grant.id in self._revoked

    @contextmanager
    def _recorded(self, action: GrantAction, principal: str, issuer: str) -> Iterator[list[Grant]]:
        """Records what the `with` block does; the block appends the resulting grant to the list."""
        brought: list[Grant] = []

        def failed(outcome: GrantOutcome, why: Exception) -> None:
            at = self._clock()
            self._record(GrantRecord(at, action, outcome, self.upstream, principal, issuer, why=str(why)))

        try:
            yield brought
        except PASSING as error:
            failed(GrantOutcome.UNAVAILABLE, error)
            raise
        except DECISIVE as error:
            failed(GrantOutcome.REFUSED, error)
            raise
        self.note(action, principal, issuer, brought[0].token.subject if brought else None)

    def is_for_this(self, grant: Grant) -> bool:
        """Whether a stored grant is for the upstream as configured now (requirement R68)."""
        return grant.url == self._url and self.settings.issuer in {None, grant.issuer}

    async def challenge(self) -> BearerChallenge | None:
        """The server's challenge to a request without a token; None if it demands none."""
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        probe = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
        answer = await self._endpoints.post(self._url, probe, headers)
        return _challenge_of(answer.status, answer.challenge)

    async def discover(self, challenge: BearerChallenge | None, earlier: tuple[str, ...] = ()) -> Discovered:
        """Finds the authorization server. `earlier` are scopes requested before, which a step-up keeps."""
        resource = await self._resource_metadata(challenge)
        named = metadata.origin_as_issuer(self._url) if resource is None else resource.authorization_servers[0]
        issuer = self.settings.issuer or named
        server = await self._server_metadata(issuer, assumes=resource is None and self.settings.issuer is None)
        wanted = (*earlier, *metadata.scopes_to_ask(challenge, resource, server), *self.settings.scopes)
        scopes = tuple(dict.fromkeys(filter(self.may_ask_for, wanted)))[: registration.MAX_SCOPES]
        return Discovered(server, scopes, self.resource if resource is None else resource.resource)

    def may_ask_for(self, scope: str) -> bool:
        """Whether the operator allows a scope to be requested (`oauth.scopes_allowed`)."""
        return any(fnmatchcase(scope, allowed) for allowed in self.settings.scopes_allowed)

    async def _resource_metadata(self, challenge: BearerChallenge | None) -> metadata.ResourceMetadata | None:
        """The resource metadata; None if the server publishes none, as servers of 2025-03-26 do not."""
        for url in metadata.resource_metadata_urls(self._url, challenge):
            answer = await self._endpoints.get(url)
            if answer.status == 200:
                return metadata.read_resource_metadata(answer.body, self._url)
            if answer.status not in _NOT_THERE:
                raise EndpointFailed(f"{url} answered HTTP {answer.status}")
        return None

    async def server(self, issuer: str) -> ServerMetadata:
        """The metadata of an issuer that an operator named."""
        return await self._server_metadata(issuer, assumes=False)

    async def _server_metadata(self, issuer: str, *, assumes: bool) -> ServerMetadata:
        """`assumes` that nobody named the issuer: where it publishes no metadata, it has its endpoints by default.

        2025-03-26, authorization.
        """
        tried = metadata.server_metadata_urls(issuer)
        for url in tried:
            answer = await self._endpoints.get(url)
            if answer.status == 200:
                read = metadata.read_server_metadata(answer.body, issuer, is_origin=assumes)
                self._servers = {read.issuer: read}
                return read
            if answer.status not in _NOT_THERE:
                raise EndpointFailed(f"{url} answered HTTP {answer.status}")
        if assumes:
            return metadata.endpoints_by_default(issuer)
        raise InvalidMetadata(f"issuer {issuer} publishes no metadata: nothing is at {', '.join(tried)}")

    async def begin_login(
        self, found: Discovered, redirect_uri: str, document_url: str | None = None
    ) -> tuple[Login, str]:
        """A login under way, and the URL for the person to open.

        `document_url` is where the gateway's metadata document is published.
        """
        client = await self._identity(found, redirect_uri, document_url)
        begun = login.begin(
            found.server,
            client,
            redirect_uri=redirect_uri,
            resource=found.resource,
            scopes=found.scopes,
            randomness=self._randomness,
        )
        return begun, login.authorization_url(begun, found.server)

    async def finish_login(
        self, begun: Login, server: ServerMetadata, redirected: Mapping[str, str], principal: str = ""
    ) -> Grant:
        """The grant, stored under `principal`, else as the gateway's own."""
        with self._recorded(GrantAction.LOGIN, principal, begun.issuer) as brought:
            token = await self.redeem(begun, server, redirected)
            brought.append(await self._logged_in(principal, begun, server, token))
        return brought[0]

    async def redeem(self, begun: Login, server: ServerMetadata, redirected: Mapping[str, str]) -> Token:
        """The token for the code in a redirect; nothing is stored."""
        code = login.code_of(begun, redirected)
        return await self._token(tokens.code_exchange(begun, code), begun.client, server)

    async def begin_device_login(self, found: Discovered, document_url: str | None = None) -> DeviceLogin:
        """A login by a code that a person enters on any device, and what the person is shown."""
        server = found.server
        if server.device_authorization_endpoint is None:
            raise LoginFailed(f"issuer {server.issuer} has no device flow: log in without --device")
        client = await self._identity(found, registration.NO_REDIRECT, document_url)
        form = device.device_request(found.resource, found.scopes)
        body, headers = tokens.token_request(form, client, server, self._clock())
        answer = await self._endpoints.post(server.device_authorization_endpoint, body, headers)
        return device.read_device_login(
            answer.status,
            answer.body,
            self._clock(),
            server=server,
            client=client,
            resource=found.resource,
            scopes=found.scopes,
        )

    async def finish_device_login(
        self, begun: DeviceLogin, server: ServerMetadata, sleep: Sleep, principal: str = ""
    ) -> Grant:
        """The grant, stored, once the person has entered the code; polls until then, as often as the server allows."""
        with self._recorded(GrantAction.LOGIN, principal, begun.issuer) as brought:
            token = await self._polled(begun, server, sleep)
            brought.append(await self._logged_in(principal, begun, server, token))
        return brought[0]

    async def _polled(self, begun: DeviceLogin, server: ServerMetadata, sleep: Sleep) -> Token:
        interval = begun.interval
        while True:
            await sleep(interval)
            try:
                return await self._token(device.polling(begun), begun.client, server)
            except (TokenRefused, TokenUnavailable) as problem:
                interval = device.next_interval(begun, interval, problem, self._clock())

    async def _logged_in(
        self, principal: str, begun: Login | DeviceLogin, server: ServerMetadata, token: Token
    ) -> Grant:
        """The grant of a login, stored under an id of its own."""
        id = self._randomness(_ID_BYTES).hex()
        self._made.append(id)
        return await self._granted(principal, begun.client, server, begun.scopes, begun.resource, token, id)

    async def request_token(
        self,
        found: Discovered,
        principal: str = "",
        inbound_token: str | None = None,
        store: GrantStore | None = None,
    ) -> Grant:
        """Gets a token without a person, for the gateway itself or in exchange for a caller's.

        The grant is put into `store`; by default, into that of the flow.
        """
        with self._recorded(GrantAction.REQUEST, principal, found.server.issuer) as brought:
            client = await self._configured(found.server) or ClientIdentity("")
            token = await self._token(await self._form(found, inbound_token), client, found.server)
            brought.append(
                await self._granted(principal, client, found.server, found.scopes, found.resource, token, store=store)
            )
        return brought[0]

    async def _form(self, found: Discovered, inbound_token: str | None) -> TokenForm:
        """The token request of a grant that needs no person."""
        settings, resource, scopes = self.settings, found.resource, found.scopes
        if settings.grant == "token_exchange":
            return tokens.token_exchange(_brought(inbound_token), resource, scopes)
        if settings.workload is not None:
            assertion = await _file(settings.workload.token_file, "oauth.workload.token_file")
            return tokens.by_assertion(assertion, resource, scopes)
        if settings.enterprise is not None:
            assertion = await self._enterprise_assertion(settings.enterprise, found, inbound_token)
            return tokens.by_assertion(assertion, resource, scopes)
        return tokens.client_credentials(resource, scopes)

    async def _enterprise_assertion(
        self, settings: EnterpriseSettings, found: Discovered, inbound_token: str | None
    ) -> str:
        """The assertion (ID-JAG) that the identity provider issues for an identity token."""
        if settings.id_token_file is not None:
            id_token = await _file(settings.id_token_file, "oauth.enterprise.id_token_file")
        else:
            id_token = _brought(inbound_token)
            if not tokens.is_identity_token(id_token, settings.issuer):
                raise LoginFailed(f"the caller authenticated with no identity token of {settings.issuer}")
        provider = await self._server_metadata(settings.issuer, assumes=False)
        client = registration.configured(settings.client, provider) or ClientIdentity("")
        form = tokens.identity_exchange(id_token, found.server.issuer, found.resource, found.scopes)
        exchanged = await self._token(form, client, provider, kind="n_a")
        return exchanged.access

    async def renew(self, renewal: Renewal, inbound_token: str | None = None, store: GrantStore | None = None) -> Grant:
        """The grant with its next token, stored: refreshed if a person logged in, else requested as `request_token`."""
        if self.settings.grant == "authorization_code" and renewal.grant is not None:
            return await self.refresh(renewal.grant)
        found = await self.discover(renewal.challenge, renewal.scopes)
        return await self.request_token(found, renewal.key.principal, inbound_token, store)

    async def refresh(self, grant: Grant) -> Grant:
        """The grant with a new token, stored before anything else uses the token (requirement R65)."""
        assert grant.token.refresh is not None, "asked of grants with a refresh token"
        with self._recorded(GrantAction.REFRESH, grant.principal, grant.issuer) as brought:
            server = self._servers.get(grant.issuer)
            if server is None:
                server = await self._server_metadata(grant.issuer, assumes=self.settings.issuer is None)
            token = await self._token(tokens.refreshing(grant.token.refresh, grant.resource), grant.client, server)
            brought.append(await self._store.update(grant.renewed(token)))
        return brought[0]

    async def revoke(self, grant: Grant) -> None:
        """Revokes the grant at its authorization server, if it supports that (RFC 7009), and forgets the grant."""
        with self._recorded(GrantAction.REVOCATION, grant.principal, grant.issuer) as brought:
            brought.append(grant)
            self._revoked.append(grant.id)
            self._issuer_of_client = None
            try:
                server = await self._server_metadata(grant.issuer, assumes=False)
                if server.revocation_endpoint is not None:
                    form: TokenForm = {"token": grant.token.refresh or grant.token.access}
                    body, headers = tokens.token_request(form, grant.client, server, self._clock())
                    await self._endpoints.post(server.revocation_endpoint, body, headers)
            finally:
                await self._store.delete(grant.key)

    async def _identity(self, found: Discovered, redirect_uri: str, document_url: str | None) -> ClientIdentity:
        """The gateway's client identity there: configured, by its document, registered before, or registered now."""
        settings, server = self.settings.client, found.server
        known = await self._configured(server)
        known = known or registration.by_document(settings.metadata_url or document_url, server, redirect_uri)
        if known is not None:
            return known
        stored = await self._store.registration(server.issuer, redirect_uri)
        if stored is not None and stored.serves(redirect_uri, found.scopes, self._clock()):
            return stored
        return await self._register(found, redirect_uri, registration.scopes_to_register(stored, found.scopes))

    async def _configured(self, server: ServerMetadata) -> ClientIdentity | None:
        """The client in the settings, if any. Raises CannotRegister where it is another issuer's (requirement R69).

        An upstream may come to name another authorization server, which "MUST NOT" get what the first one gave out
        (Authorization Server Binding).
        """
        known = registration.configured(self.settings.client, server)
        if known is None or self.settings.issuer is not None:
            return known
        if self._issuer_of_client is None:
            grants = [grant for grant in await self._store.all() if grant.upstream == self.upstream]
            used = [grant.issuer for grant in grants if grant.url == self._url and grant.client.id == known.id]
            self._issuer_of_client = next(iter(used), None)
        if self._issuer_of_client not in {None, server.issuer}:
            raise CannotRegister(
                f"the server now names the issuer {server.issuer}, and the client of oauth.client was used with "
                f"{self._issuer_of_client}: set oauth.issuer to the one that the client is registered at"
            )
        return known

    async def _register(self, found: Discovered, redirect_uri: str, attempts: list[tuple[str, ...]]) -> ClientIdentity:
        """The client, registered and stored. `attempts` are the scopes to register it for, in the order to try."""
        server = found.server
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        for scopes in attempts:
            wanted = registration.registration_request(server, redirect_uri, scopes)
            assert server.registration_endpoint is not None, "`registration_request` saw to it"
            answer = await self._endpoints.post(server.registration_endpoint, msgspec.json.encode(wanted), headers)
            if answer.status not in {HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN}:
                break
        if answer.status not in {200, 201}:
            words = " ".join(answer.body[:300].decode(errors="replace").split())
            raise CannotRegister(
                f"issuer {server.issuer} refused to register the gateway (HTTP {answer.status}: {words}): register it "
                f"there by hand, {registration.described(redirect_uri)}, and set oauth.client.id"
            )
        # Without scopes of its own it is allowed all of them, or a default that asking again would not change.
        client = registration.read_registration(answer.body, server, redirect_uri, scopes or found.scopes)
        await self._store.register(server.issuer, redirect_uri, client)
        return client

    async def _token(
        self, form: TokenForm, client: ClientIdentity, server: ServerMetadata, *, kind: str = "bearer"
    ) -> Token:
        body, headers = tokens.token_request(form, client, server, self._clock())
        try:
            answer = await self._endpoints.post(server.token_endpoint, body, headers)
        except EndpointFailed as error:
            raise TokenUnavailable(str(error)) from error
        try:
            return tokens.read_token(answer.status, answer.body, answer.content_type, self._clock(), kind=kind)
        except TokenRefused as refused:
            raise TokenRefused(refused.code, tokens.concealed(str(refused), form, client)) from None

    async def _granted(
        self,
        principal: str,
        client: ClientIdentity,
        server: ServerMetadata,
        scopes: tuple[str, ...],
        resource: str,
        token: Token,
        id: str = "",
        store: GrantStore | None = None,
    ) -> Grant:
        """A new grant, stored. `id` is that of a login; a grant that the gateway got by itself has none."""
        store = store or self._store
        before = await store.load(GrantKey(self.upstream, principal))
        generation = 1 if before is None else before.generation + 1
        token = msgspec.structs.replace(token, identity=None)
        grant = Grant(
            upstream=self.upstream,
            url=self._url,
            resource=resource,
            issuer=server.issuer,
            client=client,
            scopes=scopes,
            token=token,
            generation=generation,
            principal=principal,
            id=id,
        )
        await store.save(grant)
        if client.id and client.id == self.settings.client.id:
            self._issuer_of_client = server.issuer
        return grant


def _brought(inbound_token: str | None) -> str:
    """The caller's own token. Raises LoginFailed if the caller authenticated without one."""
    if inbound_token is None:
        raise LoginFailed("the caller authenticated with no token that could be exchanged: it needs one of an issuer")
    return inbound_token


async def _file(path: str, key: str) -> str:
    """The content of a file that the platform renews. Raises TokenUnavailable."""
    try:
        return (await anyio.Path(path).read_text()).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TokenUnavailable(f"{key} cannot be read: {error}") from error


def _challenge_of(status: int, header: str | None) -> BearerChallenge | None:
    if status not in {401, 403}:
        return None
    return bearer_challenge(header) or BearerChallenge()
