"""The official SDK's OAuth client at a gateway as its users run it: from a 401 to a tool's answer."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import aiohttp
import anyio
import mcp_types as types
import pytest
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.client import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from tests.fakes.clients.python import leavable
from tests.fakes.issuer import FakeIssuer, issuing
from tests.system.running import PYTHON, ROOT, configuration, serving, write
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

BACK = "http://127.0.0.1:9/callback"
SERVER = {"command": PYTHON, "args": ["-m", "tests.fakes.servers.counter", "unused"], "cwd": str(ROOT)}


class Kept:
    """The SDK's storage of what it was given."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Browser:
    """A person's browser: follows the redirect to the issuer, which sends it straight back with a code."""

    def __init__(self) -> None:
        self.back = ""

    async def visit(self, url: str) -> None:
        async with aiohttp.ClientSession() as http, http.get(url, allow_redirects=False) as response:
            self.back = response.headers["Location"]

    async def returned(self) -> AuthorizationCodeResult:
        query = parse_qs(urlsplit(self.back).query)
        return AuthorizationCodeResult(code=query["code"][0], state=query["state"][0], iss=query["iss"][0])


def provider(url: str, kept: Kept) -> OAuthClientProvider:
    browser = Browser()
    metadata = OAuthClientMetadata(client_name="test", redirect_uris=[AnyUrl(BACK)])
    return OAuthClientProvider(url, metadata, kept, browser.visit, browser.returned)


@pytest.mark.parametrize(
    ("path", "mode", "tool"),
    [
        ("/mcp", "auto", "counter__count"),
        ("/mcp", "legacy", "counter__count"),
        ("/servers/counter/mcp", "auto", "count"),
        ("/sse", "legacy", "counter__count"),
    ],
)
async def test_the_sdk_discovers_obtains_a_token_and_uses_the_gateway(
    tmp_path: Path, path: str, mode: str, tool: str
) -> None:
    with anyio.fail_after(GUARD):
        async with issuing() as issuer:
            oauth = {"issuers": [{"issuer": issuer.url}], "required_scopes": ["mcp:use"]}
            settings = {
                **configuration({"counter": SERVER}),
                "access": {"authentication": {"oauth": oauth}},
            }
            async with serving(tmp_path, write(tmp_path, settings)) as running:
                url = running.url + path
                kept = Kept()
                tools = await _tools(url, mode, kept)
                assert tool in tools, tools
                _check_flow(issuer, url)
                assert kept.tokens is not None
                assert kept.tokens.access_token not in str(running.log)
                flows = len(issuer.asked)
                await _tools(url, mode, kept)
                assert len(issuer.asked) == flows, "the token is good a second time"


async def _tools(url: str, mode: str, kept: Kept) -> list[str]:
    auth = provider(url, kept)
    if url.endswith("/sse"):
        async with Client(leavable(sse_client(url, auth=auth)), mode="legacy") as client:
            return [tool.name for tool in (await client.list_tools()).tools]
    async with create_mcp_http_client(auth=auth) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode="legacy" if mode == "legacy" else "auto") as client:
            tools: list[types.Tool] = list((await client.list_tools()).tools)
            return [tool.name for tool in tools]


def _check_flow(issuer: FakeIssuer, url: str) -> None:
    """RFC 8707: the client asked for a token for this very endpoint, with the scopes that the challenge named."""
    code, token = issuer.asked
    assert code["resource"] == token["resource"] == url
    assert "mcp:use" in code["scope"].split()
