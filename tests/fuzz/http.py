"""Requests that are nearly right, or not at all, on real connections to a gateway that runs as its users run it.

Nothing may answer 500, break in the log, or leave anything behind. `python -m tests.fuzz.http --minutes 10`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio

from mcproxy.access.keys import key_digest, make
from tests.attacks.wire import INITIALIZE, answer, connected, post, stateless
from tests.system.running import ODD_SERVER, Gateway, Json, configuration, serving, write

KEY: Final = make()
PATIENCE: Final = 0.5
"""Seconds for an answer."""
AFTERWARDS: Final = 0.02
"""Seconds for more of it; what goes on is hung up on."""
SETTLED: Final = 60.0
"""Seconds for what is idle to be let go of."""
SPARE: Final = 4
"""Open files that a gateway may have more of than before: what it opens but once."""
AT_ONCE: Final = 8
BEFORE: Final = 0.2
"""The part of the time after which growth counts: until then caches fill."""

REPEATED: Final = 0.3
"""The part of requests that come behind the one that they were made from."""

_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
BROKEN: Final = re.compile(r"Traceback|crashed|never retrieved|unhandled", re.IGNORECASE)

Chance = random.Random


@dataclass
class Report:
    sent: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    files: tuple[int, int] = (0, 0)
    """Open before, and after."""
    memory: tuple[int, int] = (0, 0)
    """Resident MiB, likewise."""

    def __str__(self) -> str:
        statuses = ", ".join(f"{status}: {count}" for status, count in sorted(self.statuses.items()))
        lines = [
            f"{self.sent} requests; {statuses}",
            f"open files {self.files[0]} -> {self.files[1]}, memory {self.memory[0]} -> {self.memory[1]} MiB",
            *(f"FOUND {finding}" for finding in self.findings),
        ]
        return "\n".join(lines)


def settings(folder: Path) -> Json:
    """All of access control, and little patience."""
    command, *arguments = ODD_SERVER
    limits = {"max_sessions": 200, "session_idle": 2, "max_body_bytes": 1 << 20}
    whole = configuration(
        {"odd": {"command": command, "args": arguments}}, connection_idle=2, read_timeout=2, limits=limits
    )
    whole["access"] = {
        "authentication": {"keys": {"ann": [{"sha256": key_digest(KEY).hex()}]}},
        "policy": {"roles": {"some": {"allow": [{"tools": ["echo", "links"]}]}}, "principals": {"ann": ["some"]}},
        "limits": {"rules": {"all": {"rate": 10_000, "per": ["principal", "tool"]}}},
        "audit": {"file": str(folder / "audit.log")},
    }
    return whole


def seeds() -> list[bytes]:
    """Requests of each era and method, with a key and without, and some that break a rule already."""
    bearer = b"Authorization: Bearer " + KEY.encode()
    listening = b"Host: localhost\r\nAccept: text/event-stream\r\n" + bearer
    ping = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
    return [
        post(INITIALIZE, bearer),
        post(INITIALIZE),
        post(ping, bearer, b"Mcp-Session-Id: x"),
        post(b"[" + b",".join([ping] * 20) + b"]", bearer, b"Mcp-Session-Id: x"),
        post(gzip.compress(INITIALIZE), bearer, b"Content-Encoding: gzip"),
        post(b"%x\r\n%s\r\n0\r\n\r\n" % (len(ping), ping), bearer, b"Transfer-Encoding: chunked", length=False),
        post(INITIALIZE, bearer, b"Transfer-Encoding: chunked"),
        stateless("tools/list", key=KEY),
        stateless("tools/call", key=KEY, name="odd__echo", arguments={"text": "a"}),
        stateless("tools/call", key=KEY, name="odd__nil", arguments={}),
        stateless("resources/read", key=KEY, uri="odd+odd:memo"),
        stateless("subscriptions/listen", key=KEY, notifications={"toolsListChanged": True}),
        stateless("server/discover", key=KEY, _meta={}),
        b"GET /mcp HTTP/1.1\r\n" + listening + b"\r\nMcp-Session-Id: x\r\nLast-Event-ID: 1\r\n\r\n",
        b"GET /sse HTTP/1.1\r\n" + listening + b"\r\n\r\n",
        b"DELETE /servers/odd/mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: x\r\n" + bearer + b"\r\n\r\n",
        b"GET /.well-known/oauth-protected-resource/mcp HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"OPTIONS /mcp HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
        b"Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: mcp-param-x\r\n\r\n",
    ]


def in_session(id: bytes) -> list[bytes]:
    """Requests of a handshake session that there is."""
    bearer = b"Authorization: Bearer " + KEY.encode() + b"\r\nMcp-Session-Id: " + id
    messages: list[Json] = [
        {"id": 1, "method": "ping"},
        {"id": "2", "method": "tools/list", "params": {"cursor": "x"}},
        {"id": 3, "method": "tools/call", "params": {"name": "odd__echo", "arguments": {"text": "a"}}},
        {"id": 4, "method": "resources/subscribe", "params": {"uri": "odd+odd:memo"}},
        {"method": "notifications/cancelled", "params": {"requestId": 3}},
        {"id": 5, "result": {}},
    ]
    listening = b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n" + bearer
    return [
        *(post(json.dumps({"jsonrpc": "2.0", **message}).encode(), bearer) for message in messages),
        listening + b"\r\n\r\n",
    ]


PIECES: Final = (
    *(b"\r\n", b"\n", b"\r", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b" ", b":", b'"', b"{", b"[" * 500, b"%ff%00"),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n", b"Content-Encoding: deflate\r\n", b"Expect: x\r\n"),
    *(b"Host: evil.example\r\n", b"Origin: null\r\n", b"Connection: Upgrade\r\nUpgrade: websocket\r\n"),
    *(b"-1", b"9" * 400, b"1e999", b"null", b"\\ud800", b"\\u0000", b"\xe2\x80\xa8", b"A" * 9000, b"id", b"_meta"),
)


def mutated(chance: Chance, samples: Sequence[bytes]) -> bytes:
    data = chance.choice(samples)
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        data = chance.choice(_CHANGES)(chance, data)
    return _measured(data) if chance.random() < 0.5 else data


def _insert(chance: Chance, data: bytes) -> bytes:
    at = chance.randint(0, len(data))
    return data[:at] + chance.choice(PIECES) + data[at:]


def _remove(chance: Chance, data: bytes) -> bytes:
    start = chance.randint(0, len(data))
    return data[:start] + data[start + chance.choice((1, 2, 10, 200)) :]


def _flip(chance: Chance, data: bytes) -> bytes:
    at = chance.randrange(max(1, len(data)))
    return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]


def _repeat(chance: Chance, data: bytes) -> bytes:
    start = chance.randint(0, len(data))
    end = min(len(data), start + chance.choice((5, 40, 300)))
    return data[:end] + data[start:end] * chance.choice((1, 3, 30)) + data[end:]


def _double(chance: Chance, data: bytes) -> bytes:
    return data * chance.choice((2, 20)) if len(data) < 10_000 else data


def _rewrite(chance: Chance, data: bytes) -> bytes:
    """Another line in the place of one of the head."""
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    lines[chance.randrange(len(lines))] = chance.choice(PIECES).strip(b"\r\n")
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


_CHANGES: Final[tuple[Callable[[Chance, bytes], bytes], ...]] = (_insert, _remove, _flip, _repeat, _double, _rewrite)


def _measured(data: bytes) -> bytes:
    """With the length that its body has, so that it is read at all."""
    head, _, body = data.partition(b"\r\n\r\n")
    return re.sub(rb"Content-Length: \d+", b"Content-Length: %d" % len(body), head) + b"\r\n\r\n" + body


async def opened(url: str) -> bytes:
    """The id of a session."""
    response = await answer(url, post(INITIALIZE, b"Authorization: Bearer " + KEY.encode()))
    found = re.search(rb"Mcp-Session-Id: (\S+)", response)
    assert found is not None, response
    return found[1]


async def exchange(url: str, *said: bytes) -> list[int]:
    """The statuses of all answers that come before it hangs up. Each is said after an answer to what is before it."""
    received = b""
    async with await connected(url) as stream:
        with anyio.move_on_after(PATIENCE) as scope:
            try:
                *first, last = said
                for data in first:
                    await stream.send(data)
                    received += await stream.receive()
                await stream.send(last)
                while len(received) < 1 << 20:
                    received += await stream.receive()
                    scope.deadline = min(scope.deadline, anyio.current_time() + AFTERWARDS)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass
    return [int(status) for status in _STATUS.findall(received)]


async def fuzz(running: Gateway, seconds: float, chance: Chance, at_least: int) -> Report:
    """Attacks for so long, and so often at least. Reports what was found; what was sent last reproduces it."""
    report = Report()
    await running.log.says(lambda entry: entry.get("event") == "upstream connected")
    samples = [*seeds(), *in_session(await opened(running.url))]
    calm = open_files(running)
    began = time.monotonic()

    async def attack() -> None:
        while time.monotonic() - began < seconds or report.sent < at_least:
            sample = chance.choice(samples)
            data = mutated(chance, [sample])
            # Behind a request that is like it, a head may be taken for one that is known.
            before = [sample] if chance.random() < REPEATED else []
            statuses = await exchange(running.url, *before, data)
            report.sent += 1
            report.statuses.update(statuses)
            if 500 in statuses:
                report.findings.append(f"a 500 for {data[:2000]!r}")

    async def measure() -> None:
        await anyio.sleep(seconds * BEFORE)
        report.memory = (memory(running), 0)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(measure)
        for _ in range(AT_ONCE):
            tasks.start_soon(attack)
    with anyio.move_on_after(SETTLED):
        while open_files(running) > calm + SPARE:  # noqa: ASYNC110  # another process's: nobody tells when they change
            await anyio.sleep(0.1)
    report.files = (calm, open_files(running))
    report.memory = (report.memory[0], memory(running))
    report.findings += [f"in the log: {entry}" for entry in running.log.entries if BROKEN.search(json.dumps(entry))]
    return report


def open_files(running: Gateway) -> int:
    return len(list(Path(f"/proc/{running.process.pid}/fd").iterdir()))


def memory(running: Gateway) -> int:
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) >> 10


async def main(minutes: float, seed: int, at_least: int = 0) -> Report:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # It knows nobody without a key: nothing waits for its upstream.
        async with serving(folder, write(folder, settings(folder))) as running:
            return await fuzz(running, minutes * 60, Chance(seed), at_least)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(anyio.run(main, given.minutes, given.seed))
