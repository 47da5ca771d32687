"""Clients that only listen: `python -m benchmarks.crowd PORT ERA SESSIONS [UPSTREAM_PORT UPDATES]`.

Says `ready` when all listen. Told `go`, it has the upstream announce that many updates, each when the last has
reached everybody, and says `told SECONDS`. It stays until its stdin ends.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Final

import aiohttp
import anyio
import anyio.to_thread
import uvloop
from anyio.abc import TaskGroup

from benchmarks.asking import HEADERS, INITIALIZE, INITIALIZED, NUMBER, Ask, handshake_headers, post
from benchmarks.proxies import upstream_name
from mcproxy.protocol.eras import Era
from mcproxy.protocol.methods import LISTEN_URIS, RESOURCE_UPDATED
from mcproxy.upstream.handshake.streamable_http import SESSION

AT_ONCE: Final = 32
"""Clients that arrive at the same time."""
PATIENCE: Final = 60.0
"""Seconds for some to arrive, and for one update to reach everybody."""
WATCHED: Final = "bench://watched/page"


@dataclass
class Crowd:
    http: aiohttp.ClientSession
    url: str
    era: Era
    watches: bool
    uri: str = f"{upstream_name(0)}+{WATCHED}"
    heard: int = 0
    """Updates, by all clients together."""
    _news: anyio.Event = field(default_factory=anyio.Event)

    async def open(self) -> aiohttp.ClientResponse:
        """The stream of one more client."""
        return await (self._open_session() if self.era is Era.HANDSHAKE else self._listen())

    async def hear(self, stream: aiohttp.ClientResponse) -> None:
        async with stream:
            async for line in stream.content:
                if RESOURCE_UPDATED.encode() in line:
                    self.heard += 1
                    self._news.set()

    async def have_heard(self, updates: int) -> None:
        while self.heard < updates:
            self._news = anyio.Event()
            await self._news.wait()

    async def _open_session(self) -> aiohttp.ClientResponse:
        async with self.http.post(self.url, json=INITIALIZE, headers=HEADERS) as opened:
            headers = handshake_headers(opened.headers[SESSION])
        async with self.http.post(self.url, json=INITIALIZED, headers=headers):
            pass
        if self.watches:
            subscribe = {"jsonrpc": "2.0", "id": 2, "method": "resources/subscribe", "params": {"uri": self.uri}}
            async with self.http.post(self.url, json=subscribe, headers=headers) as answer:
                assert "result" in await answer.json()
        return await self.http.get(self.url, headers={**headers, "Accept": "text/event-stream"})

    async def _listen(self) -> aiohttp.ClientResponse:
        uris = [self.uri] if self.watches else []
        listen = post(Ask("subscriptions/listen", {"notifications": {LISTEN_URIS: uris}}, "", 0), self.era, None)
        body = listen.body.replace(NUMBER, "1")
        return await self.http.post(self.url, data=body, headers=listen.headers)


async def run(port: int, era: Era, sessions: int, upstream: int, updates: int) -> None:
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http, anyio.create_task_group() as tasks:
        crowd = Crowd(http, f"http://127.0.0.1:{port}/mcp", era, watches=updates > 0)
        for number in range(0, sessions, AT_ONCE):
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as arrivals:
                    for _ in range(min(AT_ONCE, sessions - number)):
                        arrivals.start_soon(_arrive, crowd, tasks)
        say("ready")
        if await said():
            began = time.monotonic()
            for number in range(1, updates + 1):
                await http.post(f"http://127.0.0.1:{upstream}/announce", data=WATCHED)
                with anyio.fail_after(PATIENCE):
                    await crowd.have_heard(number * sessions)
            say(f"told {time.monotonic() - began}")
            await said()
        tasks.cancel_scope.cancel()


async def _arrive(crowd: Crowd, tasks: TaskGroup) -> None:
    stream = await crowd.open()
    stream.raise_for_status()
    tasks.start_soon(crowd.hear, stream)


def say(text: str) -> None:
    print(text, flush=True)


async def said() -> str:
    """The next line of stdin, empty at its end."""
    return await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)


def main(port: str, era: str, sessions: str, upstream: str = "0", updates: str = "0") -> None:
    uvloop.run(run(int(port), Era(era), int(sessions), int(upstream), int(updates)))


if __name__ == "__main__":
    main(*sys.argv[1:])
