"""A real authorization server from npm (`oidc-provider`) beside an MCP server that wants its tokens; and a person.

Each in a process of its own, on loopback. The person opens links and follows redirects with a browser's cookies.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import anyio
import pytest
from yarl import URL

from tests.ports import free_port

NODE = Path(__file__).with_name("node")
FORM = re.compile(r"""<form[^>]*action="([^"]+)"[^>]*>(.*?)</form>""", re.DOTALL)
FIELD = re.compile(r"""<input[^>]*name="([^"]+)"(?:[^>]*value="([^"]*)")?""")
STEPS = 20
"""Redirects that a login may take."""


def need_provider() -> None:
    """Skips a test where npm's packages are not set up; in CI that is a failure."""
    if not (shutil.which("node") and (NODE / "node_modules" / "installed.stamp").exists()):
        (pytest.fail if os.environ.get("CI") else pytest.skip)("oidc-provider is not set up: run `make test`")


@dataclass
class Provider:
    origin: str

    @property
    def url(self) -> str:
        """Of the MCP server."""
        return f"{self.origin}/mcp"

    async def figures(self) -> dict[str, Any]:
        """What it was asked, and how it answered."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.origin}/figures") as response:
            found: dict[str, Any] = await response.json()
            return found


@asynccontextmanager
async def provider(*, seconds: float = 10, gateway: str = "") -> AsyncIterator[Provider]:
    """Serves until left. Tokens live `seconds`; metadata documents of https://gateway.test come from `gateway`."""
    port = free_port()
    environ = {"PATH": os.environ["PATH"], "TOKEN_SECONDS": str(seconds), "GATEWAY": gateway}
    command = ["node", str(NODE / "provider.mjs"), str(port)]
    process = await anyio.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ)
    assert process.stdout is not None
    try:
        yield Provider((await process.stdout.receive()).decode().strip())
    finally:
        process.kill()
        await process.aclose()


async def log_in(url: str, name: str) -> dict[str, str]:
    """Opens a login's link as `name`, and follows it as a browser does; what the redirect brings back."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        link = f"{url}&login_hint={name}"
        host = urlsplit(link).netloc
        for _ in range(STEPS):
            async with http.get(link, allow_redirects=False) as response:
                assert response.status in {302, 303}, await response.text()
                link = str(response.url.join(URL(response.headers["Location"])))
            if urlsplit(link).netloc != host:
                return dict(parse_qsl(urlsplit(link).query))
    raise AssertionError("the login leads round in a circle")


async def enter_code(url: str) -> str:
    """Opens a device login's link with the code in it, agrees, and returns what the last page says."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        async with http.get(url) as response:
            page, at = await response.text(), response.url
        for _ in range(STEPS):
            form = FORM.search(page)
            if form is None:
                return page
            fields = {**dict(FIELD.findall(form[2])), "confirm": "yes"}
            async with http.post(at.join(URL(form[1])), data=fields) as response:
                page, at = await response.text(), response.url
    raise AssertionError("the login leads round in a circle")
