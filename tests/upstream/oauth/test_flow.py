"""Logins and token requests against a real authorization server on loopback."""

from __future__ import annotations

import jwt
import msgspec
import pytest

from mcproxy.access.audit.grant_records import GrantAction, GrantOutcome, GrantRecord, RecordGrant, unrecorded
from mcproxy.settings.upstreams.oauth import EnterpriseSettings, OAuthClient, OAuthSettings
from mcproxy.upstream.oauth.endpoints import EndpointFailed, Endpoints
from mcproxy.upstream.oauth.flow import OAuthFlow
from mcproxy.upstream.oauth.grants import Grant, GrantKey
from mcproxy.upstream.oauth.login import LoginFailed
from mcproxy.upstream.oauth.registration import CannotRegister
from mcproxy.upstream.oauth.storage.store import GrantStore, MemoryStore
from mcproxy.upstream.oauth.tokens import TokenRefused, TokenUnavailable
from tests.fakes.authorization import Authorization, authorization, follow

pytestmark = pytest.mark.anyio

REDIRECT = "http://127.0.0.1:1/callback"
ITSELF = OAuthSettings(grant="client_credentials", client=OAuthClient(id="me", secret="s"))


def flow(
    server: Authorization,
    store: GrantStore,
    settings: OAuthSettings | None = None,
    record: RecordGrant = unrecorded,
) -> OAuthFlow:
    return OAuthFlow("up", server.url, settings or OAuthSettings(), store, record)


async def logged_in(it: OAuthFlow, *scopes: str) -> Grant:
    found = await it.discover(await it.challenge(), scopes)
    login, url = await it.begin_login(found, REDIRECT)
    return await it.finish_login(login, found.server, await follow(url))


async def test_a_login_finds_everything_out_and_is_stored() -> None:
    store = MemoryStore()
    async with authorization() as server:
        grant = await logged_in(flow(server, store))
    assert await store.load(GrantKey("up")) == grant
    assert (grant.issuer, grant.resource) == (server.origin, server.url)
    assert grant.scopes == ("read", "offline_access")
    [exchange] = server.token_requests
    assert exchange["resource"] == server.url
    assert exchange["redirect_uri"] == REDIRECT


async def test_at_a_server_that_names_no_issuer_its_origin_is_asked_and_may_end_with_a_slash() -> None:
    async with authorization(names_issuer=False) as server:
        server.metadata["issuer"] = f"{server.origin}/"
        it = flow(server, MemoryStore())
        grant = await logged_in(it)
        assert grant.issuer == f"{server.origin}/"
        assert (await it.refresh(grant)).issuer == grant.issuer
        again = flow(server, MemoryStore())
        assert (await again.server(grant.issuer)).issuer == grant.issuer


async def test_a_registration_serves_again_with_the_same_redirect() -> None:
    store = MemoryStore()
    async with authorization() as server:
        first = await logged_in(flow(server, store))
        second = await logged_in(flow(server, store))
    assert len(server.registrations) == 1
    assert second.client == first.client
    assert second.generation == first.generation + 1


async def test_scopes_are_asked_for_up_to_the_ceiling_and_earlier_ones_stay() -> None:
    settings = OAuthSettings(scopes=("write", "admin"), scopes_allowed=("[rw]*",))
    async with authorization() as server:
        found = await flow(server, MemoryStore(), settings).discover(None, ("rare", "root", "secret"))
    assert found.scopes == ("rare", "root", "read", "write")


async def test_the_gateway_gets_a_token_for_itself() -> None:
    store = MemoryStore()
    async with authorization() as server:
        it = flow(server, store, ITSELF)
        grant = await it.request_token(await it.discover(await it.challenge()))
    assert server.token_requests[0]["grant_type"] == "client_credentials"
    assert await store.load(GrantKey("up")) == grant


ALL_CONFIGURED = [
    ITSELF,
    OAuthSettings(client=OAuthClient(id="me", secret="s")),
    OAuthSettings(client=OAuthClient(id="me")),
]


async def authorized(it: OAuthFlow) -> Grant:
    """A grant, by a login or without one."""
    if it.settings.grant == "authorization_code":
        return await logged_in(it)
    return await it.request_token(await it.discover(await it.challenge()))


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("settings", ALL_CONFIGURED)
async def test_r69_a_client_registered_beforehand_is_used_with_the_first_issuer_alone(
    settings: OAuthSettings, restarted: bool
) -> None:
    store = MemoryStore()
    async with authorization() as server, authorization() as other:
        it = flow(server, store, settings)
        await authorized(it)
        server.named_issuer = other.origin
        if restarted:
            it = flow(server, store, settings)
        with pytest.raises(CannotRegister, match=r"oauth\.issuer"):
            await authorized(it)
        assert other.token_requests == []
        server.named_issuer = None
        assert (await authorized(it)).issuer == server.origin


async def test_r69_a_client_registered_beforehand_is_used_with_the_issuer_that_is_configured() -> None:
    store = MemoryStore()
    async with authorization() as server, authorization() as other:
        await authorized(flow(server, store, ITSELF))
        moved = ITSELF.model_copy(update={"issuer": other.origin})
        assert (await authorized(flow(server, store, moved))).issuer == other.origin


async def test_r69_with_another_issuer_the_gateway_registers_anew() -> None:
    store = MemoryStore()
    async with authorization() as server, authorization() as other:
        it = flow(server, store)
        await logged_in(it)
        server.named_issuer = other.origin
        assert (await logged_in(it)).issuer == other.origin
        assert len(other.registrations) == 1


async def test_a_client_registered_beforehand_may_move_once_its_grant_is_taken_back() -> None:
    async with authorization() as server, authorization() as other:
        it = flow(server, MemoryStore(), ALL_CONFIGURED[1])
        grant = await logged_in(it)
        server.named_issuer = other.origin
        await it.revoke(grant)
        assert (await logged_in(it)).issuer == other.origin


async def test_r65_a_refresh_is_stored_before_anything_else_and_names_its_resource() -> None:
    store = MemoryStore()
    async with authorization() as server:
        it = flow(server, store)
        renewed = await it.refresh(await logged_in(it))
    assert await store.load(GrantKey("up")) == renewed
    assert server.token_requests[-1]["resource"] == server.url
    assert renewed.token.refresh == "refresh-token-2"


async def test_r65_a_refresh_token_that_was_redeemed_is_refused() -> None:
    async with authorization() as server:
        it = flow(server, MemoryStore())
        grant = await logged_in(it)
        await it.refresh(grant)
        with pytest.raises(TokenRefused, match="invalid_grant"):
            await it.refresh(grant)


@pytest.mark.parametrize("status", [500, 503, 429, 302])
async def test_r65_an_outage_decides_nothing(status: int) -> None:
    store = MemoryStore()
    async with authorization() as server:
        it = flow(server, store)
        grant = await logged_in(it)
        server.outage = status
        with pytest.raises(TokenUnavailable):
            await it.refresh(grant)
    assert await store.load(GrantKey("up")) == grant


async def test_a_logout_takes_the_grant_back_and_forgets_it() -> None:
    store = MemoryStore()
    async with authorization() as server:
        it = flow(server, store)
        await it.revoke(await logged_in(it))
    assert server.revoked == ["refresh-token-1"]
    assert await store.load(GrantKey("up")) is None


async def test_a_grant_is_for_the_url_that_it_was_made_for_alone() -> None:
    store = MemoryStore()
    async with authorization() as server, authorization() as other:
        grant = await logged_in(flow(server, store))
        assert flow(server, store).is_for_this(grant)
        assert not flow(other, store).is_for_this(grant)
        assert not flow(server, store, OAuthSettings(issuer="https://as.example")).is_for_this(grant)


@pytest.mark.parametrize(
    "named",
    [
        "http://as.example/token",
        "https://127.0.0.1/token",
        "https://169.254.169.254/latest",
        "https://[::ffff:169.254.169.254]/",
        "https://[64:ff9b::a9fe:a9fe]/",
        "https://localhost:1/",
        "https://user:pass@as.example/",
        "ftp://as.example/",
        "file:///etc/passwd",
        "https://",
        "not a url",
    ],
)
async def test_r43_what_a_server_names_is_asked_over_https_at_public_addresses_alone(named: str) -> None:
    with pytest.raises(EndpointFailed):
        await Endpoints(("https://mcp.example/mcp",)).get(named)


async def test_r43_a_server_on_loopback_may_name_one_on_loopback() -> None:
    async with authorization() as server, authorization() as other:
        answer = await Endpoints((server.url,)).get(f"{other.origin}/.well-known/oauth-authorization-server")
    assert answer.status == 200


async def test_r43_a_redirect_is_not_followed() -> None:
    async with authorization() as server:
        with pytest.raises(EndpointFailed, match="not followed"):
            await Endpoints((server.url,)).get(f"{server.origin}/authorize?state=s&redirect_uri=http://127.0.0.1:1/")


class Slept:
    """A `Sleep` that takes no time."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


async def test_a_login_by_code_waits_as_long_as_the_server_wants() -> None:
    store, slept = MemoryStore(), Slept()
    async with authorization(device_answers=["authorization_pending", "slow_down", "authorization_pending"]) as server:
        it = flow(server, store)
        found = await it.discover(await it.challenge())
        begun = await it.begin_device_login(found)
        assert begun.user_code == "WDJB-MJHT"
        grant = await it.finish_device_login(begun, found.server, slept)
        assert (await it.refresh(grant)).token.access == "access-token-2"
    assert slept.seconds == [5, 5, 10, 10]
    assert server.device_requests == [
        {"resource": server.url, "scope": "read offline_access", "client_id": "client-1"},
    ]
    assert {form["device_code"] for form in server.token_requests[:4]} == {"device-code-1"}
    assert {form["resource"] for form in server.token_requests} == {server.url}
    assert server.registrations[0]["redirect_uris"] == []


async def test_a_login_by_code_that_is_denied_stores_nothing() -> None:
    store = MemoryStore()
    async with authorization(device_answers=["access_denied"]) as server:
        it = flow(server, store)
        found = await it.discover(await it.challenge())
        begun = await it.begin_device_login(found)
        with pytest.raises(LoginFailed, match="denied"):
            await it.finish_device_login(begun, found.server, Slept())
    assert await store.all() == []


async def test_a_published_document_identifies_the_gateway_where_the_server_takes_such() -> None:
    url = "https://gateway.example/oauth/client.json"
    async with authorization(takes_documents=True) as server:
        it = flow(server, MemoryStore())
        login, link = await it.begin_login(await it.discover(None), REDIRECT, url)
        grant = await it.finish_login(login, (await it.discover(None)).server, await follow(link))
    assert grant.client.id == url
    assert server.registrations == []
    assert server.token_requests[0]["client_id"] == url


async def test_each_login_refresh_and_revocation_is_recorded_with_what_came_of_it() -> None:
    records: list[GrantRecord] = []
    async with authorization(subject="user-7") as server:
        it = flow(server, MemoryStore(), record=records.append)
        renewed = await it.refresh(await logged_in(it))
        server.outage = 503
        with pytest.raises(TokenUnavailable):
            await it.refresh(renewed)
        server.outage = None
        server.forget_refresh_tokens()
        with pytest.raises(TokenRefused):
            await it.refresh(renewed)
        await it.revoke(renewed)
    assert [(each.action, each.outcome) for each in records] == [
        (GrantAction.LOGIN, GrantOutcome.OK),
        (GrantAction.REFRESH, GrantOutcome.OK),
        (GrantAction.REFRESH, GrantOutcome.UNAVAILABLE),
        (GrantAction.REFRESH, GrantOutcome.REFUSED),
        (GrantAction.REVOCATION, GrantOutcome.OK),
    ]
    assert {(each.upstream, each.issuer) for each in records} == {("up", server.origin)}
    assert [each.subject for each in records] == ["user-7", "user-7", None, None, "user-7"]
    assert records[3].why == "invalid_grant"


async def test_a_token_request_of_the_gateways_own_and_a_login_that_fails_are_recorded() -> None:
    records: list[GrantRecord] = []
    async with authorization(device_answers=["access_denied"]) as server:
        own = flow(server, MemoryStore(), ITSELF, records.append)
        await own.request_token(await own.discover(None))
        it = flow(server, MemoryStore(), record=records.append)
        found = await it.discover(None)
        with pytest.raises(LoginFailed):
            await it.finish_device_login(await it.begin_device_login(found), found.server, Slept(), "ann")
        login, _ = await it.begin_login(found, REDIRECT)
        with pytest.raises(LoginFailed):
            await it.finish_login(login, found.server, {"state": "another"}, "ann")
    assert [(each.action, each.outcome, each.principal) for each in records] == [
        (GrantAction.REQUEST, GrantOutcome.OK, ""),
        (GrantAction.LOGIN, GrantOutcome.REFUSED, "ann"),
        (GrantAction.LOGIN, GrantOutcome.REFUSED, "ann"),
    ]


async def test_r44_an_authorization_server_that_quotes_the_request_is_not_quoted() -> None:
    records: list[GrantRecord] = []
    async with authorization(quotes_form=True) as server:
        it = flow(server, MemoryStore(), record=records.append)
        grant = await logged_in(it)
        server.forget_refresh_tokens()
        with pytest.raises(TokenRefused) as refused:
            await it.refresh(grant)
    for said in (str(refused.value), str(records[-1])):
        assert "refresh-token" not in said
        assert "[redacted]" in said


def identity(server: Authorization, issuer: str | None = None, kind: str = "JWT") -> str:
    """A token of the identity provider, which stands at the same origin as the authorization server."""
    return jwt.encode({"iss": issuer or server.origin, "sub": "ann"}, "0" * 32, "HS256", {"typ": kind})


async def test_a_callers_own_identity_token_is_what_the_enterprise_grant_begins_with() -> None:
    async with authorization() as server:
        it = flow(server, MemoryStore(), enterprise(server))
        token = identity(server)
        await it.request_token(await it.discover(None), "ann", token)
    exchange, grant = server.token_requests
    assert exchange["subject_token"] == token
    assert exchange["subject_token_type"] == "urn:ietf:params:oauth:token-type:id_token"
    assert exchange["audience"] == server.origin
    assert grant["assertion"] == "access-token-1"


async def test_what_is_no_identity_token_of_the_provider_goes_nowhere() -> None:
    async with authorization() as server:
        it = flow(server, MemoryStore(), enterprise(server))
        found = await it.discover(None)
        for token in (identity(server, "https://other.example"), identity(server, kind="at+jwt"), "opaque", None):
            with pytest.raises(LoginFailed, match="the caller authenticated with no"):
                await it.request_token(found, "ann", token)
    assert server.token_requests == []


def enterprise(server: Authorization) -> OAuthSettings:
    provider = EnterpriseSettings(issuer=server.origin, client=OAuthClient(id="me"))
    return OAuthSettings(grant="enterprise", enterprise=provider, per="principal")


async def begun(it: OAuthFlow) -> None:
    """A login that never comes back."""
    await it.begin_login(await it.discover(await it.challenge()), REDIRECT)


async def test_a_registration_is_made_anew_after_a_login_that_never_came_back() -> None:
    store = MemoryStore()
    async with authorization() as server:
        it = flow(server, store)
        first = await logged_in(it)
        again = await logged_in(it)
        assert again.client.id == first.client.id, "a login that came back leaves the registration as it is"
        await begun(it)
        assert len(server.registrations) == 1
        assert (await logged_in(it)).client.id == "client-2"
        assert (await logged_in(flow(server, store))).client.id == "client-2"


async def test_a_login_that_a_person_denies_leaves_the_registration_as_it_is() -> None:
    async with authorization() as server:
        it = flow(server, MemoryStore())
        login, url = await it.begin_login(await it.discover(await it.challenge()), REDIRECT)
        denied = {**await follow(url), "error": "access_denied"}
        with pytest.raises(LoginFailed, match="access_denied"):
            await it.finish_login(login, (await it.discover(None)).server, denied)
        assert (await logged_in(it)).client.id == "client-1"


@pytest.mark.parametrize("how", ["logout", "refused refresh"])
async def test_a_registration_is_forgotten_with_its_grant(how: str) -> None:
    async with authorization() as server:
        it = flow(server, MemoryStore())
        grant = await logged_in(it)
        if how == "logout":
            await it.revoke(grant)
        else:
            server.refuses = "invalid_client"
            with pytest.raises(TokenRefused):
                await it.refresh(grant)
            server.refuses = None
        assert (await logged_in(it)).client.id == "client-2"


async def test_a_doubtful_registration_serves_where_no_other_is_to_be_had() -> None:
    async with authorization() as server:
        it = flow(server, MemoryStore())
        await logged_in(it)
        await begun(it)
        found = await it.discover(None)
        closed = found._replace(server=msgspec.structs.replace(found.server, registration_endpoint=None))
        login, _ = await it.begin_login(closed, REDIRECT)
        assert login.client.id == "client-1"


async def test_the_gateway_asks_for_itself_without_a_scope_that_is_refused() -> None:
    async with authorization(refused_scopes={"phone"}) as server:
        settings = OAuthSettings(grant="client_credentials", client=ITSELF.client, scopes=("read", "phone"))
        it = flow(server, MemoryStore(), settings)
        grant = await it.request_token(await it.discover(None))
        assert "phone" not in grant.scopes
        asked = len(server.token_requests)
        await it.request_token(await it.discover(None))
        assert len(server.token_requests) == asked + 1, "the refused scope is not asked for again"


async def test_another_name_registers_anew() -> None:
    store = MemoryStore()
    async with authorization() as server:
        await logged_in(flow(server, store))
        await logged_in(flow(server, store, OAuthSettings(client=OAuthClient(name="Tracker"))))
        assert [each["client_name"] for each in server.registrations] == ["mcproxy", "Tracker"]
