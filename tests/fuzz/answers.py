"""Calls of upstreams that answer with statuses, framings and JSON that are nearly right: see `tests.fuzz.hostile`.

Each call must be answered soon, with its own marker or an error that names the upstream; a plain call after it must
succeed; nothing may break in the log, and no other request may wait for long.
"""

from __future__ import annotations

import json
import os
import random
import re
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio

from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE, Era
from mcproxy.protocol.headers import standard_headers
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import METHODS
from mcproxy.protocol.sse import EventDecoder
from tests.fuzz import hostile
from tests.fuzz.http import AT_ONCE, BROKEN, SETTLED, SPARE, memory, mutated, open_files
from tests.system.running import PYTHON, ROOT, Gateway, Json, configuration, serving, write
from tests.timeouts import GUARD

ANSWERED: Final = GUARD
"""Seconds for an answer; the longest time-out of the configuration is 3."""
RECOVERED: Final = GUARD
"""Seconds for an upstream that was taken for broken to be used again."""
STALLED: Final = 5.0
"""Seconds of processor time that the gateway may use before it answers a request that needs no upstream."""
PLAIN: Final[Json] = {"status": 200, "fields": ["Content-Type: application/json"], "framing": "length", "cut": 1}
_META: Final = "io.modelcontextprotocol"
_MAX: Final = 1 << 26
_MARKER: Final = re.compile(r"marker-\d+-\d+-")
_read: Final = partial(json.loads, parse_int=str)
"""The gateway passes on integers of any length; Python's own would be refused here (4300 digits)."""

STATUSES: Final = (
    *(100, 101, 102, 103, 200, 200, 200, 201, 202, 203, 204, 205, 206, 226, 299, 300, 301, 302, 303, 304, 307, 308),
    *(400, 401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 413, 415, 416, 417, 418, 421, 422, 425, 426, 428, 429),
    *(431, 451, 499, 500, 501, 502, 503, 504, 505, 511, 520, 599, 600, 999),
)
FIELDS: Final = (
    *("Content-Type: application/json", "Content-Type: application/json", "Content-Type: text/event-stream"),
    *("Content-Type: text/html", "Content-Type: application/json; charset=utf-16", "Content-Type:", "Retry-After: x"),
    *("Retry-After: -1", "Retry-After: 99999999999999999999", "Location: /elsewhere", "Location: http://192.0.2.1/"),
    *("Mcp-Session-Id: another", "Content-Encoding: gzip", "Content-Length: 3", "Connection: close", "Connection: x"),
    *("WWW-Authenticate: Bearer resource_metadata=x", "WWW-Authenticate: Basic", "Transfer-Encoding: gzip"),
    *("Mcp-Protocol-Version: 1999-01-01", "Set-Cookie: a=b", "X: " + "y" * 9000, "Trailer: X", "Upgrade: h2c"),
)
FRAMINGS: Final = ("length", "length", "events", "chunks", "end")
BODIES: Final = (
    b'{"jsonrpc":"2.0","id":ID,"result":RESULT}',
    b'{"result":RESULT,"jsonrpc":"2.0","id":ID}',
    b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"MARKER"}}',
    b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"MARKER","data":{"a":[1]}},"result":RESULT}',
    b'{"jsonrpc":"2.0","id":ID,"error":{"code":"x","message":1}}',
    b'{"jsonrpc":"2.0","id":ID,"error":null}',
    b'{"jsonrpc":"2.0","id":ID,"error":{"code":1e999999,"message":""}}',
    b'{"jsonrpc":"2.0","id":ID,"error":{"code":99999999999999999999999,"message":""}}',
    b'{"jsonrpc":"2.0","id":ID,"result":null}',
    b'{"jsonrpc":"2.0","id":ID,"result":[RESULT]}',
    b'{"jsonrpc":"2.0","id":ID,"id":1,"result":RESULT}',
    b'{"jsonrpc":"2.0","id":ID}',
    b'{"jsonrpc":"1.0","id":ID,"result":RESULT}',
    b'{"id":ID,"result":RESULT}',
    b'{"jsonrpc":"2.0","id":null,"result":RESULT}',
    b'{"jsonrpc":"2.0","id":IDID,"result":RESULT}',
    b'{"jsonrpc":"2.0","id":ID.0,"result":RESULT}',
    b'{"jsonrpc":"2.0","id":IDe0,"result":RESULT}',
    b'{"jsonrpc":"2.0","id":"ID","result":RESULT}',
    b'{"jsonrpc":"2.0","id":[ID],"result":RESULT}',
    b'[{"jsonrpc":"2.0","id":ID,"result":RESULT}]',
    b'[{"jsonrpc":"2.0","id":ID,"result":RESULT},{"jsonrpc":"2.0","id":ID,"result":RESULT}]',
    b'{"jsonrpc":"2.0","id":ID,"result":RESULT}\n{"jsonrpc":"2.0","id":ID,"result":RESULT}',
    b'{"jsonrpc":"2.0","id":ID,"result":RESULT}{"jsonrpc":"2.0","id":ID,"result":RESULT}',
    b'{"jsonrpc":"2.0","id":ID,"method":"sampling/createMessage","params":{}}',
    b'{"jsonrpc":"2.0","id":ID,"method":"roots/list"}\n{"jsonrpc":"2.0","id":ID,"result":RESULT}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":ID}}',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":ID,"progress":"x"}}',
    b'{"jsonrpc":"2.0","id":ID,"result":{"resultType":"input_required"}}',
    b'{"jsonrpc":"2.0","id":ID,"result":{"resultType":"input_required","inputRequests":{"a":7},"requestState":7}}',
    b'{"jsonrpc":"2.0","id":ID,"result":{"resultType":7,"content":[]}}',
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":[7,null,{}],"structuredContent":[1e999999],"isError":"x"}}',
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"resource_link","uri":7}]}}',
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"resource","resource":{"uri":"a:%ff"}}]}}',
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"n":NUMBER}}',
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"n":"TEXT"}}',
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"n":NESTED}}',
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],MEMBERS}}',
    b'{"jsonrpc":"2.0",MEMBERS,"id":ID,"result":RESULT}',
    b"<html><body>MARKER</body></html>",
    b"",
    b"null",
    b"\0" * 100,
    b"9" * 5000,
)
PARTS: Final = {
    b"NUMBER": (b"NaN", b"-Infinity", b"1e999999", b"-0", b"0" * 50, b"9" * 5000, b"0x1", b"1.", b".1", b"1e", b"+1"),
    b"TEXT": (b"\\ud800", b"\\udc00", b"\xff", b"\xed\xa0\x80", b"\x01", b"\\x", b"\\u12", b"\t", b"\xe2\x80\xa8"),
    b"NESTED": (b"[" * 3000 + b"]" * 3000, b'{"a":' * 500, b"[" * 100_000, b"[" + b"[]," * 30_000 + b"[]]"),
    b"MEMBERS": (
        b",".join(b'"a%d":1' % index for index in range(2000)),
        b",".join([b'"a":1'] * 2000),
        b'"__proto__":{},"":1,"\\u0000":2',
    ),
}
"""What stands for each word of `BODIES`."""


@dataclass
class Report:
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    files: tuple[int, int] = (0, 0)
    memory: tuple[int, int] = (0, 0)
    slowest: float = 0.0
    """Seconds that the slowest request took which needs no upstream."""

    def __str__(self) -> str:
        lines = [
            ", ".join(f"{name}: {count}" for name, count in sorted(self.counts.items())),
            f"open files {self.files[0]} -> {self.files[1]}, memory {self.memory[0]} -> {self.memory[1]} MiB, "
            f"slowest plain request {self.slowest:.2f} s",
            *(f"FOUND {finding}" for finding in self.findings[:100]),
        ]
        return "\n".join(lines)


def told(chance: random.Random, marker: str) -> Json:
    """The arguments of a call: what its upstream is to answer. Its own marker is in every result."""
    result = json.dumps({"content": [{"type": "text", "text": marker}], "resultType": "complete"}).encode()
    body = chance.choice(BODIES).replace(b"RESULT", result).replace(b"MARKER", marker.encode())
    for word, parts in PARTS.items():
        if word in body:
            body = body.replace(word, chance.choice(parts))
    if chance.random() < 0.3:
        body = mutated(chance, [body])[: 1 << 18]
    return {
        "body": body.hex(),
        "status": chance.choice(STATUSES) if chance.random() < 0.6 else 200,
        "fields": chance.sample(FIELDS, chance.choice((0, 1, 1, 2))),
        "framing": chance.choice(FRAMINGS),
        "cut": 1 if chance.random() < 0.85 else chance.random(),
    }


def plainly(marker: str) -> Json:
    result = json.dumps({"content": [{"type": "text", "text": marker}], "resultType": "complete"}).encode()
    return {**PLAIN, "body": (b'{"jsonrpc":"2.0","id":ID,"result":%b}' % result).hex()}


class Caller:
    """A client of one era that calls one upstream after another."""

    def __init__(self, http: aiohttp.ClientSession, url: str, era: Era) -> None:
        self._http = http
        self._url = url
        self._era = era
        self._session: str | None = None

    async def call(self, upstream: str, arguments: Json, id: str) -> Json:
        """The answer. Raises ValueError where there is none, or a status that is none of ours."""
        params: Json = {"name": f"{upstream}__say", "arguments": arguments}
        if self._era is Era.STATELESS:
            info = {"name": "fuzzer", "version": "1"}
            params["_meta"] = {
                f"{_META}/protocolVersion": LATEST,
                f"{_META}/clientCapabilities": {},
                f"{_META}/clientInfo": info,
            }
            headers = dict(
                standard_headers(LATEST, METHODS["tools/call"], {name: raw(value) for name, value in params.items()})
            )
        else:
            headers = {"Mcp-Session-Id": await self._opened(), "MCP-Protocol-Version": LATEST_HANDSHAKE}
        return await self._posted({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}, headers)

    async def _opened(self) -> str:
        if self._session is None:
            info = {"name": "fuzzer", "version": "1"}
            params = {"protocolVersion": LATEST_HANDSHAKE, "capabilities": {}, "clientInfo": info}
            message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
            async with self._http.post(self._url, json=message) as response:
                self._session = response.headers["Mcp-Session-Id"]
        return self._session

    async def _posted(self, message: Json, headers: dict[str, str]) -> Json:
        async with self._http.post(self._url, json=message, headers=headers) as response:
            if response.content_type == "application/json":
                answer: Json = _read(await response.read())
                if response.status not in (200, 400, 404, 503) or "jsonrpc" not in answer:
                    raise ValueError(f"{response.status}: {answer}")
                return answer
            decoder = EventDecoder(_MAX)
            async for chunk in response.content.iter_any():
                for event in decoder.feed(chunk):
                    said: Json = _read(event.data) if event.data else {"method": ""}
                    if "method" not in said:
                        return said
        raise ValueError("the stream ended without an answer")


class Fuzzer:
    def __init__(self, running: Gateway, upstreams: list[str], seed: int, report: Report) -> None:
        self._running = running
        self._upstreams = upstreams
        self._seed = seed
        self._report = report
        self._number = 0

    async def run(self, seconds: float, at_least: int) -> None:
        began = time.monotonic()

        async def attack(number: int) -> None:
            chance = random.Random(f"{self._seed} {number}")
            async with aiohttp.ClientSession(headers={"Accept": "application/json, text/event-stream"}) as http:
                caller = Caller(http, f"{self._running.url}/mcp", list(Era)[number % 2])
                while time.monotonic() - began < seconds or self._report.counts["calls"] < at_least:
                    await self._attack(caller, chance, number)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._pulse)
            async with anyio.create_task_group() as attackers:
                for number in range(AT_ONCE):
                    attackers.start_soon(attack, number)
            tasks.cancel_scope.cancel()

    async def all_recovered(self) -> None:
        """Returns once each upstream answers callers of each era, so that all is open that stays open for them."""
        async with aiohttp.ClientSession(headers={"Accept": "application/json, text/event-stream"}) as http:
            for era in Era:
                for upstream in self._upstreams:
                    await self._recovered(Caller(http, f"{self._running.url}/mcp", era), upstream)

    async def _pulse(self) -> None:
        """Asks again and again for what needs no upstream."""
        async with aiohttp.ClientSession() as http:
            while True:
                began, used = time.monotonic(), _processor_seconds(self._running)
                async with http.get(f"{self._running.url}/healthz") as response:
                    await response.read()
                took = time.monotonic() - began
                self._report.slowest = max(self._report.slowest, took)
                if (used := _processor_seconds(self._running) - used) > STALLED:
                    self._report.findings.append(f"a plain request took {took:.1f} s, {used:.1f} s of a processor")
                await anyio.sleep(0.1)

    async def _attack(self, caller: Caller, chance: random.Random, number: int) -> None:
        self._number += 1
        marker = f"marker-{number}-{self._number}-"
        upstream = chance.choice(self._upstreams)
        arguments = told(chance, marker)
        answer = await self._answer(caller, upstream, arguments, marker)
        if answer is not None:
            self._judge(upstream, marker, arguments, answer)
        if chance.random() < 0.2:
            await self._recovered(caller, upstream)

    async def _answer(self, caller: Caller, upstream: str, arguments: Json, marker: str) -> Json | None:
        self._report.counts["calls"] += 1
        answer: Json | None = None
        try:
            with anyio.move_on_after(ANSWERED) as scope:
                answer = await caller.call(upstream, arguments, marker)
        except (aiohttp.ClientError, ValueError) as error:
            self._found(f"no answer of {upstream}: {error!r}", arguments)
            return None
        if scope.cancelled_caught:
            self._found(f"{upstream} is stuck", arguments)
        return answer

    def _judge(self, upstream: str, marker: str, arguments: Json, answer: Json) -> None:
        if answer.get("id") != marker:
            self._found(f"the answer of {upstream} has another id: {answer}", arguments)
        # A body that was changed at random may have another marker in it by itself.
        own = bytes.fromhex(arguments["body"]).decode("utf-8", "replace")
        others = {other for other in _MARKER.findall(json.dumps(answer)) if other not in own} - {marker}
        if others:
            self._found(f"{marker} at {upstream} got what is of {others}", arguments)
        if "result" in answer:
            self._report.counts["results"] += 1
            return
        self._report.counts["errors"] += 1
        message = str(answer.get("error", {}).get("message"))
        if upstream not in message and message not in own:
            self._found(f"an error of {upstream} does not name it: {answer}", arguments)

    async def _recovered(self, caller: Caller, upstream: str) -> None:
        """A plain call succeeds, once the upstream is connected again."""
        deadline = time.monotonic() + RECOVERED
        while time.monotonic() < deadline:
            self._number += 1
            marker = f"marker-x-{self._number}-"
            answer = await self._answer(caller, upstream, plainly(marker), marker)
            if answer is None:
                return
            if "result" in answer and marker in json.dumps(answer):
                self._report.counts["plain calls"] += 1
                return
            self._report.counts["plain calls that failed"] += 1
            await anyio.sleep(0.1)
        self._found(f"{upstream} does not come back: {answer}", {})

    def _found(self, sentence: str, arguments: Json) -> None:
        self._report.counts["findings"] += 1
        body = bytes.fromhex(arguments.get("body", ""))
        told_so = {name: value for name, value in arguments.items() if name != "body"}
        self._report.findings.append(f"{sentence[:1000]}; told {told_so} {body[:300]!r}")


def settings(urls: dict[str, tuple[str, Era]]) -> Json:
    timeouts = {"idle": 3, "total": 3, "connect": 5, "list": 3, "probe": 2, "shutdown": 1}
    eras = {Era.HANDSHAKE: "legacy", Era.STATELESS: "modern"}
    upstreams: dict[str, Any] = {
        name: {"url": url, "era": eras[era], "timeouts": timeouts} for name, (url, era) in urls.items()
    }
    for era in Era:
        command = {"command": PYTHON, "args": ["-m", "tests.fuzz.hostile", era.value], "cwd": str(ROOT)}
        upstreams[f"pipe-{eras[era]}"] = {**command, "era": eras[era], "timeouts": timeouts}
    for upstream in upstreams.values():
        upstream["max_message_bytes"] = "8MiB"
    return configuration(upstreams, connection_idle=600)


async def main(minutes: float, seed: int, at_least: int = 0) -> Report:
    report = Report()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            urls = {
                f"web-{era.value}": (await stack.enter_async_context(hostile.serving(era, random.Random(seed))), era)
                for era in Era
            }
            whole = settings(urls)
            async with serving(folder, write(folder, whole)) as running:
                upstreams = sorted(whole["mcpServers"])
                fuzzer = Fuzzer(running, upstreams, seed, report)
                calm = await _warm(running, upstreams, seed)
                await fuzzer.run(minutes * 60, at_least)
                with anyio.move_on_after(SETTLED):
                    while open_files(running) > calm[0] + SPARE:  # noqa: ASYNC110  # another process's files
                        await anyio.sleep(0.1)
                report.files = (calm[0], open_files(running))
                report.memory = (calm[1], memory(running))
                if report.files[1] > report.files[0] + SPARE:
                    report.findings.append(f"open files {report.files}")
                broken = [entry for entry in running.log.entries if BROKEN.search(json.dumps(entry))]
                report.findings += [f"in the log: {json.dumps(entry)[:2000]}" for entry in broken]
    return report


async def _warm(running: Gateway, upstreams: list[str], seed: int) -> tuple[int, int]:
    """Open files and memory after a first second of it."""
    first = Report()
    fuzzer = Fuzzer(running, upstreams, seed + 1, first)
    await fuzzer.run(3, 0)
    await fuzzer.all_recovered()
    await anyio.sleep(1)
    return open_files(running), memory(running)


def _processor_seconds(running: Gateway) -> float:
    """What the gateway's own process has used."""
    _, _, rest = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")
    user, system = rest.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
