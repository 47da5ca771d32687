"""Logins at a real authorization server of others (npm's `oidc-provider`), with tokens of seconds."""

from __future__ import annotations

import anyio
import pytest

from mcproxy.downstream.front import client_document
from mcproxy.settings import Proxy
from mcproxy.settings.upstreams.oauth import OAuthSettings
from mcproxy.upstream.oauth import registration
from mcproxy.upstream.oauth.device import DEVICE_CODE
from mcproxy.upstream.oauth.flow import OAuthFlow
from mcproxy.upstream.oauth.storage.store import MemoryStore
from mcproxy.upstream.oauth.tokens import TokenRefused
from tests.fakes.gateway import FakeGateway, edge_of, served
from tests.timeouts import GUARD
from tests.upstream.oauth.provider import enter_code, log_in, need_provider, provider

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
