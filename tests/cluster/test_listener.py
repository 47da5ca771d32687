"""The twin of `mcproxy.cluster.listener`, and of `hop`: envelopes and responses over real connections."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field

import pytest

from mcproxy.cluster.envelope import EnvelopeFault, Envelopes, HopEnvelope
from mcproxy.cluster.hop import EnvelopeRefused, Hops, Lost, Moved, ReplicaSlow, ReplicaUnreachable
from mcproxy.cluster.listener import InternalListener
from mcproxy.http import server as http
from mcproxy.sealing import Sealer
from mcproxy.settings import Cluster, Proxy
from mcproxy.telemetry.metrics import Metrics
from tests.ports import free_port

pytestmark = pytest.mark.anyio
NOW = 1_000_000.0
SENDER, RECEIVER = Sealer(b"secret", label="a"), Sealer(b"secret", label="b")


def clock() -> float:
    return NOW


@dataclass
class Home:
    """A replica that says what it was sent."""

    address: str = ""
    served: list[tuple[str, str, bytes, str]] = field(default_factory=list)
    breaks: bool = False
    listener: InternalListener = field(init=False)

    def __post_init__(self) -> None:
        self.listener = InternalListener(Envelopes(RECEIVER, clock), self.serve, Proxy)

    async def serve(self, request: http.Request, envelope: HopEnvelope) -> http.Answered:
        body = await request.body(1)
        self.served.append((request.method, request.target, body, envelope.name))
        if self.breaks:
            request.start_stream(200, {}).reset()
            return http.Streamed()
        return http.Response(200, request.fields["x-said"].encode(), {"Content-Type": "text/plain"})


@asynccontextmanager
async def home() -> AsyncIterator[Home]:
    made = Home()
    async with made.listener.listening(Cluster(listen="127.0.0.1:0"), None) as port:
        made.address = f"http://127.0.0.1:{port}"
        yield made


@pytest.fixture
async def running() -> AsyncIterator[Home]:
    async with home() as made:
        yield made


@pytest.fixture
async def hops() -> AsyncIterator[Hops]:
    with closing(Hops(Metrics())) as made:
        yield made


def envelope(method: str = "POST", **fields: str) -> HopEnvelope:
    lines = [("x-said", "hello"), *((name.replace("_", "-"), value) for name, value in fields.items())]
    return HopEnvelope(method, "/mcp", lines, "alice", [], [], [])


def sealed(sent: HopEnvelope, body: bytes, receiver: str = "b") -> bytes:
    return Envelopes(SENDER, clock).seal(sent, receiver, body)


async def test_a_request_that_was_sent_on_is_served_as_its_sender_made_it(running: Home, hops: Hops) -> None:
    for method, body in (("POST", b"line\nline"), ("GET", b""), ("DELETE", b"")):
        response = await hops.send(running.address, sealed(envelope(method), body), body)
        assert (response.head.status, await response.read(100)) == (200, b"hello")
        assert running.served.pop() == (method, "/mcp", body, "alice")


@pytest.mark.parametrize(
    ("seal", "fault"),
    [
        (lambda: b"forged", EnvelopeFault.SECRET),
        (lambda: Envelopes(Sealer(b"another", label="a"), clock).seal(envelope(), "b", b"{}"), EnvelopeFault.SECRET),
        (lambda: sealed(envelope(), b"{}", receiver="c"), EnvelopeFault.RECEIVER),
        (lambda: sealed(envelope(), b"other"), EnvelopeFault.BODY),
        (lambda: Envelopes(SENDER, lambda: 0.0).seal(envelope(), "b", b"{}"), EnvelopeFault.CLOCK),
    ],
    ids=["forged", "another secret", "another replica", "another body", "expired"],
)
async def test_an_envelope_that_is_not_good_is_refused_for_a_reason_and_nothing_is_served(
    seal: Callable[[], bytes], fault: EnvelopeFault, running: Home, hops: Hops
) -> None:
    with pytest.raises(EnvelopeRefused, match=re.escape(fault.value)):
        await hops.send(running.address, seal(), b"{}")
    assert running.served == []


async def test_an_envelope_that_is_replayed_is_refused(running: Home, hops: Hops) -> None:
    token = sealed(envelope(), b"{}")
    await hops.send(running.address, token, b"{}")
    with pytest.raises(EnvelopeRefused, match="it was received before"):
        await hops.send(running.address, token, b"{}")
    assert len(running.served) == 1


async def test_a_replica_that_shuts_down_takes_only_what_runs_there(running: Home, hops: Hops) -> None:
    running.listener.drain()
    call, answer = b'{"id":1,"method":"tools/call"}', b'{"id":"b.1","result":{}}'
    retry = b'{"id":1,"method":"tools/call","params":{"requestState":"b.sealed"}}'
    for sent in (envelope(), envelope(mcp_session_id="b.x")):
        with pytest.raises(Moved):
            await hops.send(running.address, sealed(sent, call), call)
    with pytest.raises(Moved):
        await hops.send(running.address, sealed(envelope("GET", mcp_session_id="b.x"), b""), b"")
    assert running.served == []
    for sent, body in ((envelope(mcp_session_id="b.x"), answer), (envelope(), retry)):
        await hops.send(running.address, sealed(sent, body), body)
    assert len(running.served) == 2


async def test_it_is_told_apart_whether_a_request_may_have_been_executed(running: Home, hops: Hops) -> None:
    with pytest.raises(ReplicaUnreachable):
        await hops.send(f"http://127.0.0.1:{free_port()}", sealed(envelope(), b""), b"")
    running.breaks = True
    with pytest.raises(Lost):
        await hops.send(running.address, sealed(envelope(), b""), b"")
    assert len(running.served) == 1, "it is not sent again"


async def test_a_replica_that_accepts_no_connection_in_time_is_slow_and_was_sent_nothing(hops: Hops) -> None:
    with closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as busy, ExitStack() as stack:
        for _ in range(2):
            waiting = stack.enter_context(closing(socket.socket()))
            waiting.setblocking(False)
            waiting.connect_ex(busy.getsockname())
        with pytest.raises(ReplicaSlow):
            await hops.send(f"http://127.0.0.1:{busy.getsockname()[1]}", sealed(envelope(), b""), b"")


async def test_a_replica_says_that_it_lives_while_it_drains_and_only_to_an_envelope_for_its_own_label(
    running: Home, hops: Hops
) -> None:
    running.listener.drain()
    response = await hops.send(running.address, sealed(HopEnvelope.alive(), b""), b"")
    assert response.head.status == 204
    with pytest.raises(EnvelopeRefused):
        await hops.send(running.address, sealed(HopEnvelope.alive(), b"", receiver="dead"), b"")
    assert running.served == []
