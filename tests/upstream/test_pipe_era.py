"""Which era a child is found to speak, whatever it answers to the question and to the handshake."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import Message, Request, encode
from mcproxy.settings import UpstreamSettings, UpstreamTimeouts
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.context import EraHints, LinkContext
from mcproxy.upstream.link import Duplex, Receive, Rejected, Unreachable
from mcproxy.upstream.pipe_era import over_pipe
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

NEW = {"result": {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {}}}
NEWER = {"error": {"code": -32022, "message": "?", "data": {"supported": ["2099-01-01"]}}}
NO_METHOD = {"error": {"code": -32601, "message": "Method not found"}}
OLD = {"result": {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}}
ODD = {"result": {"protocolVersion": "1999-01-01", "capabilities": {}}}
SILENCE, DEATH = {"silent": True}, {"dies": True}
ECHO = {"echo": True}


@dataclass
class Child:
    """Satisfies `link.Duplex`: answers the question and the handshake as it is told to."""

    question: dict[str, Any]
    handshake: dict[str, Any]
    asked: list[str]
    heard: int = 0
    _receive: Receive | None = None
    _reads: anyio.Event = field(default_factory=anyio.Event)
    _dead: anyio.Event = field(default_factory=anyio.Event)

    async def send(self, message: Message) -> None:
        if not isinstance(message, Request):
            return
        await self._reads.wait()
        self.asked.append(message.method)
        answer = self.question if message.method == "server/discover" else self.handshake
        if answer is DEATH:
            self._dead.set()
        elif answer is ECHO:
            await self._say(encode(message))
        elif answer is not SILENCE:
            await self._say(json.dumps({"jsonrpc": "2.0", "id": message.id, **answer}).encode())

    async def _say(self, data: bytes) -> None:
        assert self._receive is not None
        taken = self._receive(data)
        if taken is not None:
            await taken

    async def read(self, receive: Receive) -> str:
        self._receive = receive
        self._reads.set()
        await self._dead.wait()
        return "the child died"


async def found(era: str, expected: Era | None, question: dict[str, Any], handshake: dict[str, Any]) -> list[str]:
    """What a child was asked, by all its starts, and what was found: an era, or what is wrong."""
    asked: list[str] = []
    probe = 0.05 if SILENCE in (question, handshake) else GUARD
    timeouts = UpstreamTimeouts(probe=probe, connect=1 if (question, handshake) == (DEATH, SILENCE) else GUARD)
    spec = UpstreamSettings.model_validate(
        {"name": "u", "prefix": "u", "command": "c", "era": era, "timeouts": timeouts.model_dump()}
    )
    context = LinkContext(spec, Metrics(), lambda _: None, hints=EraHints(expected))

    @asynccontextmanager
    async def start() -> AsyncIterator[Duplex]:
        asked.append("started")
        yield Child(question, handshake, asked)

    with anyio.fail_after(GUARD):
        async with AsyncExitStack() as stack:
            try:
                link = await over_pipe(start, context, stack)
            except (Unreachable, Rejected) as error:
                return [*asked, str(error)]
            return [*asked, link.identity.era.value]


Q, H = "server/discover", "initialize"


@pytest.mark.parametrize(
    ("era", "expected", "question", "handshake", "path"),
    [
        ("auto", None, NEW, OLD, ["started", Q, "stateless"]),
        ("auto", Era.STATELESS, NEW, OLD, ["started", Q, "stateless"]),
        ("auto", None, NO_METHOD, OLD, ["started", Q, H, "handshake"]),
        ("auto", None, SILENCE, OLD, ["started", Q, H, "handshake"]),
        ("auto", None, DEATH, OLD, ["started", Q, "started", H, "handshake"]),
        ("auto", None, NEWER, OLD, ["started", Q, "it supports protocol versions 2099-01-01"]),
        ("auto", None, NO_METHOD, NO_METHOD, ["started", Q, H, H, "initialize was refused"]),
        ("auto", None, NO_METHOD, ODD, ["started", Q, H, "it speaks protocol version 1999-01-01"]),
        ("auto", None, DEATH, DEATH, ["started", Q, "started", H, "initialize: the child died"]),
        ("auto", None, ECHO, OLD, ["started", Q, "our own message"]),
        ("auto", None, SILENCE, ECHO, ["started", Q, H, "our own message"]),
        ("auto", Era.HANDSHAKE, NEW, OLD, ["started", H, "handshake"]),
        ("auto", Era.HANDSHAKE, NEW, SILENCE, ["started", H, Q, "stateless"]),
        ("auto", Era.HANDSHAKE, NEW, NO_METHOD, ["started", H, H, Q, "stateless"]),
        ("auto", Era.HANDSHAKE, NO_METHOD, ODD, ["started", H, Q, "it speaks protocol version 1999-01-01"]),
        ("auto", Era.HANDSHAKE, SILENCE, ODD, ["started", H, Q, "it speaks protocol version 1999-01-01"]),
        ("auto", Era.HANDSHAKE, DEATH, ODD, ["started", H, Q, "it speaks protocol version 1999-01-01"]),
        ("auto", Era.HANDSHAKE, DEATH, SILENCE, ["started", H, Q, "started", H, "no answer after"]),
        ("auto", Era.HANDSHAKE, NEW, DEATH, ["started", H, "initialize: the child died"]),
        ("modern", None, NEW, OLD, ["started", Q, "stateless"]),
        ("modern", Era.HANDSHAKE, NEW, OLD, ["started", Q, "stateless"]),
        ("modern", None, NO_METHOD, OLD, ["started", Q, "it does not speak the stateless era"]),
        ("modern", None, DEATH, OLD, ["started", Q, "the child died"]),
        ("modern", None, ECHO, OLD, ["started", Q, "our own message"]),
        ("legacy", None, NEW, OLD, ["started", H, "handshake"]),
        ("legacy", Era.STATELESS, NEW, ODD, ["started", H, "it speaks protocol version 1999-01-01"]),
    ],
)
async def test_r58_a_child_is_asked_in_order_and_the_first_answer_counts(
    era: str, expected: Era | None, question: dict[str, Any], handshake: dict[str, Any], path: list[str]
) -> None:
    *asked, outcome = await found(era, expected, question, handshake)
    assert asked == path[:-1]
    assert path[-1] in outcome
