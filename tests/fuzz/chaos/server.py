"""An upstream over stdio that journals each call it begins: `python -m tests.fuzz.chaos.server ERA JOURNAL`.

ERA is `handshake` or `stateless`. Every tool takes a marker, and says it in all that it sends. Keeps nothing from one
start to the next. `web` is the same over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE, Era
from mcproxy.protocol.jsonrpc import METHOD_NOT_FOUND

Json = dict[str, Any]
Send = Callable[[Json], Awaitable[None]]

PAGE: Final = "chaos:///page"
SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
TOOLS: Final = ("echo", "slow", "ask", "log", "large", "touch", "grow")
LISTENABLE: Final = {"notifications/tools/list_changed": "toolsListChanged"}
TICK: Final = 0.05
"""Seconds between two reports of progress."""
QUESTION: Final = {"type": "object", "properties": {"marker": {"type": "string"}}}


@dataclass(eq=False)
class Channel:
    """Where what belongs to no call is sent: the GET stream of a session, a listen stream, or the pipe."""

    send: Send
    subscription: object = None
    """The id of the listen stream, which its notifications carry."""
    uris: set[str] = field(default_factory=set)
    kinds: frozenset[str] | None = None
    """The lists that a listen stream wants to hear of; None for all."""

    async def notify(self, method: str, **params: object) -> None:
        if method in LISTENABLE and self.kinds is not None and LISTENABLE[method] not in self.kinds:
            return
        if "uri" in params and params["uri"] not in self.uris:
            return
        meta = {} if self.subscription is None else {"_meta": {SUBSCRIPTION: self.subscription}}
        await self.send({"jsonrpc": "2.0", "method": method, "params": {**params, **meta}})


class Server:
    """All that is the same over stdio and HTTP, in both eras."""

    def __init__(self, era: Era, journal: Path) -> None:
        self.era = era
        self.channels: set[Channel] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._journal = os.open(journal, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
        self._grown = f"grown-{os.getpid()}-0"
        self._answers: dict[str, asyncio.Future[Json]] = {}
        self._running: dict[object, asyncio.Task[None]] = {}
        self.note("pid", str(os.getpid()))

    def note(self, kind: str, text: str) -> None:
        os.write(self._journal, f"{kind} {text}\n".encode())

    def take(self, message: Json, send: Send, channel: Channel | None, connection: object = None) -> asyncio.Task[None]:
        """Handles one message in a task of its own; a request's answer goes to `send`, last."""
        task = asyncio.get_running_loop().create_task(self._take(message, send, channel, connection))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _take(self, message: Json, send: Send, channel: Channel | None, connection: object) -> None:
        match message:
            case {"method": "notifications/cancelled", "params": {"requestId": id}}:
                if (running := self._running.get((connection, id))) is not None:
                    running.cancel()
            case {"method": method, "id": id}:
                key = (connection, id)
                self._running[key] = asyncio.current_task()  # type: ignore[assignment]  # within a task
                try:
                    result = await self._result(method, message.get("params") or {}, id, send, channel)
                    await send({"jsonrpc": "2.0", "id": id, "result": result})
                except Unknown as error:
                    refusal = {"code": METHOD_NOT_FOUND, "message": str(error)}
                    await send({"jsonrpc": "2.0", "id": id, "error": refusal})
                finally:
                    self._running.pop(key, None)
            case {"id": id, "result": result}:
                self._settle(id, result)
            case {"id": id, "error": error}:
                self._settle(id, {"refused": error["message"]})

    def _settle(self, id: str, answer: Json) -> None:
        if id in self._answers and not self._answers[id].done():
            self._answers[id].set_result(answer)

    async def _result(self, method: str, params: Json, id: object, send: Send, channel: Channel | None) -> Json:
        result: Json
        match method:
            case "initialize" if self.era is Era.HANDSHAKE:
                result = {
                    "protocolVersion": LATEST_HANDSHAKE,
                    "capabilities": self._capabilities(),
                    "serverInfo": {"name": "chaos", "version": "1"},
                }
            case "server/discover" if self.era is Era.STATELESS:
                result = {"supportedVersions": [LATEST], "capabilities": self._capabilities(), "ttlMs": 0}
            case "ping" | "logging/setLevel":
                result = {}
            case "tools/list":
                schema = {"type": "object", "properties": {"marker": {"type": "string"}}}
                result = {"tools": [{"name": name, "inputSchema": schema} for name in (*TOOLS, self._grown)]}
            case "resources/list":
                result = {"resources": [{"uri": PAGE, "name": "page"}]}
            case "resources/templates/list":
                result = {"resourceTemplates": [{"uriTemplate": "chaos:///marked/{marker}", "name": "marked"}]}
            case "prompts/list":
                result = {"prompts": []}
            case "resources/read":
                marker = params["uri"].rpartition("/")[2]
                self.note("read", marker)
                result = {"contents": [{"uri": params["uri"], "text": marker}]}
            case "resources/subscribe" | "resources/unsubscribe":
                if channel is not None:
                    (channel.uris.add if method.endswith("/subscribe") else channel.uris.discard)(params["uri"])
                result = {}
            case "tools/call":
                result = await self._call(params, send)
            case _:
                raise Unknown(f"no method {method}")
        return {"resultType": "complete", **result} if self.era is Era.STATELESS else result

    def _capabilities(self) -> Json:
        return {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}

    async def _call(self, params: Json, send: Send) -> Json:
        arguments, meta = params.get("arguments") or {}, params.get("_meta") or {}
        name, marker = params["name"], arguments["marker"]
        responses = params.get("inputResponses")
        if responses is None:
            self.note("call", marker)
        match name:
            case "slow":
                for step in range(1, arguments["steps"] + 1):
                    if "progressToken" in meta:
                        report = {"progressToken": meta["progressToken"], "progress": step, "message": marker}
                        await send({"jsonrpc": "2.0", "method": "notifications/progress", "params": report})
                    await asyncio.sleep(TICK)
            case "log":
                line = {"level": "error", "data": {"marker": marker}}
                await send({"jsonrpc": "2.0", "method": "notifications/message", "params": line})
            case "large":
                return _said(marker + "x" * arguments["size"] + marker)
            case "ask" if self.era is Era.STATELESS:
                if responses is None:
                    question = {"method": "elicitation/create", "params": _question(marker)}
                    return {"resultType": "input_required", "inputRequests": {"q": question}, "requestState": marker}
                if params["requestState"] != marker:
                    return _said(f"{marker} has the state of {params['requestState']}")
                return _said(f"{marker} answered {_answer(responses['q'])}")
            case "ask":
                return _said(f"{marker} answered {_answer(await self._ask(marker, send))}")
            case "touch":
                for channel in list(self.channels):
                    await channel.notify("notifications/resources/updated", uri=PAGE)
            case "grow":
                self._grown = f"grown-{os.getpid()}-{uuid.uuid4().hex[:8]}"
                for channel in list(self.channels):
                    await channel.notify("notifications/tools/list_changed")
                return _said(f"{marker} {self._grown}")
        return _said(marker)

    async def _ask(self, marker: str, send: Send) -> Json:
        id = f"q-{uuid.uuid4().hex}"
        self._answers[id] = asyncio.get_running_loop().create_future()
        try:
            await send({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": _question(marker)})
            return await self._answers[id]
        finally:
            self._answers.pop(id, None)


class Unknown(Exception):
    """A method that there is not."""


def _said(text: str) -> Json:
    return {"content": [{"type": "text", "text": text}]}


def _question(marker: str) -> Json:
    return {"message": marker, "requestedSchema": QUESTION}


def _answer(result: Json) -> str:
    if "refused" in result:
        return f"refused {result['refused']}"
    return str((result.get("content") or {}).get("marker", result.get("action")))


async def over_stdio(server: Server) -> None:
    reader = asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def send(message: Json) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    pipe = Channel(send)
    if server.era is Era.HANDSHAKE:
        server.channels.add(pipe)
    listening: dict[object, Channel] = {}
    while line := await reader.readline():
        message = json.loads(line)
        if message.get("method") == "subscriptions/listen":
            channel = listening[message["id"]] = listen_channel(message, send)
            server.channels.add(channel)
            await acknowledge(channel, message)
        elif message.get("method") == "notifications/cancelled" and message["params"]["requestId"] in listening:
            server.channels.discard(listening.pop(message["params"]["requestId"]))
        else:
            server.take(message, send, pipe)


def listen_channel(message: Json, send: Send) -> Channel:
    wanted = message["params"]["notifications"]
    kinds = frozenset(name for name, value in wanted.items() if value is True)
    return Channel(send, message["id"], set(wanted.get("resourceSubscriptions", ())), kinds)


async def acknowledge(channel: Channel, message: Json) -> None:
    wanted = message["params"]["notifications"]
    await channel.notify("notifications/subscriptions/acknowledged", notifications=wanted)


def main(era: str, journal: str) -> None:
    async def serve() -> None:
        await over_stdio(Server(Era(era), Path(journal)))

    asyncio.run(serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
