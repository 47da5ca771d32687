"""Many principals with logins of their own, tokens of seconds, a real authorization server, a gateway as it is run.

`python -m tests.upstream.oauth.soak --minutes 10` takes that long, and prints what the authorization server counted:
one login for each principal, no refresh token redeemed twice, no call that failed. `test_soak` runs it for seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import anyio
import msgspec

from mcproxy.protocol.eras import LATEST
from mcproxy.sealing import Sealer
from mcproxy.settings.upstreams.oauth import OAuthSettings
from mcproxy.upstream.oauth.flow import OAuthFlow
from mcproxy.upstream.oauth.storage.store import FileStore, GrantStore
from tests.system.running import Gateway, serving, write
from tests.upstream.oauth.provider import Provider, log_in, provider

SECRET = hashlib.sha256(b"soak").hexdigest()
REDIRECT = "http://127.0.0.1:1/callback"
PAUSE = 3.0
"""Seconds between two calls of a principal, on average."""
META = {
    "io.modelcontextprotocol/protocolVersion": LATEST,
    "io.modelcontextprotocol/clientInfo": {"name": "soak", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}

Done = Callable[[dict[str, Any]], bool]


class Report(msgspec.Struct):
    principals: int
    seconds: float
    calls: int = 0
    failed: Counter[str] = msgspec.field(default_factory=Counter)
    """Calls that did not answer with the caller's own name, by what was said instead."""
    slowest: float = 0
    figures: dict[str, Any] = msgspec.field(default_factory=dict)
    """As the authorization server counted."""

    def faults(self) -> list[str]:
        """What should not have been."""
        grants = self.figures["grants"]
        return [
            *(f"{count} calls: {said}" for said, count in self.failed.items()),
            *([f"{grants['authorization_code']} logins"] if grants["authorization_code"] != self.principals else []),
            *([f"replayed: {self.figures['replayed']}"] if self.figures["replayed"] else []),
            *([f"token requests failed: {self.figures['errors']}"] if self.figures["errors"] else []),
            *([f"grants revoked: {self.figures['revoked']}"] if self.figures["revoked"] else []),
        ]


async def soak(folder: Path, at: Provider, names: list[str], done: Done, pause: float = PAUSE) -> Report:
    """Calls as each principal again and again until the provider's figures are `done`."""
    store = FileStore(folder / "state" / "mcproxy" / "grants", Sealer(SECRET.encode()))
    for name in names:
        await _logged_in(at, store, name)
    report, began = Report(len(names), 0), time.monotonic()
    async with serving(folder, write(folder, _settings(at, names))) as running, anyio.create_task_group() as tasks:
        http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        async with http:
            for name in names:
                tasks.start_soon(_calling, http, running, name, pause, report)
            await _until(done, at)
            tasks.cancel_scope.cancel()
    report.figures, report.seconds = await at.figures(), time.monotonic() - began
    return report


async def _until(done: Done, at: Provider) -> None:
    while True:
        if done(await at.figures()):
            return
        await anyio.sleep(0.2)  # the provider's figures cannot be waited for


async def _logged_in(at: Provider, store: GrantStore, name: str) -> None:
    flow = OAuthFlow("web", at.url, OAuthSettings(), store)
    found = await flow.discover(await flow.challenge())
    begun, url = await flow.begin_login(found, REDIRECT)
    await flow.finish_login(begun, found.server, await log_in(url, name), name)


def _settings(at: Provider, names: list[str]) -> dict[str, Any]:
    keys = {name: [{"sha256": hashlib.sha256(_key(name).encode()).hexdigest()}] for name in names}
    return {
        "mcpServers": {"web": {"url": at.url, "type": "http", "era": "modern", "oauth": {}}},
        "proxy": {"port": 0, "log_format": "json", "secret": SECRET},
        "access": {"authentication": {"keys": keys}},
    }


def _key(name: str) -> str:
    return f"key-of-{name}-{hashlib.sha256(name.encode()).hexdigest()}"


async def _calling(http: aiohttp.ClientSession, running: Gateway, name: str, pause: float, report: Report) -> None:
    while True:
        began = time.monotonic()
        said = await _called(http, running.url, name)
        report.slowest = max(report.slowest, time.monotonic() - began)
        report.calls += 1
        if said != name:
            report.failed[said] += 1
        await anyio.sleep(random.uniform(0.5, 1.5) * pause)


async def _called(http: aiohttp.ClientSession, url: str, name: str) -> str:
    """Who the server says has called."""
    headers = {
        "Authorization": f"Bearer {_key(name)}",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": LATEST,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "web__whoami",
    }
    params = {"name": "web__whoami", "arguments": {}, "_meta": META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with http.post(f"{url}/mcp", json=body, headers=headers) as response:
        text = await response.text()
    answer = json.loads(text.partition("data: ")[2] or text)
    try:
        said: str = answer["result"]["content"][0]["text"]
    except (KeyError, IndexError):
        return text[:300]
    return said


async def main(minutes: float, principals: int) -> int:
    until = time.monotonic() + 60 * minutes
    with TemporaryDirectory() as folder:
        async with provider() as at:
            names = [f"user-{number}" for number in range(principals)]
            report = await soak(Path(folder), at, names, lambda figures: time.monotonic() > until)
    print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    for fault in report.faults():
        print(f"FAULT: {fault}")
    return 1 if report.faults() else 0


def _run(work: Coroutine[Any, Any, int]) -> int:
    async def run() -> int:
        return await work

    return anyio.run(run)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--principals", type=int, default=50)
    given = parser.parse_args()
    sys.exit(_run(main(given.minutes, given.principals)))
