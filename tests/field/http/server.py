"""A server of MCP over HTTP that can be odd in any way: it writes every byte itself.

Each odd server is a small subclass that overrides one step: what it answers, how it writes that down,
or how it sends it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

Json = dict[str, Any]

TOOL: Json = {
    "name": "echo",
    "description": "Says it again.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
}
RESOURCE: Json = {"uri": "field://greeting", "name": "greeting", "mimeType": "text/plain"}
GREETING = "Grüße aus dem Feld"
JSON = "application/json"
EVENTS = "text/event-stream"
PARSE, METHOD_NOT_FOUND = -32700, -32601


@dataclass
class Asked:
    """One request as it arrived."""

    method: str
    target: str
    fields: Mapping[str, str]
    """By lower-case name."""
    body: bytes

    @property
    def message(self) -> Json:
        found = json.loads(self.body) if self.body else {}
        return found if isinstance(found, dict) else {}

    @property
    def version(self) -> str | None:
        return self.fields.get("mcp-protocol-version")

    @property
    def session(self) -> str | None:
        return self.fields.get("mcp-session-id")


@dataclass
class Reply:
    """What is sent back. `body` None: no body and no length."""

    status: int = 200
    body: bytes | None = b""
    fields: list[tuple[str, str]] = field(default_factory=list)
    closes: bool = False

    def named(self, name: str) -> str | None:
        return next((value for key, value in self.fields if key.lower() == name.lower()), None)


class Server:
    """A well-behaved server of 2025-11-25 without sessions, over Streamable HTTP."""

    version: ClassVar[str] = "2025-11-25"
    versions: ClassVar[Sequence[str]] = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
    capabilities: ClassVar[Any] = {"tools": {}, "resources": {}}
    path: ClassVar[str] = "/mcp"
    host: ClassVar[str] = "127.0.0.1"

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.connections = 0
        self.port = 0
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}{self.path}"

    # What it answers.

    def result(self, method: str, params: Json) -> Json | None:
        """The result of a request; None if the method is unknown."""
        match method:
            case "initialize":
                return self.initialized(params)
            case "ping":
                return {}
            case "tools/list":
                return {"tools": [TOOL]}
            case "tools/call":
                return {"content": [{"type": "text", "text": params["arguments"]["text"]}]}
            case "resources/list":
                return {"resources": [RESOURCE]}
            case "resources/read":
                return {"contents": [{"uri": RESOURCE["uri"], "mimeType": "text/plain", "text": GREETING}]}
            case "resources/templates/list":
                return {"resourceTemplates": []}
            case _:
                return None

    def initialized(self, params: Json) -> Json:
        wanted = params.get("protocolVersion")
        version = wanted if wanted in self.versions else self.version
        return {
            "protocolVersion": version,
            "capabilities": self.capabilities,
            "serverInfo": {"name": "field", "version": "1"},
        }

    def message(self, request: Json) -> Json:
        """The JSON-RPC answer to a request."""
        result = self.result(request["method"], request.get("params") or {})
        if result is None:
            return self.error(request["id"], METHOD_NOT_FOUND, f"Method not found: {request['method']}")
        return {"jsonrpc": "2.0", "id": request["id"], "result": result}

    def error(self, id: object, code: int, text: str, data: object = None) -> Json:
        error = {"code": code, "message": text, **({} if data is None else {"data": data})}
        return {"jsonrpc": "2.0", "id": id, "error": error}

    # How it writes that down.

    def dumps(self, message: Json) -> bytes:
        return json.dumps(message, ensure_ascii=False).encode()

    def answered(self, message: Json, asked: Asked) -> Reply:
        return Reply(200, self.dumps(message), [("Content-Type", JSON)])

    def notified(self, asked: Asked) -> Reply:
        return Reply(202)

    def got(self, asked: Asked) -> Reply:
        return Reply(405)

    def deleted(self, asked: Asked) -> Reply:
        return Reply(405)

    def reply(self, asked: Asked) -> Reply:
        if asked.method == "GET":
            return self.got(asked)
        if asked.method == "DELETE":
            return self.deleted(asked)
        refusal = self.refusal(asked)
        if refusal is not None:
            return refusal
        message = asked.message
        if "id" not in message:
            return self.notified(asked)
        return self.answered(self.message(message), asked)

    def refusal(self, asked: Asked) -> Reply | None:
        """The refusal of a POST, before its message is looked at."""
        return None

    # How it sends it.

    def head(self, reply: Reply) -> bytes:
        lines = [f"HTTP/1.1 {reply.status} Whatever", *(f"{name}: {value}" for name, value in reply.fields)]
        if reply.body is not None and reply.status != 204 and reply.named("transfer-encoding") is None:
            lines.append(f"Content-Length: {len(reply.body)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def send(self, reply: Reply, asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(self.head(reply) + (reply.body or b""))
        await writer.drain()

    async def serve(self, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        """Answers one request; returns whether the connection goes on."""
        reply = self.reply(asked)
        await self.send(reply, asked, writer)
        return not reply.closes

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                asked = await read(reader)
                self.asked.append(asked)
                if not await self.serve(asked, writer):
                    break
        self._open.discard(writer)
        writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Server]:
        server = await asyncio.start_server(self.connected, self.host.strip("[]"), 0, limit=2**24)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in list(self._open):
                writer.transport.abort()

    def times(self, method: str) -> int:
        """How many requests of a method of MCP came."""
        return sum(asked.method == "POST" and asked.message.get("method") == method for asked in self.asked)


async def read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")[:-2]
    method, target, _ = first.split(" ", 2)
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(fields.get("content-length", "0")))
    return Asked(method, target, fields, body)


class Sessions(Server):
    """One with sessions: each `initialize` begins another."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: set[str] = set()

    def new_session(self) -> str:
        return f"session-{self.times('initialize')}"

    def reply(self, asked: Asked) -> Reply:
        reply = super().reply(asked)
        if asked.method == "POST" and asked.message.get("method") == "initialize" and reply.status < 300:
            id = self.new_session()
            self.sessions.add(id)
            reply.fields.append(("Mcp-Session-Id", id))
        return reply

    def refusal(self, asked: Asked) -> Reply | None:
        method = asked.message.get("method")
        if method == "initialize" or asked.session in self.sessions:
            return None
        if asked.session is None:
            return self.refusing(400, -32000, "Bad Request: Mcp-Session-Id is required")
        return self.lost(asked)

    def lost(self, asked: Asked) -> Reply:
        return self.refusing(404, -32001, "Session not found")

    def refusing(self, status: int, code: int, text: str, id: object = None) -> Reply:
        return Reply(status, self.dumps(self.error(id, code, text)), [("Content-Type", JSON)])

    def forget(self) -> None:
        self.sessions.clear()
