"""The control socket's answers."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from mcproxy.admin.actions import Actions
from mcproxy.admin.control import ExplainRequest, routes, served_at_socket
from mcproxy.call.upstreams import LinkFailure, LinkState, UpstreamStatus
from mcproxy.configuration.problems import Place, Problem, RefusedReload
from mcproxy.gateway.explaining import kind_of
from tests.admin.test_actions import FakeUpstream

pytestmark = pytest.mark.anyio


@dataclass
class FakeGateway:
    upstream: FakeUpstream = field(default_factory=FakeUpstream)

    def statuses(self) -> list[UpstreamStatus]:
        state, failure = LinkState.BACKING_OFF, LinkFailure.LOST
        lines = ("three", "four")
        return [UpstreamStatus("a/b", state, 1.0, "stdio", None, "gone", 2, lines, failure, stderr_count=4)]

    def facts(self) -> Mapping[str, object]:
        return {"pid": 7}

    def explain(self, request: ExplainRequest) -> Mapping[str, object]:
        kind_of(request.method, request.subject)
        return {"allowed": False, "steps": [request.principal, request.roles, int(bytes(request.arguments["n"]))]}


@asynccontextmanager
async def asked(
    folder: Path, gateway: FakeGateway, refused: RefusedReload | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    table = routes(gateway, Actions(lambda: {"a/b": gateway.upstream}, lambda _: None), lambda: refused)
    path = str(folder / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        async with (
            served_at_socket(listener, table),
            aiohttp.ClientSession("http://gateway", connector=aiohttp.UnixConnector(path)) as client,
        ):
            yield client


async def test_the_status_has_every_upstream_and_no_address(tmp_path: Path) -> None:
    async with asked(tmp_path, FakeGateway()) as client, client.get("/status") as response:
        found = await response.json()
    (upstream,) = found.pop("upstreams")
    assert found == {"pid": 7, "refused_reload": None}
    assert upstream["state"] == "backing_off"
    assert upstream["failure"] == "lost"
    assert upstream["error"] == "gone"
    assert "stderr" not in upstream


async def test_the_status_says_since_when_a_reload_is_refused_and_every_problem_of_it(tmp_path: Path) -> None:
    refused = RefusedReload(
        5.0, (Problem("f.yaml", "unknown key", Place(2, 3), ("proxy", "prot")), Problem("g", "gone"))
    )
    async with asked(tmp_path, FakeGateway(), refused) as client, client.get("/status") as response:
        found = await response.json()
    assert found["refused_reload"] == {
        "since": 5.0,
        "problems": [
            {"file": "f.yaml", "line": 2, "column": 3, "key": "proxy.prot", "sentence": "unknown key"},
            {"file": "g", "key": "", "sentence": "gone"},
        ],
    }


async def test_a_call_is_explained_as_the_gateway_has_it(tmp_path: Path) -> None:
    asking = {"method": "tools/call", "subject": "a__b", "principal": "ann", "roles": ["r"], "arguments": {"n": 1}}
    async with asked(tmp_path, FakeGateway()) as client:
        async with client.post("/explain", json=asking) as response:
            found = await response.json()
        for wrong in ({**asking, "method": "tools/list"}, {"subject": 1}, {**asking, "more": 1}):
            async with client.post("/explain", json=wrong) as response:
                assert (response.status, list(await response.json())) == (400, ["error"])
    assert found == {"allowed": False, "steps": ["ann", ["r"], 1]}


async def test_an_upstream_is_restarted_by_its_escaped_name(tmp_path: Path) -> None:
    gateway = FakeGateway()
    async with asked(tmp_path, gateway) as client:
        for what in ("restart", "retry"):
            async with client.post(f"/servers/a%2Fb/{what}") as response:
                assert response.status == 200
        async with client.post("/servers/none/restart") as response:
            assert response.status == 404
            assert "there are a/b" in (await response.json())["error"]
    assert gateway.upstream.done == ["restart", "retry"]


@pytest.mark.parametrize(("after", "lines"), [("0", ["three", "four"]), ("3", ["four"]), ("4", []), ("x", 2)])
async def test_stderr_is_told_from_the_line_that_was_seen_last(tmp_path: Path, after: str, lines: object) -> None:
    async with (
        asked(tmp_path, FakeGateway()) as client,
        client.get("/servers/a%2Fb/stderr", params={"after": after}) as response,
    ):
        found = await response.json()
    assert found["next"] == 4
    assert lines in (found["lines"], len(found["lines"]))


async def test_a_log_level_that_there_is_not_is_refused(tmp_path: Path) -> None:
    async with asked(tmp_path, FakeGateway()) as client, client.post("/log-level", data="loud") as response:
        assert response.status == 400
        assert "should be one of" in (await response.json())["error"]


async def test_a_log_level_of_many_bytes_is_refused(tmp_path: Path) -> None:
    async with asked(tmp_path, FakeGateway()) as client, client.post("/log-level", data="l" * 70_000) as response:
        assert response.status == 400
        assert "too large" in (await response.json())["error"]


async def test_what_the_socket_does_not_know_is_not_found(tmp_path: Path) -> None:
    async with asked(tmp_path, FakeGateway()) as client:
        for request in (client.get("/stop"), client.post("/status")):
            async with request as response:
                assert response.status == 404
                assert "the control socket has no" in (await response.json())["error"]
