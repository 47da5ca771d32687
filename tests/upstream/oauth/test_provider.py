"""Logins at a real authorization server of others (npm's `oidc-provider`), with tokens of seconds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from mcproxy.call.calls import Complete
from mcproxy.call.errors import Reason
from mcproxy.downstream.front import client_document
from mcproxy.settings import Proxy, UpstreamSettings
from mcproxy.settings.upstreams.oauth import OAuthSettings
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.oauth import registration
from mcproxy.upstream.oauth.device import DEVICE_CODE
from mcproxy.upstream.oauth.flow import OAuthFlow
from mcproxy.upstream.oauth.grants import Grant
from mcproxy.upstream.oauth.storage.store import MemoryStore
from mcproxy.upstream.oauth.tokens import TokenRefused
from mcproxy.upstream.supervisor import Supervisor
from tests.fakes.gateway import FakeGateway, edge_of, served
from tests.timeouts import GUARD
from tests.upstream.oauth.provider import Provider, enter_code, log_in, need_provider, provider
from tests.upstream.support import QUICK, failure, tool

pytestmark = pytest.mark.anyio

REDIRECT = "http://127.0.0.1:1/callback"


@pytest.fixture(autouse=True)
def needed() -> None:
    need_provider()


async def test_a_login_is_refreshed_with_rotation_and_taken_back() -> None:
    with anyio.fail_after(GUARD):
        async with provider() as at:
            flow = OAuthFlow("web", at.url, OAuthSettings(), MemoryStore())
            found = await flow.discover(await flow.challenge())
            assert found.server.authorization_response_iss_parameter_supported
            login, url = await flow.begin_login(found, REDIRECT)
            redirected = await log_in(url, "ann")
            assert redirected["iss"] == at.origin
            grant = await flow.finish_login(login, found.server, redirected)
            renewed = await flow.refresh(grant)
            assert renewed.token.refresh != grant.token.refresh
            assert renewed.token.access != grant.token.access
            await flow.revoke(renewed)
            with pytest.raises(TokenRefused, match="invalid_grant"):
                await flow.refresh(renewed)
            figures = await at.figures()
    assert figures["grants"] == {"authorization_code": 1, "refresh_token": 1}
    assert figures["replayed"] == 0


async def logged_in(flow: OAuthFlow, *scopes: str) -> Grant:
    """Logs ann in with these scopes beside those that the server names."""
    found = await flow.discover(await flow.challenge(), scopes)
    login, url = await flow.begin_login(found, REDIRECT)
    return await flow.finish_login(login, found.server, await log_in(url, "ann"))


async def test_a_login_gets_scopes_that_the_first_one_did_not_ask_for() -> None:
    with anyio.fail_after(GUARD):
        async with provider() as at:
            flow = OAuthFlow("web", at.url, OAuthSettings(), MemoryStore())
            first = await logged_in(flow)
            assert "write" not in (first.token.scopes or first.scopes)
            second = await logged_in(flow, "write")
            assert {"read", "write"} <= set(second.token.scopes or second.scopes)
            assert (await logged_in(flow)).client == second.client, "fewer scopes need no other client"
            assert (await at.figures())["registered"] == 2
            # The provider registers no client for a scope that it does not list, and grants it all the same.
            assert "admin" in ((await logged_in(flow, "admin")).token.scopes or ())
            assert (await at.figures())["registered"] == 3


async def test_logins_at_two_servers_of_one_provider_ask_for_different_scopes() -> None:
    store = MemoryStore()
    with anyio.fail_after(GUARD):
        async with provider() as at:
            reading, writing = (
                OAuthFlow(name, at.url, OAuthSettings(scopes=scopes), store)
                for name, scopes in (("reading", ("read",)), ("writing", ("write",)))
            )
            for flow in (reading, writing, reading, writing):
                await logged_in(flow)
            assert (await at.figures())["registered"] == 2


@asynccontextmanager
async def linked(at: Provider, store: MemoryStore) -> AsyncIterator[Supervisor]:
    spec = UpstreamSettings(name="web", prefix="web", type="http", url=at.url, oauth=OAuthSettings(), timeouts=QUICK)
    upstream = Supervisor(spec, Proxy(), lambda event: None, Metrics(), grants=store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(upstream.run)
        yield upstream
        tasks.cancel_scope.cancel()


async def test_a_call_that_needs_a_further_scope_is_made_after_one_login() -> None:
    store = MemoryStore()
    with anyio.fail_after(GUARD):
        async with provider(seconds=600) as at:
            await logged_in(OAuthFlow("web", at.url, OAuthSettings(), store))
            async with linked(at, store) as upstream:
                assert isinstance(await upstream(tool("whoami")), Complete)
                assert "--scope write" in failure(await upstream(tool("write"))).error.message
                assert upstream.logins is not None
                started = await upstream.logins.begin("", await upstream.logins.discover(""), REDIRECT)
                await upstream.logins.finish(started, await log_in(started.url, "ann"))
                assert isinstance(await upstream(tool("write")), Complete)
                for _ in range(3):
                    refused = failure(await upstream(tool("never")))
                    assert refused.reason is Reason.UNAVAILABLE
                    assert "write" in refused.error.message
                    assert "a further login would not help" in refused.error.message
                assert upstream.logins.status.awaited == 0


async def test_a_login_by_code_on_another_device() -> None:
    with anyio.fail_after(GUARD):
        async with provider() as at:
            flow = OAuthFlow("web", at.url, OAuthSettings(), MemoryStore())
            found = await flow.discover(await flow.challenge())
            begun = await flow.begin_device_login(found)
            assert begun.verification_uri_complete is not None
            complete = begun.verification_uri_complete
            waits: list[float] = []

            async def sleep(seconds: float) -> None:
                """The person comes after the first request."""
                waits.append(seconds)
                if len(waits) == 2:
                    assert await enter_code(complete) == "done"

            grant = await flow.finish_device_login(begun, found.server, sleep)
            assert (await flow.refresh(grant)).generation == 2
            figures = await at.figures()
    assert len(waits) == 2
    assert figures["errors"] == {f"{DEVICE_CODE} authorization_pending": 1}


async def test_the_gateways_own_document_is_who_it_is_there() -> None:
    proxy = Proxy(public_url="https://gateway.test", allowed_hosts=("*",))
    with anyio.fail_after(GUARD):
        async with edge_of(FakeGateway(), proxy) as context:
            routes = client_document.routes(context, registration.DOCUMENT_PATH, registration.document)
            async with served(proxy=proxy, extra_routes=routes) as published, provider(gateway=published.url) as at:
                flow = OAuthFlow("web", at.url, OAuthSettings(), MemoryStore())
                found = await flow.discover(await flow.challenge())
                document_url = registration.document_url(proxy.public_url)
                for redirect in ("https://gateway.test/oauth/callback", "http://127.0.0.1:45678/callback"):
                    login, url = await flow.begin_login(found, redirect, document_url)
                    grant = await flow.finish_login(login, found.server, await log_in(url, "ann"))
                    assert grant.client.id == "https://gateway.test/oauth/client.json"
                    assert (await flow.refresh(grant)).generation == grant.generation + 1
