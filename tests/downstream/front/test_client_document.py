"""The gateway's own Client ID Metadata Document, as an authorization server fetches it."""

from __future__ import annotations

import aiohttp
import pytest

from mcproxy.downstream.front import client_document
from mcproxy.settings import Proxy
from tests.fakes.gateway import FakeGateway, edge_of, served

pytestmark = pytest.mark.anyio

PATH = "/oauth/client.json"


def published(public_url: str | None) -> dict[str, object] | None:
    return None if public_url is None else {"client_id": public_url + PATH}


async def fetched(proxy: Proxy) -> tuple[int, dict[str, object] | None, str | None]:
    """Status, document and caching of what a stranger gets."""
    async with edge_of(FakeGateway(), proxy) as context:
        routes = client_document.routes(context, PATH, published)
    async with (
        served(proxy=proxy, extra_routes=routes) as gateway,
        aiohttp.ClientSession() as http,
        http.get(gateway.url + PATH) as response,
    ):
        found = await response.json() if response.status == 200 else None
        return response.status, found, response.headers.get("Cache-Control")


async def test_the_document_is_served_to_anyone_and_may_be_kept_for_a_while() -> None:
    proxy = Proxy(public_url="https://gateway.example")
    assert await fetched(proxy) == (200, {"client_id": "https://gateway.example/oauth/client.json"}, "max-age=300")


async def test_without_a_public_url_there_is_none() -> None:
    assert (await fetched(Proxy()))[0] == 404
