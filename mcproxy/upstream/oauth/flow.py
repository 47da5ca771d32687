"""The steps of a login or a token request, in order: discovery, registration, a person's consent, token exchange."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import anyio
import msgspec
import structlog
from msgspec.structs import replace

from mcproxy.access.audit.grant_records import GrantAction, GrantOutcome, GrantRecord, RecordGrant, unrecorded
from mcproxy.concurrency.clock import Sleep
from mcproxy.egress.egress import Egress
from mcproxy.settings.issuers import is_same_issuer
from mcproxy.settings.upstreams.oauth import EnterpriseSettings, OAuthSettings
from mcproxy.upstream.oauth import device, leniency, login, metadata, registration, tokens
from mcproxy.upstream.oauth.challenge import BearerChallenge, bearer_challenge
from mcproxy.upstream.oauth.device import DeviceLogin
from mcproxy.upstream.oauth.endpoints import EndpointFailed, Endpoints, NoAnswer
from mcproxy.upstream.oauth.grants import Grant, GrantKey, Renewal
from mcproxy.upstream.oauth.leniency import Note, unnoted
from mcproxy.upstream.oauth.login import Login, LoginFailed
from mcproxy.upstream.oauth.metadata import InvalidMetadata, OthersMetadata, ServerMetadata
from mcproxy.upstream.oauth.registration import CannotRegister, ClientIdentity
from mcproxy.upstream.oauth.storage.store import GrantStore, StoreFailed
from mcproxy.upstream.oauth.tokens import Token, TokenForm, TokenRefused, TokenUnavailable

log = structlog.get_logger()

SHOWN_SCOPES: Final = 10
"""The most scopes that a sentence names."""
PASSING: Final = (EndpointFailed, TokenUnavailable, StoreFailed)
"""Failures that are not final: the same request may succeed later."""
DECISIVE: Final = (TokenRefused, InvalidMetadata, CannotRegister, LoginFailed)
"""Failures after which the same request would fail again."""
_ID_BYTES: Final = 8
_MAX_KNOWN: Final = 1024
"""Ids of logins that this process remembers having made, and having revoked."""
_MAX_ISSUERS: Final = 4
"""Authorization servers of one resource that are asked for their metadata."""
MAX_NARROWED: Final = 4
"""Further attempts of one login or token request, each for fewer scopes, after scopes were refused."""
_ASKED: Final = "; asked for the scopes "
"""What follows an authorization server's own words about refused scopes."""
_CLIENT_REFUSED: Final = frozenset({"invalid_client", "unauthorized_client"})
"""Error codes after which a registered client is not used again."""


class Discovered(NamedTuple):
    """An authorization server, and what to request from it."""

    server: ServerMetadata
    scopes: tuple[str, ...]
    resource: str
    """The upstream's URI according to its own metadata, else its canonical form."""


class _Places:
    """The URLs that were asked for metadata, and why each was of no use."""

    def __init__(self) -> None:
        self.is_passing = False
        """Whether one may be of use later: it did not answer, or with a server's error."""
        self.has_others = False
        """Whether one had metadata of another resource or issuer: then nothing is assumed in place of metadata."""
        self._silent: set[str] = set()
        self._said: list[str] = []

    def __str__(self) -> str:
        return "; ".join(self._said)

    def is_silent(self, url: str) -> bool:
        """Whether another URL of the same host was asked, and gave no answer in time."""
        return urlsplit(url).netloc in self._silent

    def failed(self, url: str, error: EndpointFailed) -> None:
        self.is_passing = True
        self._said.append(str(error))
        if isinstance(error, NoAnswer):
            self._silent.add(urlsplit(url).netloc)

    def answered(self, url: str, status: int) -> None:
        self.is_passing |= status >= 500 or status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUEST_TIMEOUT}
        self._said.append(f"{url[:200]} answered HTTP {status}")

    def unusable(self, url: str, error: InvalidMetadata) -> None:
        self.has_others |= isinstance(error, OthersMetadata)
        self._said.append(f"{url[:200]}: {error}")


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
        note: Note = unnoted,
        clock: Callable[[], float] = time.time,
        randomness: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.upstream: Final = upstream
        """The upstream's name."""
        self._url = url
        self.settings = settings
        self._store = store
        self._record = record
        self._note = note
        self._refused_scopes: set[str] = set()
        """Scopes that the authorization server refused to give to this client."""
        self._wanting_secret: set[str] = set()
        """Ids of clients that were told to use no secret, and need theirs (`ClientIdentity.has_unused_secret`)."""
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
        self._endpoints = Endpoints(trusted, egress, note)

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
        return grant.url == self._url and (
            self.settings.issuer is None or is_same_issuer(self.settings.issuer, grant.issuer)
        )

    async def challenge(self) -> BearerChallenge | None:
        """The server's challenge to a request without a token; None if it demands none."""
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        probe = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
        answer = await self._endpoints.post(self._url, probe, headers)
        return _challenge_of(answer.status, answer.challenge)

    async def discover(self, challenge: BearerChallenge | None, earlier: tuple[str, ...] = ()) -> Discovered:
        """Finds the authorization server. `earlier` are scopes requested before, which a step-up keeps."""
        places = _Places()
        resource = await self._resource_metadata(challenge, places)
        server = await self._authorization_server(resource, places)
        wanted = (*earlier, *metadata.scopes_to_ask(challenge, resource, server), *self.settings.scopes)
        allowed = (each for each in wanted if self.may_ask_for(each) and each not in self._refused_scopes)
        scopes = tuple(dict.fromkeys(allowed))[: registration.MAX_SCOPES]
        return Discovered(server, scopes, self._indicator(resource))

    def _indicator(self, resource: metadata.ResourceMetadata | None) -> str:
        """The value of `resource` in requests; empty for none."""
        if self.settings.resource is not None:
            return "" if self.settings.resource == "omit" else self.settings.resource
        return self.resource if resource is None else resource.resource

    async def _authorization_server(
        self, resource: metadata.ResourceMetadata | None, places: _Places
    ) -> ServerMetadata:
        """The configured authorization server, else the first usable that the server names, else its own origin."""
        if self.settings.issuer is not None:
            return await self.server(self.settings.issuer)
        if resource is None:
            return await self._server_metadata(metadata.origin_as_issuer(self._url), assumes=True, places=places)
        failures = []
        for issuer in resource.authorization_servers[:_MAX_ISSUERS]:
            try:
                return await self.server(issuer)
            except InvalidMetadata as error:
                failures.append(str(error))
        raise InvalidMetadata("; ".join(failures))

    def may_ask_for(self, scope: str) -> bool:
        """Whether the operator allows a scope to be requested (`oauth.scopes_allowed`)."""
        return any(fnmatchcase(scope, allowed) for allowed in self.settings.scopes_allowed)

    async def _document(self, url: str, places: _Places) -> bytes | None:
        """The document at a URL; None if there is none, which `places` remembers with the reason."""
        if places.is_silent(url):
            return None
        try:
            answer = await self._endpoints.get(url)
        except EndpointFailed as error:
            places.failed(url, error)
            return None
        if 200 <= answer.status < 300:
            return answer.body
        places.answered(url, answer.status)
        return None

    async def _resource_metadata(
        self, challenge: BearerChallenge | None, places: _Places
    ) -> metadata.ResourceMetadata | None:
        """The resource metadata; None if the server publishes none, as servers of 2025-03-26 do not."""
        urls = metadata.resource_metadata_urls(self._url, challenge, self._note)
        for url in urls:
            document = await self._document(url, places)
            if document is None:
                continue
            try:
                read = metadata.read_resource_metadata(document, self._url, self._note)
            except InvalidMetadata as error:
                places.unusable(url, error)
                self._note("metadata_place", "has something else than metadata at a well-known URL; asked the next")
                continue
            if url != urls[0] and challenge is not None and challenge.resource_metadata is not None:
                self._note("named_metadata", "names metadata that is not there; used that of its well-known URL")
            return read
        if places.has_others:
            raise InvalidMetadata(f"no protected resource metadata of {self._url} was found: {places}")
        return None

    async def server(self, issuer: str) -> ServerMetadata:
        """The metadata of an issuer that an operator, or the server's own metadata, named."""
        return await self._server_metadata(issuer, assumes=False)

    async def _server_metadata(self, issuer: str, *, assumes: bool, places: _Places | None = None) -> ServerMetadata:
        """`assumes` that nobody named the issuer: where it publishes no metadata, it has its endpoints by default.

        2025-03-26, authorization. `places` are those that were asked before.
        """
        places = places or _Places()
        urls: tuple[str, ...] = metadata.server_metadata_urls(issuer)
        issuers: tuple[str, ...] = (issuer,)
        if assumes and is_same_issuer(issuer, metadata.origin_as_issuer(self._url)):
            # Some publish the metadata of such a server at its path: github.com/peaberry-studio/arche/pull/398.
            urls, issuers = (*urls, *metadata.server_metadata_urls(self.resource)), (issuer, self.resource)
        for url in dict.fromkeys(urls):
            document = await self._document(url, places)
            if document is None:
                continue
            try:
                read = metadata.read_server_metadata(document, issuers, self._note)
            except InvalidMetadata as error:
                places.unusable(url, error)
                self._note("metadata_place", "has something else than metadata at a well-known URL; asked the next")
                continue
            self._servers = {read.issuer: read}
            return read
        if places.is_passing:
            raise EndpointFailed(f"no metadata of issuer {issuer} can be had now: {places}")
        if assumes and not places.has_others:
            self._note("default_endpoints", "publishes no OAuth metadata; used /authorize, /token and /register")
            return metadata.endpoints_by_default(issuer)
        raise InvalidMetadata(f"no metadata of issuer {issuer} was found: {places}")

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
            assumes_pkce=self.settings.pkce == "assumed",
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
        """The token for the code in a redirect. Only the client's registration is stored, once it is known to work."""
        client = begun.client
        try:
            code = login.code_of(begun, redirected)
            token = await self._token(tokens.code_exchange(begun, code), client, server, scopes=begun.scopes)
        except (LoginFailed, TokenRefused) as error:
            if error.code and error.code not in _CLIENT_REFUSED:
                await self._doubt(begun.issuer, begun.redirect_uri, client, is_doubtful=False)
            if isinstance(error, LoginFailed):
                raise LoginFailed(f"{error}{_advice(error.code, str(error), begun.scopes)}", error.code) from error
            raise
        await self._doubt(begun.issuer, begun.redirect_uri, client, is_doubtful=False)
        return token

    def narrower(self, found: Discovered, refusal: Exception, lacking: Collection[str] = ()) -> Discovered | None:
        """What to ask for after scopes were refused; None if nothing is left to leave out.

        `lacking` are scopes that are asked for beside those of the grant: they are left out first.
        """
        smaller = (
            [scope for scope in found.scopes if scope not in lacking],
            found.server.scopes_supported or (),
            self.settings.scopes,
        )
        own_words = str(refusal).partition(_ASKED)[0]
        left = leniency.without_refused(found.scopes, own_words, smaller, self._note)
        if left is None:
            return None
        dropped = set(found.scopes).difference(left)
        if len(self._refused_scopes | dropped) <= registration.MAX_SCOPES:
            self._refused_scopes |= dropped
        log.warning(
            "an authorization server refused scopes, and is asked without them",
            upstream=self.upstream,
            without=sorted(dropped)[:SHOWN_SCOPES],
            why=str(refusal),
        )
        return found._replace(scopes=left)

    async def begin_device_login(self, found: Discovered, document_url: str | None = None) -> DeviceLogin:
        """A login by a code that a person enters on any device, and what the person is shown."""
        server = found.server
        if server.device_authorization_endpoint is None:
            raise LoginFailed(f"issuer {server.issuer} has no device flow: log in without --device")
        client = await self._identity(found, registration.NO_REDIRECT, document_url)
        form = device.device_request(found.resource, found.scopes)
        body, headers = tokens.token_request(form, client, server, self._clock())
        answer = await self._endpoints.post(server.device_authorization_endpoint, body, headers)
        begun = device.read_device_login(
            answer.status,
            answer.body,
            self._clock(),
            server=server,
            client=client,
            resource=found.resource,
            scopes=found.scopes,
        )
        await self._doubt(server.issuer, registration.NO_REDIRECT, client, is_doubtful=False)
        return begun

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
        *,
        may_narrow: bool = True,
    ) -> Grant:
        """Gets a token without a person, for the gateway itself or in exchange for a caller's.

        The grant is put into `store`; by default, into that of the flow. `may_narrow` allows to ask for fewer scopes
        after some were refused.
        """
        with self._recorded(GrantAction.REQUEST, principal, found.server.issuer) as brought:
            client = await self._configured(found.server) or ClientIdentity("")
            token = None
            for _ in range(MAX_NARROWED):
                try:
                    token = await self._requested(found, client, inbound_token)
                    break
                except TokenRefused as refused:
                    less = self.narrower(found, refused) if may_narrow and refused.code == login.INVALID_SCOPE else None
                    if less is None:
                        raise
                    found = less
            token = token or await self._requested(found, client, inbound_token)
            brought.append(
                await self._granted(principal, client, found.server, found.scopes, found.resource, token, store=store)
            )
        return brought[0]

    async def _requested(self, found: Discovered, client: ClientIdentity, inbound_token: str | None) -> Token:
        return await self._token(await self._form(found, inbound_token), client, found.server, scopes=found.scopes)

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
        return await self.request_token(
            found, renewal.key.principal, inbound_token, store, may_narrow=not renewal.is_step_up
        )

    async def refresh(self, grant: Grant) -> Grant:
        """The grant with a new token, stored before anything else uses the token (requirement R65)."""
        assert grant.token.refresh is not None, "asked of grants with a refresh token"
        with self._recorded(GrantAction.REFRESH, grant.principal, grant.issuer) as brought:
            server = self._servers.get(grant.issuer)
            if server is None:
                server = await self._server_metadata(grant.issuer, assumes=self.settings.issuer is None)
            try:
                token = await self._token(tokens.refreshing(grant.token.refresh, grant.resource), grant.client, server)
            except TokenRefused as refused:
                if refused.code in _CLIENT_REFUSED:
                    await self._forget_registration(grant)
                raise
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
                await self._forget_registration(grant)

    async def _forget_registration(self, grant: Grant) -> None:
        """Has the next login register anew, if the grant's client was registered by the gateway."""
        for redirect_uri in grant.client.redirect_uris or (registration.NO_REDIRECT,):
            await self._doubt(grant.issuer, redirect_uri, grant.client, is_doubtful=True)

    async def _doubt(self, issuer: str, redirect_uri: str, client: ClientIdentity, *, is_doubtful: bool) -> None:
        """Stores whether a registration may be one that the authorization server has forgotten.

        Does nothing for another client, as one that is configured, or that replaced this one meanwhile.
        """
        stored = await self._store.registration(issuer, redirect_uri)
        if stored is not None and stored.id == client.id and stored.is_doubtful is not is_doubtful:
            await self._store.register(issuer, redirect_uri, replace(self._proving(stored), is_doubtful=is_doubtful))

    def _proving(self, client: ClientIdentity) -> ClientIdentity:
        """The client with the way of authentication that it turned out to need."""
        return replace(client, method=registration.POST) if client.id in self._wanting_secret else client

    async def _identity(self, found: Discovered, redirect_uri: str, document_url: str | None) -> ClientIdentity:
        """The gateway's client identity there: configured, by its document, registered before, or registered now."""
        settings, server = self.settings.client, found.server
        known = await self._configured(server)
        known = known or registration.by_document(settings.metadata_url or document_url, server, redirect_uri)
        if known is not None:
            return known
        name = settings.name or registration.NAME
        stored = await self._store.registration(server.issuer, redirect_uri)
        if stored is not None and stored.serves(redirect_uri, found.scopes, self._clock(), name):
            client = stored
        else:
            try:
                client = await self._register(
                    found, redirect_uri, registration.scopes_to_register(stored, found.scopes), name
                )
            except (CannotRegister, EndpointFailed):
                # One that is only in doubt is better than none, where registrations are limited.
                client = ClientIdentity("") if stored is None else replace(stored, is_doubtful=False)
                if not client.serves(redirect_uri, found.scopes, self._clock(), name):
                    raise
        # Until the login comes back. Whether the authorization server still knows the client shows in nothing else:
        # github.com/supabase/mcp/issues/355, github.com/anthropics/claude-code/issues/84614.
        await self._store.register(server.issuer, redirect_uri, replace(client, is_doubtful=True))
        return client

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
        if self._issuer_of_client is not None and not is_same_issuer(self._issuer_of_client, server.issuer):
            raise CannotRegister(
                f"the server now names the issuer {server.issuer}, and the client of oauth.client was used with "
                f"{self._issuer_of_client}: set oauth.issuer to the one that the client is registered at"
            )
        return known

    async def _register(
        self, found: Discovered, redirect_uri: str, attempts: list[tuple[str, ...]], name: str
    ) -> ClientIdentity:
        """The client, registered. `attempts` are the scopes to register it for, in the order to try."""
        server = found.server
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        for scopes in attempts:
            wanted = registration.registration_request(server, redirect_uri, scopes, name)
            assert server.registration_endpoint is not None, "`registration_request` saw to it"
            answer = await self._endpoints.post(server.registration_endpoint, msgspec.json.encode(wanted), headers)
            if answer.status not in {HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN}:
                break
        if not 200 <= answer.status < 300:
            words = " ".join(answer.body[:300].decode(errors="replace").split())
            raise CannotRegister(
                f"issuer {server.issuer} refused to register the gateway as {name!r} (HTTP {answer.status}: {words}): "
                f"register it there by hand, {registration.described(redirect_uri)}, and set oauth.client.id; or set "
                "oauth.client.name, if it registers only clients of certain names"
            )
        # Without scopes of its own it is allowed all of them, or a default that asking again would not change.
        return registration.read_registration(
            answer.body, server, redirect_uri, scopes or found.scopes, name=name, note=self._note
        )

    async def _token(
        self,
        form: TokenForm,
        client: ClientIdentity,
        server: ServerMetadata,
        *,
        kind: str = "bearer",
        scopes: tuple[str, ...] = (),
    ) -> Token:
        """The token for a form. `scopes` are those that were asked for, now or in the login."""
        client = self._proving(client)
        try:
            return await self._token_once(form, client, server, kind, scopes)
        except (TokenRefused, TokenUnavailable) as problem:
            if not client.has_unused_secret or not tokens.may_want_secret(problem):
                raise
        token = await self._token_once(form, replace(client, method=registration.POST), server, kind, scopes)
        self._note("secret_with_none", "registers clients with method none, and wants their secret; sent it")
        if len(self._wanting_secret) < _MAX_KNOWN:
            self._wanting_secret.add(client.id)
        return token

    async def _token_once(
        self, form: TokenForm, client: ClientIdentity, server: ServerMetadata, kind: str, scopes: tuple[str, ...]
    ) -> Token:
        body, headers = tokens.token_request(form, client, server, self._clock())
        try:
            answer = await self._endpoints.post(server.token_endpoint, body, headers)
        except EndpointFailed as error:
            raise TokenUnavailable(str(error)) from error
        try:
            return tokens.read_token(
                answer.status,
                answer.body,
                self._clock(),
                kind=kind,
                retry_after=answer.retry_after,
                note=self._note,
            )
        except TokenRefused as refused:
            words = tokens.concealed(str(refused), form, client)
            raise TokenRefused(refused.code, words + _advice(refused.code, words, scopes)) from None
        except TokenUnavailable as problem:
            words = tokens.concealed(str(problem), form, client)
            raise TokenUnavailable(words, problem.code, problem.retry_after, problem.status) from None

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
            client=self._proving(client),
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


def _advice(code: str, words: str, scopes: tuple[str, ...]) -> str:
    """The settings that may help after a refusal, as the end of its sentence."""
    if code == login.INVALID_SCOPE:
        more = f" and {len(scopes) - SHOWN_SCOPES} more" if len(scopes) > SHOWN_SCOPES else ""
        asked = " ".join(scopes[:SHOWN_SCOPES]) + more
        return f"{_ASKED}{asked or '(none)'}: see oauth.scopes and oauth.scopes_allowed"
    if code == "invalid_target" or "resource" in words.lower():
        return "; if it wants another `resource`, or none, set oauth.resource"
    return ""


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
