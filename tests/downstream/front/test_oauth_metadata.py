"""The metadata of RFC 9728: for whom it is, and where there is none."""

from __future__ import annotations

import aiohttp
import pytest

from mcproxy.settings.access.authentication import Authentication
from tests.fakes.gateway import served

pytestmark = pytest.mark.anyio

WELL_KNOWN = "/.well-known/oauth-protected-resource"
ISSUERS = [
    {"issuer": "https://a.example", "jwks_url": "https://a.example/jwks"},
    {"issuer": "https://b.example", "jwks_url": "https://b.example/jwks", "prefix": "b:"},
]
OAUTH = Authentication.model_validate(
    {"oauth": {"issuers": ISSUERS, "required_scopes": ["use"], "scopes_supported": ["admin", "use"]}}
)


@pytest.mark.parametrize(
    ("asked", "resource"),
    [
        ("", ""),
        ("/", ""),
        ("/mcp", "/mcp"),
        ("/mcp/", "/mcp"),
        ("/mcp/selection", "/mcp/selection"),
        ("/sse", "/sse"),
        ("/servers/GitHub%20(work)/mcp", "/servers/GitHub%20(work)/mcp"),
        ("/servers/nobody-knows/sse", "/servers/nobody-knows/sse"),
    ],
)
async def test_r41_each_endpoint_is_a_resource_and_so_is_the_whole(asked: str, resource: str) -> None:
    page = {"Origin": "http://localhost:6274"}
    async with (
        served(authentication=OAUTH) as gateway,
        aiohttp.ClientSession() as http,
        http.get(gateway.url + WELL_KNOWN + asked, headers=page) as response,
    ):
        assert response.status == 200
        assert response.headers["Access-Control-Allow-Origin"] == page["Origin"]
        assert await response.json() == {
            "resource": gateway.url + resource,
            "authorization_servers": ["https://a.example", "https://b.example"],
            "bearer_methods_supported": ["header"],
            "resource_name": "mcproxy",
            "scopes_supported": ["admin", "use"],
        }


@pytest.mark.parametrize(
    "path",
    ["x", "/messages", "/metrics", "/servers", "/servers/a", "/servers/a/b/mcp", "/mcp/a/b", "/sse/a/b", "/mcpx"],
)
async def test_what_is_no_endpoint_has_no_metadata(path: str) -> None:
    async with (
        served(authentication=OAUTH) as gateway,
        aiohttp.ClientSession() as http,
        http.get(gateway.url + WELL_KNOWN + path) as response,
    ):
        assert response.status == 404


@pytest.mark.parametrize("path", ["", "/", "/mcp", "/servers/up/mcp", "/sse"])
async def test_r41_without_oauth_these_paths_are_real_404s(path: str) -> None:
    async with served() as gateway, aiohttp.ClientSession() as http:
        async with http.get(gateway.url + WELL_KNOWN + path) as response:
            assert response.status == 404
        gateway.identity.reconfigure(OAUTH)
        async with http.get(gateway.url + WELL_KNOWN + path) as response:
            assert response.status == 200
