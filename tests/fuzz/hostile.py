"""Upstreams that answer as they are told, byte for byte: `python -m tests.fuzz.hostile ERA`, or `serving` over HTTP.

The arguments of a tool call are the answer: `body` (hexadecimal; `ID` in it is the request's id), and over HTTP
`status`, `fields` of the head, `framing` and `cut`. All else is answered as a server should, but for the channels that
the server promises: of those each is refused, ended, ignored or honoured, by chance.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE, META_SUBSCRIPTION, Era

Json = dict[str, Any]

CAPABILITIES: Final = {"tools": {"listChanged": True}, "resources": {"listChanged": True, "subscribe": True}}
TOOLS: Final = [{"name": "say", "inputSchema": {"type": "object"}}]
SESSION: Final = "a-session"
MAX_REQUEST: Final = 1 << 26


def plain_result(method: str, era: Era) -> Json | None:
    """What a server of this kind should say; None where it knows no such method."""
    results: dict[str, Json] = {
        "tools/list": {"tools": TOOLS},
        "resources/list": {"resources": []},
        "resources/templates/list": {"resourceTemplates": []},
        "prompts/list": {"prompts": []},
        "ping": {},
        "resources/subscribe": {},
        "resources/unsubscribe": {},
        "logging/setLevel": {},
    }
    if era is Era.HANDSHAKE:
        info = {"name": "hostile", "version": "1"}
        opened = {"protocolVersion": LATEST_HANDSHAKE, "capabilities": CAPABILITIES, "serverInfo": info}
        results["initialize"] = opened
        return results.get(method)
    results["server/discover"] = {"supportedVersions": [LATEST], "capabilities": CAPABILITIES}
    found = results.get(method)
    return None if found is None else {"resultType": "complete", "ttlMs": 0, **found}


def plain_answer(message: Json, era: Era) -> Json:
    result = plain_result(message["method"], era)
    if result is None:
        error = {"code": -32601, "message": f"no method {message['method']}"}
        return {"jsonrpc": "2.0", "id": message["id"], "error": error}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def told_body(message: Json) -> bytes:
    """The body that the arguments of a call ask for."""
    arguments = message["params"].get("arguments", {})
    return bytes.fromhex(arguments["body"]).replace(b"ID", json.dumps(message["id"]).encode())


def over_stdio(era: Era) -> None:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        if message["method"] == "tools/call":
            sys.stdout.buffer.write(told_body(message) + b"\n")
        elif message["method"] != "subscriptions/listen":
            sys.stdout.buffer.write(json.dumps(plain_answer(message, era)).encode() + b"\n")
        sys.stdout.buffer.flush()


@asynccontextmanager
async def serving(era: Era, chance: random.Random) -> AsyncIterator[str]:
    """The URL of such a server over HTTP."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, _Connections(era, chance).serve)
        yield f"http://127.0.0.1:{port}/mcp"
        tasks.cancel_scope.cancel()


class _Connections:
    def __init__(self, era: Era, chance: random.Random) -> None:
        self._era = era
        self._chance = chance

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        """Answers requests one by one, until one answer is to be the last."""
        with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.DelimiterNotFound):
            async with stream:
                buffered = BufferedByteReceiveStream(stream)
                while True:
                    head = await buffered.receive_until(b"\r\n\r\n", 1 << 16)
                    method = head.split(b" ", 1)[0]
                    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
                    body = await buffered.receive_exactly(int(fields.get(b"content-length", b"0")))
                    if not await self._answer(stream, method, json.loads(body) if body else {}):
                        return

    async def _answer(self, stream: anyio.abc.SocketStream, method: bytes, message: Json) -> bool:
        """Whether the connection may be used again."""
        if method == b"GET" or message.get("method") == "subscriptions/listen":
            return await self._promised(stream, message)
        if method != b"POST":
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        elif "id" not in message or "method" not in message:
            await stream.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
        elif message["method"] == "tools/call":
            return await _obey(stream, message)
        else:
            await _send_json(stream, plain_answer(message, self._era))
        return True

    async def _promised(self, stream: anyio.abc.SocketStream, message: Json) -> bool:
        """A channel for changes, as the chance has it."""
        events = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        acknowledged = {
            "jsonrpc": "2.0",
            "method": "notifications/subscriptions/acknowledged",
            "params": {"notifications": {}, "_meta": {META_SUBSCRIPTION: message.get("id")}},
        }
        said = _chunk(f"data: {json.dumps(acknowledged)}\n\n".encode()) if message else b""
        refusals = (405, 404, 400, 406, 500, 503)
        match self._chance.randrange(6):
            case 0:
                status = self._chance.choice(refusals)
                await stream.send(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)
                return True
            case 1:
                await _send_json(stream, {"jsonrpc": "2.0", "id": message.get("id"), "result": {}})
                return True
            case 2:
                await stream.send(events + b"0\r\n\r\n")
                return True
            case 3:
                await stream.send(events + said + _chunk(b"data: nonsense\n\n") + b"0\r\n\r\n")
                return True
            case 4:
                return False
            case _:
                await stream.send(events + said)
                await anyio.sleep(self._chance.uniform(0, 5))
                return False


async def _obey(stream: anyio.abc.SocketStream, message: Json) -> bool:
    arguments = message["params"].get("arguments", {})
    body = told_body(message)
    lines = [f"HTTP/1.1 {arguments['status']} X", *arguments["fields"]]
    match arguments["framing"]:
        case "length":
            lines.append(f"Content-Length: {len(body)}")
        case "events":
            body = b"data: " + body.replace(b"\n", b"\ndata: ") + b"\n\n"
            lines += ["Content-Type: text/event-stream", "Transfer-Encoding: chunked"]
            body = _chunk(body) + b"0\r\n\r\n"
        case "chunks":
            lines.append("Transfer-Encoding: chunked")
            body = b"".join(_chunk(body[at : at + 7]) for at in range(0, min(len(body), 7000), 7)) + b"0\r\n\r\n"
        case _:
            lines.append("Connection: close")
    whole = "\r\n".join([*lines, "", ""]).encode() + body
    cut = arguments["cut"]
    await stream.send(whole[: int(len(whole) * cut)] if cut < 1 else whole)
    return bool(cut == 1 and arguments["framing"] != "end")


async def _send_json(stream: anyio.abc.SocketStream, answer: Json) -> None:
    body = json.dumps(answer).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    opened = f"Mcp-Session-Id: {SESSION}\r\n" if "protocolVersion" in answer.get("result", {}) else ""
    await stream.send(f"{head}{opened}\r\n".encode() + body)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


if __name__ == "__main__":
    over_stdio(Era(sys.argv[1]))
