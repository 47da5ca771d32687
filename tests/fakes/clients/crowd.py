"""Many clients on the official SDK that watch one resource, of either era: whoever is told that it changed reads it.

Each has connections of its own. A read that fails is left at that: the client is told again once the server is back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import mcp_types as types
from anyio.abc import TaskStatus
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage

from mcproxy.protocol.eras import LATEST, Era


@dataclass(eq=False)
class Member:
    """One client. `values` are all that it read, in order."""

    url: str
    uri: str
    era: Era
    on_read: Callable[[], None]
    values: list[int] = field(default_factory=list)
    told: int = 0
    """How often it was told that the resource changed."""
    _changed: anyio.Event = field(default_factory=anyio.Event)

    async def attend(self, *, task_status: TaskStatus[None]) -> None:
        """Reads whenever it is told to; has started when it watches, and has read once."""
        match self.era:
            case Era.HANDSHAKE:
                await self._subscribe(task_status)
            case Era.STATELESS:
                await self._listen(task_status)

    async def _subscribe(self, task_status: TaskStatus[None]) -> None:
        async with Client(self.url, mode="legacy", message_handler=self._hear, cache=None) as client:
            params = types.SubscribeRequestParams(uri=self.uri)
            await client.session.send_request(types.SubscribeRequest(params=params), types.EmptyResult)
            await self._read(client)
            task_status.started()
            while True:
                await self._changed.wait()
                self._changed = anyio.Event()
                await self._read(client)

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            self.told += 1
            self._changed.set()

    async def _listen(self, task_status: TaskStatus[None]) -> None:
        async with (
            Client(self.url, mode=LATEST, cache=None) as client,
            client.listen(resource_subscriptions=[self.uri]) as changes,
        ):
            await self._read(client)
            task_status.started()
            async for _ in changes:
                self.told += 1
                await self._read(client)

    async def _read(self, client: Client) -> None:
        try:
            result = await client.read_resource(self.uri)
        except MCPError:
            return
        [content] = result.contents
        assert isinstance(content, types.TextResourceContents)
        self.values.append(int(content.text))
        self.on_read()


@dataclass(eq=False)
class Crowd:
    members: list[Member] = field(default_factory=list)
    _news: anyio.Event = field(default_factory=anyio.Event)

    def note(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def all_have(self, value: int) -> None:
        """Returns when that is what every client read last."""
        while any(member.values[-1] != value for member in self.members):
            await self._news.wait()


@asynccontextmanager
async def crowd(url: str, uri: str, eras: Sequence[Era]) -> AsyncIterator[Crowd]:
    """A client of each of `eras`, all of which watch `uri` at `url`."""
    it = Crowd()
    it.members += [Member(url, uri, era, it.note) for era in eras]
    async with anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as starting:
            for member in it.members:
                starting.start_soon(tasks.start, member.attend)
        yield it
        tasks.cancel_scope.cancel()
