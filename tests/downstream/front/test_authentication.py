"""Who asks over HTTP: challenges, statuses, and what belongs to whom, over real connections."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import anyio
import pytest

from mcproxy.access.identity import Identity, NotIdentified
from mcproxy.access.keys import key_digest
from mcproxy.call.clients import ListChanged
from mcproxy.downstream.front.authentication import Authenticator
from mcproxy.downstream.io.responses import Refusal
from mcproxy.http import server as http
from mcproxy.protocol.methods import Kind
from mcproxy.settings import LimitSettings
from mcproxy.settings.access.authentication import Authentication
from tests.downstream import modern
from tests.downstream.client import EventReader, RawClient, client_of, initialize, request
from tests.fakes.gateway import FakeGateway, Held, Served, edge_of, quick, served
from tests.fakes.issuer import FakeIssuer, issuing, pair
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

ANN, BOB = {"Authorization": "Bearer anns-key"}, {"Authorization": "Bearer bobs-key"}
KEYS = Authentication.model_validate(
    {"keys": {name: [{"sha256": key_digest(f"{name}s-key").hex()}] for name in ("ann", "bob")}}
)
PATHS = ("/mcp", "/mcp/", "/servers/up/mcp", "/servers/unknown/mcp")


def oauth(issuer: FakeIssuer, **more: Any) -> Authentication:
    return Authentication.model_validate(
        {"oauth": {"issuers": [{"issuer": issuer.url}], "keys_cooldown": 1e-9, **more}}
    )


@asynccontextmanager
async def protected(**more: Any) -> AsyncIterator[tuple[Served, FakeIssuer, RawClient]]:
    with anyio.fail_after(GUARD):
        async with (
            issuing() as issuer,
            served(authentication=oauth(issuer, **more)) as gateway,
            client_of(gateway) as client,
        ):
            yield gateway, issuer, client


def parameters(response: aiohttp.ClientResponse) -> dict[str, str]:
    (challenge,) = response.headers.getall("WWW-Authenticate")
    scheme, _, rest = challenge.partition(" ")
    assert scheme == "Bearer"
    found = dict(re.findall(r'([a-z_]+)="([^"\\]*)"', rest))
    assert rest == ", ".join(f'{name}="{value}"' for name, value in found.items())
    return found


async def test_r41_every_method_of_every_endpoint_says_where_the_metadata_is() -> None:
    async with protected(required_scopes=["mcp:use"]) as (gateway, _, client):
        paths = [(method, path) for path in PATHS for method in ("POST", "GET", "DELETE")]
        for method, path in [*paths, ("GET", "/sse"), ("GET", "/servers/up/sse"), ("POST", "/messages?session_id=x")]:
            async with client.http.request(method, gateway.url + path) as response:
                assert response.status == 401, (method, path)
                found = parameters(response)
                assert "error" in await response.json()
            resource = "/sse" if "messages" in path else path.rstrip("/")
            assert found["resource_metadata"] == f"{gateway.url}/.well-known/oauth-protected-resource{resource}"
            assert found["scope"] == "mcp:use"
            assert "error" not in found
            async with client.http.get(found["resource_metadata"]) as metadata:
                assert (await metadata.json())["resource"] == gateway.url + resource
        assert gateway.gateway.calls == []


async def test_endpoints_are_hidden_from_unauthenticated_callers() -> None:
    async with protected() as (gateway, issuer, client):
        answers = []
        for name in ("up", "unknown"):
            async with client.http.post(f"{gateway.url}/servers/{name}/mcp") as response:
                answers.append((response.status, await response.text()))
        assert answers[0] == answers[1]
        token = issuer.token(f"{gateway.url}/servers/unknown/mcp")
        headers = {"Authorization": f"Bearer {token}"}
        async with client.http.get(f"{gateway.url}/servers/unknown/mcp", headers=headers) as response:
            assert response.status == 404


async def test_a_good_token_is_a_principal() -> None:
    async with protected() as (gateway, issuer, client):
        client.headers["Authorization"] = f"bearer {issuer.token(client.url, scope='a b', roles=['dev'])}"
        await client.open()
        principal = gateway.gateway.calls[0].caller.principal
        assert (principal.name, principal.roles, principal.scopes) == (
            "oidc:ann",
            frozenset({"dev"}),
            frozenset({"a", "b"}),
        )


async def test_keys_that_an_issuer_changes_are_followed() -> None:
    async with protected() as (_, issuer, client):
        await _opens(client, issuer.token(client.url))
        for key in (pair("es", "ES256"), pair("ed", "EdDSA"), pair("rs", "RS256")):
            issuer.pairs = [key]
            await _opens(client, issuer.token(client.url))
        assert issuer.fetched == 4


async def _opens(client: RawClient, token: str) -> None:
    async with client.post(initialize(), Authorization=f"Bearer {token}") as response:
        assert response.status == 200, await response.text()


@pytest.mark.parametrize(
    ("changes", "why"), [({"exp": 1}, "expired"), ({"iss": "https://evil.example"}, "issuer"), ({"sub": None}, "sub")]
)
async def test_a_bad_token_is_401_with_the_error_and_why(changes: dict[str, Any], why: str) -> None:
    async with protected() as (_, issuer, client):
        token = issuer.token(client.url, **changes)
        async with client.post(initialize(), Authorization=f"Bearer {token}") as response:
            assert response.status == 401
            found = parameters(response)
            assert found["error"] == "invalid_token"
            assert why in found["error_description"]


@pytest.mark.parametrize(
    ("audience", "path", "status"),
    [
        ("/mcp", "/mcp", 200),
        ("/mcp/", "/mcp", 200),
        ("/mcp", "/mcp/", 200),
        ("", "/mcp", 200),
        ("/", "/servers/up/mcp", 200),
        ("/servers/up/mcp", "/servers/up/mcp", 200),
        ("/servers/up/mcp", "/mcp", 401),
        ("/mcp", "/servers/up/mcp", 401),
        ("/sse", "/mcp", 401),
        ("/mcp/x", "/mcp", 401),
        ("/MCP", "/mcp", 401),
    ],
)
async def test_a_token_is_for_the_endpoint_that_it_names_or_for_all(audience: str, path: str, status: int) -> None:
    with anyio.fail_after(GUARD):
        async with (
            issuing() as issuer,
            served(authentication=oauth(issuer)) as gateway,
            client_of(gateway, path) as client,
        ):
            token = issuer.token(gateway.url + audience)
            async with client.post(initialize(), Authorization=f"Bearer {token}") as response:
                assert response.status == status


async def test_a_host_header_cannot_choose_the_port_that_a_token_is_for() -> None:
    async with protected() as (gateway, issuer, client):
        token = issuer.token("http://localhost:1/mcp")
        async with client.post(initialize(), Authorization=f"Bearer {token}", Host="localhost:1") as response:
            assert response.status == 401
            url = gateway.url.replace("127.0.0.1", "localhost")
            assert parameters(response)["resource_metadata"].startswith(url)
        token = issuer.token(f"{url}/mcp")
        async with client.post(initialize(), Authorization=f"Bearer {token}", Host="localhost:1") as response:
            assert response.status == 200


async def test_r42_behind_a_proxy_tokens_are_for_the_public_url() -> None:
    proxy = quick(public_url="https://gw.example/tools/")
    with anyio.fail_after(GUARD):
        async with (
            issuing() as issuer,
            served(proxy=proxy, authentication=oauth(issuer)) as gateway,
            client_of(gateway) as client,
        ):
            well_known = "/.well-known/oauth-protected-resource"
            async with client.post(initialize(), Host="gw.example") as response:
                assert parameters(response)["resource_metadata"] == f"https://gw.example{well_known}/tools/mcp"
            for path in ("/tools/mcp", "/mcp"):
                async with client.http.get(f"{gateway.url}{well_known}{path}") as response:
                    assert (await response.json())["resource"] == "https://gw.example/tools/mcp"
            here, there = (issuer.token(url) for url in (client.url, "https://gw.example/tools/mcp"))
            async with client.post(initialize(), Authorization=f"Bearer {here}") as response:
                assert response.status == 401
            await _opens(client, there)


async def test_a_token_without_the_scope_is_403_and_names_what_is_needed() -> None:
    async with protected(required_scopes=["mcp:use", "mcp:tools"]) as (_, issuer, client):
        token = issuer.token(client.url, scope="mcp:use")
        async with client.post(initialize(), Authorization=f"Bearer {token}") as response:
            assert response.status == 403
            found = parameters(response)
        assert (found["error"], found["scope"]) == ("insufficient_scope", "mcp:use mcp:tools")
        assert "resource_metadata" in found


async def test_two_authorization_headers_are_400() -> None:
    async with protected() as (_, issuer, client):
        headers = [("Authorization", f"Bearer {issuer.token(client.url)}")] * 2
        async with client.http.post(client.url, headers=headers, json=initialize()) as response:
            assert response.status == 400


async def test_an_issuer_that_is_down_is_503_and_no_challenge() -> None:
    async with protected() as (_, issuer, client):
        issuer.down = True
        async with client.post(initialize(), Authorization=f"Bearer {issuer.token(client.url)}") as response:
            assert response.status == 503
            assert "WWW-Authenticate" not in response.headers
            assert int(response.headers["Retry-After"]) > 0
        issuer.down = False
        await _opens(client, issuer.token(client.url))


async def test_a_redirect_of_the_keys_is_not_followed() -> None:
    async with protected() as (gateway, issuer, client):
        issuer.redirect = f"{gateway.url}/healthz"
        async with client.post(initialize(), Authorization=f"Bearer {issuer.token(client.url)}") as response:
            assert response.status == 503


async def test_no_body_of_an_unauthenticated_caller_is_read() -> None:
    sent = anyio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"{"
        sent.set()
        await anyio.sleep_forever()

    with anyio.fail_after(GUARD):
        async with served(authentication=KEYS) as gateway, aiohttp.ClientSession() as http:
            async with http.post(f"{gateway.url}/mcp", data=endless()) as response:
                assert response.status == 401
            assert gateway.metric("mcproxy_bytes_in_total", transport="http") == 0


async def test_r57_a_preflight_needs_no_key() -> None:
    async with served(authentication=KEYS) as gateway, aiohttp.ClientSession() as http:
        headers = {"Origin": "http://localhost:6274", "Access-Control-Request-Method": "POST"}
        async with http.options(f"{gateway.url}/mcp", headers=headers) as response:
            assert response.status == 204
            assert "Authorization" in response.headers["Access-Control-Allow-Headers"]
        async with http.post(f"{gateway.url}/mcp", headers={"Origin": headers["Origin"]}) as response:
            assert response.status == 401
            assert "WWW-Authenticate" in response.headers["Access-Control-Expose-Headers"]


async def test_keys_alone_send_no_client_to_an_authorization_server() -> None:
    async with served(authentication=KEYS) as gateway, client_of(gateway) as client:
        async with client.post(initialize()) as response:
            assert response.status == 401
            assert parameters(response) == {"realm": "mcproxy"}
        async with client.http.get(f"{gateway.url}/.well-known/oauth-protected-resource/mcp") as response:
            assert response.status == 404


@pytest.mark.parametrize("secret", ["s3ntinel", "mcproxy_s3ntinel", "e30.s3ntinel.AAAA", "s3ntinel\xe9"])
async def test_r44_what_is_shown_is_in_no_answer_and_no_log(secret: str, capfd: pytest.CaptureFixture[str]) -> None:
    async with protected() as (gateway, _, client):
        for headers in ({"Authorization": f"Bearer {secret}"}, {"Authorization": secret}):
            async with client.http.post(client.url, headers=headers) as response:
                assert response.status == 401
                assert "s3ntinel" not in str(response.headers) + await response.text()
        assert gateway.gateway.calls == []
    assert "s3ntinel" not in "".join(capfd.readouterr())


async def test_r42_a_reload_that_takes_authentication_out_admits_no_caller_from_outside() -> None:
    async with served(authentication=KEYS) as gateway, client_of(gateway) as client:
        gateway.identity.reconfigure(Authentication())
        gateway.reconfigure(gateway.context.proxy.model_copy(update={"host": "0.0.0.0"}))
        async with client.post(initialize()) as response:
            assert response.status == 401
        gateway.reconfigure(gateway.context.proxy.model_copy(update={"insecure": True}))
        await client.open()


async def test_a_key_that_a_reload_takes_out_is_refused_from_the_next_request_on() -> None:
    async with served(authentication=KEYS) as gateway, client_of(gateway) as client:
        client.headers.update(ANN)
        await client.open()
        for status in (200, 200, 401, 401):
            if status == 401:
                gateway.identity.reconfigure(KEYS.model_copy(update={"keys": {"bob": KEYS.keys["bob"]}}))
            async with client.post(request(1, "ping")) as response:
                assert response.status == status


async def test_a_token_is_for_what_it_names_whatever_the_connection_had_it_for_before() -> None:
    async with protected() as (gateway, issuer, client):
        headers = {"Authorization": f"Bearer {issuer.token(f'{gateway.url}/servers/up/mcp')}"}
        for path, status in (("/servers/up/mcp", 200), ("/mcp", 401)) * 2:
            client.url = gateway.url + path
            async with client.post(initialize(), **headers) as response:
                assert response.status == status


# What belongs to whom


async def test_r39_a_session_its_streams_and_its_end_are_its_principals() -> None:
    held = Held()
    gateway = FakeGateway()
    gateway.answers["tools/call"] = held
    with anyio.fail_after(GUARD):
        async with (
            served(gateway, quick(stream_after=0.01), authentication=KEYS) as running,
            client_of(running) as ann,
            client_of(running) as bob,
        ):
            ann.headers.update(ANN)
            await ann.open()
            bob.headers = {**ann.headers, **BOB}
            async with ann.post(request(1, "tools/call", {"name": "x"})) as response:
                primed = await EventReader(response).next()
                assert primed is not None
                last = {"Last-Event-ID": str(primed.id)}
            stolen = {"Accept": "text/event-stream", **bob.headers}
            for method, headers in (("GET", stolen), ("GET", {**stolen, **last}), ("DELETE", bob.headers)):
                async with bob.http.request(method, bob.url, headers=headers) as response:
                    assert response.status == 404, method
                    assert response.content_type == "application/json"
            for message in (request(2, "ping"), {"jsonrpc": "2.0", "id": 1, "result": {}}):
                async with bob.post(message) as response:
                    assert response.status == 404
            held.release.set()
            async with ann.listen(**last) as events:
                assert (await events.message())["id"] == 1
            assert not held.cancelled.is_set()


async def test_r39_posts_beside_an_event_stream_are_its_principals() -> None:
    with anyio.fail_after(GUARD):
        async with (
            served(authentication=KEYS) as gateway,
            aiohttp.ClientSession() as http,
            http.get(f"{gateway.url}/sse", headers=ANN) as stream,
        ):
            where = await EventReader(stream).next()
            assert where is not None
            statuses = []
            for headers in ({}, BOB, ANN):
                async with http.post(
                    gateway.url + where.data.decode(), json=request(1, "ping"), headers=headers
                ) as response:
                    statuses.append(response.status)
            assert statuses == [401, 404, 202]


async def test_a_token_for_an_event_stream_is_good_for_its_posts() -> None:
    async with protected() as (gateway, issuer, client):
        headers = {"Authorization": f"Bearer {issuer.token(f'{gateway.url}/servers/up/sse')}"}
        async with client.http.get(f"{gateway.url}/servers/up/sse", headers=headers) as stream:
            where = await EventReader(stream).next()
            assert where is not None
            async with client.http.post(
                gateway.url + where.data.decode(), json=initialize(), headers=headers
            ) as response:
                assert response.status == 202
            other = {"Authorization": f"Bearer {issuer.token(client.url)}"}
            async with client.http.post(
                gateway.url + where.data.decode(), json=initialize(), headers=other
            ) as response:
                assert response.status == 401


async def test_r54_event_streams_are_limited_for_each_caller() -> None:
    proxy = quick(LimitSettings(max_streams_per_principal=2))
    with anyio.fail_after(GUARD):
        async with served(proxy=proxy, authentication=KEYS) as gateway, client_of(gateway) as client:
            listen = modern.request(1, "subscriptions/listen", {"notifications": {}})
            bobs = {**modern.headers_of(listen), **BOB}
            anns = {**modern.headers_of(listen), **ANN}
            async with client.http.get(f"{gateway.url}/sse", headers=ANN), client.post(listen, **anns) as second:
                assert second.status == 200
                async with client.post(listen, **anns) as third:
                    assert third.status == 503
                    assert "max_streams_per_principal" in json.dumps(await third.json())
                async with client.post(listen, **bobs) as another:
                    assert another.status == 200
                client.headers.update(ANN)
                await client.open()
                async with client.http.get(
                    client.url, headers={"Accept": "text/event-stream", **client.headers}
                ) as fourth:
                    assert fourth.status == 503
            await gateway.gateway.emptied_of(2)
            async with client.listen():
                pass


# Streams whose credentials are judged again


LISTEN = modern.request(1, "subscriptions/listen", {"notifications": {}})


def keys(**roles: list[str]) -> Authentication:
    """Keys of those named, with their roles."""
    entries = {name: [{"sha256": key_digest(f"{name}s-key").hex(), "roles": given}] for name, given in roles.items()}
    return Authentication.model_validate({"keys": entries})


@asynccontextmanager
async def open_streams(
    gateway: Served, client: RawClient, headers: dict[str, str]
) -> AsyncIterator[tuple[EventReader, EventReader, EventReader]]:
    """A stream of each transport: GET, `subscriptions/listen` and 2024-11-05, each past its first event."""
    listening = {**modern.headers_of(LISTEN), **headers}
    client.headers.update(headers)
    await client.open()
    async with (
        client.listen() as get,
        client.post(LISTEN, **{**listening, "Mcp-Session-Id": ""}) as listen,
        client.http.get(f"{gateway.url}/sse", headers={"Accept": "text/event-stream", **headers}) as sse,
    ):
        subscription, old = EventReader(listen), EventReader(sse)
        assert (await subscription.message())["method"] == "notifications/subscriptions/acknowledged"
        first = await old.next()
        assert first is not None
        assert first.event == "endpoint"
        yield get, subscription, old


async def ends(streams: tuple[EventReader, EventReader, EventReader]) -> None:
    """Each as its transport ends: the listen stream with its closing result."""
    get, subscription, old = streams
    assert await get.rest() == []
    assert [message["id"] for message in await subscription.rest()] == [1]
    assert await old.rest() == []


async def test_r39_a_reload_that_revokes_a_key_ends_its_open_streams_and_no_others() -> None:
    with anyio.fail_after(GUARD):
        async with (
            served(authentication=keys(ann=[], bob=[])) as gateway,
            client_of(gateway) as anns,
            client_of(gateway) as bobs,
            open_streams(gateway, anns, ANN) as revoked,
            open_streams(gateway, bobs, BOB) as (get, *_),
        ):
            gateway.identity.reconfigure(keys(bob=[]))
            gateway.reconfigure()
            await ends(revoked)
            await gateway.gateway.emptied_of(1)
            for listener in gateway.gateway.present:
                listener.signal(ListChanged(Kind.TOOLS))
            assert (await get.message())["method"] == "notifications/tools/list_changed"


async def test_a_reload_that_takes_a_role_away_tells_sessions_streams_by_the_new_roles_and_ends_the_others() -> None:
    with anyio.fail_after(GUARD):
        async with (
            served(authentication=keys(ann=["admin"])) as gateway,
            client_of(gateway) as client,
            open_streams(gateway, client, ANN) as (get, subscription, _),
        ):
            gateway.identity.reconfigure(keys(ann=["reader"]))
            gateway.reconfigure()
            assert [message["id"] for message in await subscription.rest()] == [1]
            session = next(listener for listener in gateway.gateway.present if listener.caller.session is not None)
            assert session.caller.principal.roles == {"reader"}
            session.signal(ListChanged(Kind.TOOLS))
            assert (await get.message())["method"] == "notifications/tools/list_changed"


async def test_streams_end_when_their_token_expires() -> None:
    now = time.time()
    with anyio.fail_after(GUARD):
        async with (
            issuing() as issuer,
            served(authentication=oauth(issuer), wall=lambda: now) as gateway,
            client_of(gateway) as client,
        ):
            (leeway,) = [issuer.leeway for issuer in gateway.identity.settings.oauth.issuers]
            token = issuer.token(gateway.url, exp=int(now))
            now = int(now) + leeway - 0.1
            async with open_streams(gateway, client, {"Authorization": f"Bearer {token}"}) as streams:
                now += 0.2
                await ends(streams)


async def test_a_reload_that_demands_authentication_ends_the_streams_of_those_who_had_none() -> None:
    with anyio.fail_after(GUARD):
        async with (
            served(authentication=Authentication()) as gateway,
            client_of(gateway) as client,
            open_streams(gateway, client, {}) as streams,
        ):
            gateway.identity.reconfigure(KEYS)
            gateway.reconfigure()
            await ends(streams)


@dataclass
class Facts:
    """A request over a connection with a client certificate (implements `HttpRequestFacts`)."""

    certificate: dict[str, Any] | None
    fields: http.Headers = field(default_factory=http.Headers)
    path: str = "/mcp"
    raw_path: str = "/mcp"
    scheme: str = "https"
    local: tuple[str, int] | None = None
    peer: str | None = None

    def transport_info(self, name: str) -> Any:
        return self.certificate if name == "peercert" else None


BY_CERTIFICATE = Authentication.model_validate({"certificates": {"enabled": True}})
CERTIFICATE = {"subject": ((("commonName", "ann"),),), "notAfter": "Jan  1 00:00:10 1970 GMT"}


@pytest.mark.parametrize("settings", [BY_CERTIFICATE, KEYS, Authentication()], ids=["certificate", "key", "none"])
async def test_a_client_certificate_that_expires_on_a_kept_connection_is_good_no_longer(
    settings: Authentication,
) -> None:
    now = [9.0]
    async with edge_of(FakeGateway()) as context:
        identity = Identity(settings, context.tasks.start_soon, wall=lambda: now[0])
        authenticator = Authenticator(context, identity, wall=lambda: now[0])
        facts = Facts(CERTIFICATE, http.Headers.of(ANN.items() if settings is KEYS else ()))
        found = await authenticator.identify(facts)
        assert (found.until, identity.vouches(found)) == (10, True)
        now[0] = 10.0
        assert not identity.vouches(found)
        with pytest.raises(NotIdentified, match="certificate has expired"):
            await authenticator.identify(facts)


@dataclass
class Connection:
    """All that identification asks of a connection (of `messages.RequestTransport`)."""

    peer: str | None = "10.0.0.1"
    certificate: dict[str, Any] | None = None

    def transport_info(self, name: str) -> Any:
        return {"sockname": ("10.0.0.9", 8080), "peercert": self.certificate}.get(name)


def asked(connection: Connection, *lines: tuple[str, str], target: str = "/mcp") -> http.Request:
    fields = http.Headers.of([("Host", "here"), *lines])
    return http.Request(connection, "POST", target, fields)  # type: ignore[arg-type]  # it has all that is asked for


async def test_r39_credentials_are_all_that_decides_who_sends_a_request() -> None:
    bearer, other = ("Authorization", "Bearer x"), ("Authorization", "Bearer y")
    certificate = {"subject": ((("commonName", "ann"),),), "notAfter": "Jan  1 00:00:10 2070 GMT"}
    async with edge_of(FakeGateway()) as context:
        authenticator = Authenticator(context, Identity(KEYS, context.tasks.start_soon))
        requests = [
            asked(Connection()),
            asked(Connection(), bearer),
            asked(Connection(), bearer, bearer),
            asked(Connection(), other),
            asked(Connection(peer="10.0.0.2"), bearer),
            asked(Connection(certificate=certificate), bearer),
            asked(Connection(), bearer, target="/servers/a/mcp"),
        ]
        digests = [authenticator.credentials(request) for request in requests]
        assert len(set(digests)) == len(requests)
        assert authenticator.credentials(asked(Connection(), bearer, ("Accept", "a/b"))) == digests[1]
        assert not any(b"Bearer" in digest for digest in digests)


async def test_r39_who_is_known_by_credentials_is_so_while_settings_and_key_stay() -> None:
    now, ann, wrong = [9.0], list(ANN.items()), ("Authorization", "Bearer wrong")
    async with edge_of(FakeGateway()) as context:
        identity = Identity(KEYS, context.tasks.start_soon, wall=lambda: now[0])
        authenticator = Authenticator(context, identity, wall=lambda: now[0])
        request = asked(Connection(), *ann)
        credentials = authenticator.credentials(request)

        async def is_known_again() -> bool:
            found = await authenticator(request)
            return authenticator.known(credentials) is found

        assert authenticator.known(credentials) is None
        assert await is_known_again()
        assert authenticator.known(authenticator.credentials(asked(Connection(), *ann))) is not None
        with pytest.raises(Refusal):
            await authenticator(asked(Connection(), wrong))
        assert authenticator.known(authenticator.credentials(asked(Connection(), wrong))) is None

        context.reconfigure(context.proxy, context.forwarded)
        assert authenticator.known(credentials) is None
        assert await is_known_again()
        identity.reconfigure(KEYS.model_copy())
        assert authenticator.known(credentials) is None
