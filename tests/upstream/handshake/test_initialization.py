"""What a server of the handshake era is told of us, once and again, and what is made of its answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from mcproxy.pending_requests import PendingRequests
from mcproxy.protocol.eras import HANDSHAKE_VERSIONS
from mcproxy.protocol.jsonrpc import ErrorResponse, Message, Request, Response, encode, parse_message, raw
from mcproxy.settings import UpstreamSettings
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.context import LinkContext, SessionOwner
from mcproxy.upstream.handshake.initialization import Initialization
from mcproxy.upstream.link import Refused
from tests.upstream.support import decoded

pytestmark = pytest.mark.anyio

INITIALIZED = {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}}
REFUSAL = {"error": {"code": -32602, "message": "Unrecognized field"}}


@dataclass
class Server:
    """Answers with each of `answers` in turn."""

    answers: list[dict[str, Any]]
    requests: PendingRequests = field(default_factory=PendingRequests)
    heard: list[Any] = field(default_factory=list)

    async def send(self, message: Message) -> None:
        assert isinstance(message, Request)
        self.heard.append(decoded(encode(message)))
        answer = parse_message(bytes(raw({"jsonrpc": "2.0", "id": message.id} | self.answers.pop(0))))
        assert isinstance(answer, (Response, ErrorResponse))
        self.requests.settle(answer)

    def initialization(self, session: SessionOwner | None = None) -> Initialization:
        spec = UpstreamSettings(name="up", prefix="up", command="fake")
        context = LinkContext(spec, Metrics(), lambda event: None, "session" if session else None, session)
        return Initialization(context, self.requests, self.send)

    def told(self) -> list[Any]:
        """The capabilities of each `initialize` that it heard."""
        return [request["params"]["capabilities"] for request in self.heard]


def declared(**capabilities: object) -> SessionOwner:
    return SessionOwner({name: raw(said) for name, said in capabilities.items()}, None)


async def test_a_server_says_its_version_and_capabilities() -> None:
    identity = await Server([INITIALIZED]).initialization().identity()
    assert (identity.version, decoded(raw(identity.capabilities))) == ("2025-06-18", {"tools": {}})


async def test_a_server_of_one_client_is_told_what_that_client_can_do() -> None:
    server = Server([INITIALIZED])
    await server.initialization(declared(sampling={"tools": {}}, elicitation={"url": {}})).identity()
    assert server.told() == [{"sampling": {"tools": {}}, "elicitation": {"url": {}}}]


async def test_tasks_that_clients_carry_out_are_not_declared_for_them() -> None:
    server = Server([INITIALIZED])
    extensions: dict[str, object] = {"io.modelcontextprotocol/tasks": {}, "org.example/odd": {}}
    await server.initialization(declared(tasks={"requests": {}}, sampling={}, extensions=extensions)).identity()
    assert server.told() == [{"sampling": {}, "extensions": {"org.example/odd": {}}}]


async def test_a_server_that_refuses_is_asked_once_more_with_another_id_and_plain_capabilities() -> None:
    server = Server([REFUSAL, INITIALIZED])
    await server.initialization().identity()
    assert server.told()[1] == {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {}}
    assert server.heard[0]["id"] != server.heard[1]["id"]


@pytest.mark.parametrize(
    ("modes", "plain"),
    [({"form": {}, "url": {}}, {"elicitation": {}}), ({"form": {}}, {"elicitation": {}}), ({"url": {}}, {})],
)
async def test_a_client_that_opens_urls_alone_is_not_plainly_said_to_fill_in_forms(modes: object, plain: Any) -> None:
    server = Server([REFUSAL, INITIALIZED])
    await server.initialization(declared(elicitation=modes)).identity()
    assert server.told()[1] == plain


async def test_plain_capabilities_that_are_refused_are_said_once_with_each_version() -> None:
    server = Server([REFUSAL] * 4)
    with pytest.raises(Refused, match=r"Unrecognized field \(-32602\)"):
        await server.initialization(declared(sampling={})).identity()


async def test_the_first_refusal_is_told() -> None:
    server = Server([REFUSAL, *[{"error": {"code": -32600, "message": "no guests"}}] * 4])
    with pytest.raises(Refused, match=r"Unrecognized field \(-32602\)"):
        await server.initialization().identity()


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({"protocolVersion": "1999-01-01", "capabilities": {}}, "it speaks protocol version 1999-01-01; known are"),
        ({"protocolVersion": "2026-07-28", "capabilities": {}}, "it speaks protocol version 2026-07-28; known are"),
    ],
)
async def test_an_answer_that_is_of_no_handshake_is_refused_with_what_is_wrong(result: Any, told: str) -> None:
    with pytest.raises(Refused, match=told):
        await Server([{"result": result}]).initialization().identity()


@pytest.mark.parametrize("result", [{"capabilities": {}}, {"protocolVersion": "2025-06-18", "capabilities": []}])
async def test_an_answer_without_a_version_or_with_a_list_of_capabilities_is_accepted(result: Any) -> None:
    identity = await Server([{"result": result}]).initialization().identity()
    assert identity.version in HANDSHAKE_VERSIONS


async def test_our_own_request_is_known_when_it_comes_back() -> None:
    server = Server([INITIALIZED])
    initialization = server.initialization()
    await initialization.identity()
    echo, other = dict(server.heard[0]), {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    for said, known in ((echo, True), (other, False)):
        request = parse_message(bytes(raw(said)))
        assert isinstance(request, Request)
        assert initialization.is_echo(request) is known
