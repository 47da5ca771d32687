"""Links of the stateless era, over HTTP and over a child's stdio: what goes out, comes back, and goes wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import anyio
import pytest
from aiohttp import web
from msgspec.structs import replace

from mcproxy.call.calls import Call, Complete, InputRequired
from mcproxy.call.clients import ListChanged, ResourceUpdated
from mcproxy.call.errors import Party, Reason
from mcproxy.call.upstreams import Connected, Disconnected, PushChannel, UnannouncedLists, UpstreamChanged
from mcproxy.protocol.eras import LATEST, META_CLIENT_CAPABILITIES, Era
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings import UpstreamSettings
from tests.fakes.servers.stateless import EVERYTHING, FakeStateless, Listener, complete, notification
from tests.fakes.servers.web import FakeSse, FakeStreamable, Message, error, event, events, serving
from tests.timeouts import GUARD
from tests.upstream.support import (
    QUICK,
    UNREADABLE,
    FakeClient,
    Running,
    decoded,
    failure,
    request,
    running,
    tool,
    value,
)

pytestmark = pytest.mark.anyio

CHILD = Path(__file__).parents[2] / "fakes" / "servers" / "modern_child.py"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"


def at(url: str, **settings: Any) -> UpstreamSettings:
    return UpstreamSettings(
        **{"name": "web", "prefix": "web", "type": "http", "url": url, "timeouts": QUICK, **settings}
    )


def child(*manners: str, probe: float = GUARD, **settings: Any) -> UpstreamSettings:
    timeouts = QUICK.model_copy(update={"probe": probe})
    return UpstreamSettings(
        name="kid", prefix="kid", command=sys.executable, args=(str(CHILD), *manners), timeouts=timeouts, **settings
    )


@asynccontextmanager
async def linked(server: FakeStateless, **settings: Any) -> AsyncIterator[Running]:
    async with serving(server, notices_hang_up=True) as url, running(at(url, **settings)) as it:
        yield it


def identity(it: Running) -> tuple[Era, str]:
    connected = it.events.of(Connected)[-1]
    return connected.identity.era, connected.identity.version


def logging(call: Call, level: str) -> Call:
    return replace(call, caller=replace(call.caller, log_level=level))


def modern(call: Call) -> Call:
    return replace(call, caller=replace(call.caller, version=LATEST))


def changes(it: Running) -> list[Any]:
    return [event.change for event in it.events.of(UpstreamChanged)]


MODERN = (Era.STATELESS, "2026-07-28")
OLDER = (Era.HANDSHAKE, "2025-11-25")


# Which era.


async def test_a_stateless_server_is_found_by_one_question_over_http() -> None:
    server = FakeStateless()
    async with linked(server) as it:
        assert value(await it.upstream(tool("echo", {"n": 1}))) == {"n": 1}
        assert identity(it) == MODERN
        [connected] = it.events.of(Connected)
        assert connected.identity.instructions == "be kind"
        assert decoded(connected.identity.info) == {"name": "fake", "version": "1"}
    assert [message["method"] for message in server.heard] == ["server/discover", "tools/call"]


async def test_r48_a_call_is_one_request() -> None:
    server = FakeStateless()
    async with linked(server) as it:
        for _ in range(3):
            await it.upstream(tool("echo"))
    assert len(server.heard) == 4


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
async def test_r76_an_answer_with_the_requests_id_is_the_answer_whatever_the_status(status: int) -> None:
    server = FakeStateless()

    async def refuse(_: FakeStateless, __: web.Request, asked: Message) -> web.StreamResponse:
        return web.json_response(error(-32001, "the session is not initialized" * 1000, asked["id"]), status=status)

    async def succeed(_: FakeStateless, __: web.Request, asked: Message) -> web.StreamResponse:
        return web.json_response(complete(asked, structuredContent={"value": 1}), status=status)

    server.tools |= {"refuse": refuse, "succeed": succeed}
    async with linked(server) as it:
        assert failure(await it.upstream(tool("refuse"))).error.code == -32001
        assert value(await it.upstream(tool("succeed"))) == 1
    assert [message["method"] for message in server.heard] == ["server/discover", "tools/call", "tools/call"]


@pytest.mark.parametrize("kind", [*UNREADABLE, "no id"])
async def test_an_answer_that_is_nearly_json_fails_its_call_at_once_naming_why(kind: str) -> None:
    server = FakeStateless()

    async def broken(_: FakeStateless, __: web.Request, asked: Message) -> web.StreamResponse:
        answer = UNREADABLE.get(kind, b'{"result":0x1}').replace(b"ID", str(asked["id"]).encode())
        return web.Response(body=answer, content_type="application/json")

    async def marked(_: FakeStateless, __: web.Request, asked: Message) -> web.StreamResponse:
        answer = web.json_response(complete(asked, structuredContent={"value": 1}))
        assert isinstance(answer.body, bytes)
        return web.Response(body=b"\xef\xbb\xbf" + answer.body, content_type="application/json")

    server.tools |= {"broken": broken, "marked": marked}
    async with linked(server) as it:
        assert "the answer is malformed" in failure(await it.upstream(tool("broken"))).error.message
        assert value(await it.upstream(tool("marked"))) == 1


async def test_r58_a_server_of_old_is_reached_by_its_handshake_over_http_and_not_asked_again() -> None:
    server = FakeStreamable()
    async with serving(server) as url, running(at(url)) as it:
        assert value(await it.upstream(tool("echo", 1))) == 1
        assert identity(it) == OLDER
        server.sessions.clear()
        assert value(await it.upstream(tool("echo", 2))) == 2
    assert (server.count("server/discover"), server.count("initialize")) == (1, 2)


async def test_r58_a_server_of_http_and_sse_is_still_found() -> None:
    server = FakeSse()
    async with serving(server) as url, running(at(f"{url}/sse", type="auto")) as it:
        assert value(await it.upstream(tool("echo", 1))) == 1
        assert identity(it) == (Era.HANDSHAKE, "2024-11-05")
        server.over.set()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, None),
        (404, None),
        (405, None),
        (400, error(-32600, "Bad Request: Missing session ID", "server-error")),
        (400, error(-32000, "Bad Request: Server not initialized")),
        (406, error(-32000, "Not Acceptable")),
        (200, error(-32601, "Method not found", "discover")),
        (404, error(-32601, "Method not found", "discover")),
        (200, error(-32602, "Invalid request parameters", "discover")),
        (
            400,
            error(-32022, "Unsupported", "discover")
            | {"error": {"code": -32022, "message": "no", "data": {"supported": ["2025-11-25"]}}},
        ),
        (202, None),
    ],
)
async def test_what_is_no_modern_error_is_of_a_server_of_old(status: int, body: Message | None) -> None:
    old = FakeStreamable()

    async def handle(http: web.Request) -> web.StreamResponse:
        if http.method == "POST" and (await http.json())["method"] == "server/discover":
            return web.json_response(body, status=status) if body is not None else web.Response(status=status)
        return await old(http)

    async with serving(handle) as url, running(at(url)) as it:
        assert value(await it.upstream(tool("echo", 1))) == 1
        assert identity(it) == OLDER


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, None),
        (400, error(-32020, "Header mismatch")),
        (400, error(-32021, "Missing capability")),
    ],
)
async def test_what_says_nothing_of_the_era_or_is_modern_is_no_reason_to_shake_hands(status: int, body: Any) -> None:
    heard: list[str] = []

    async def refuse(http: web.Request) -> web.StreamResponse:
        heard.append((await http.json())["method"])
        return web.json_response(body, status=status)

    async with serving(refuse) as url, running(at(url), delays=lambda _: 3600) as it:
        assert failure(await it.upstream(tool("echo"))).reason is Reason.UNAVAILABLE
    assert set(heard) == {"server/discover"}


@pytest.mark.parametrize("body", [{"message": "Missing handler for server/discover"}, error(-32603, "no")])
async def test_a_server_that_fails_at_the_question_is_tried_by_handshake_and_asked_again_next_time(body: Any) -> None:
    old = FakeStreamable()
    asked = 0

    async def handle(http: web.Request) -> web.StreamResponse:
        nonlocal asked
        if http.method == "POST" and (await http.json())["method"] == "server/discover":
            asked += 1
            return web.json_response(body, status=500)
        return await old(http)

    async with serving(handle) as url, running(at(url)) as it:
        assert value(await it.upstream(tool("echo", 1))) == 1
        assert identity(it) == OLDER
        old.sessions.clear()
        assert value(await it.upstream(tool("echo", 2))) == 2
    assert asked == 2


async def test_a_server_that_does_not_answer_the_question_is_tried_by_handshake_and_asked_again_next_time() -> None:
    old = FakeStreamable()
    asked = 0

    async def handle(http: web.Request) -> web.StreamResponse:
        nonlocal asked
        if http.method == "POST" and (await http.json())["method"] == "server/discover":
            asked += 1
            await anyio.Event().wait()
        return await old(http)

    timeouts = QUICK.model_copy(update={"probe": 0.05})
    async with serving(handle, notices_hang_up=True) as url, running(at(url, timeouts=timeouts)) as it:
        connections = 0
        with anyio.fail_after(GUARD):
            # A busy machine may give a question up before the server has seen it.
            while asked < 2:
                assert value(await it.upstream(tool("echo", 1))) == 1
                old.sessions.clear()
                connections += 1
    assert asked <= connections


async def test_era_legacy_never_asks_and_era_modern_never_falls_back() -> None:
    server = FakeStreamable()
    async with serving(server) as url:
        async with running(at(url, era="legacy")) as it:
            assert value(await it.upstream(tool("echo", 1))) == 1
        assert server.count("server/discover") == 0
        async with running(at(url, era="modern"), delays=lambda _: 3600) as it:
            assert "does not speak the stateless era" in failure(await it.upstream(tool("echo"))).error.message
        assert server.count("initialize") == 1


@pytest.mark.parametrize("words", ["Server not initialized", "Unsupported protocol version: 2026-07-28", None])
async def test_a_server_that_turns_out_to_be_another_is_found_out_anew(words: str | None) -> None:
    modern, old = FakeStateless(), FakeStreamable()
    replaced = False

    def refusal(message: Message) -> web.Response:
        if words is not None:
            return web.json_response(error(-32000, f"Bad Request: {words}"), status=400)
        unsupported = error(-32022, "Unsupported protocol version", message["id"])
        unsupported["error"]["data"] = {"supported": ["2025-11-25"]}
        return web.json_response(unsupported, status=400)

    async def handle(http: web.Request) -> web.StreamResponse:
        if not replaced:
            return await modern(http)
        return refusal(await http.json()) if "Mcp-Method" in http.headers else await old(http)

    async with serving(handle) as url, running(at(url)) as it:
        assert value(await it.upstream(tool("echo", 1))) == 1
        replaced = True
        assert value(await it.upstream(tool("echo", 2))) == 2
        assert identity(it) == OLDER


async def test_a_stateless_child_is_found_by_one_question() -> None:
    async with running(child()) as it:
        assert value(await it.upstream(tool("echo", 1))) == 1
        assert identity(it) == MODERN


@pytest.mark.parametrize(("manner", "probe"), [("legacy", GUARD), ("mute", 0.1)])
async def test_r58_a_child_of_old_is_spoken_to_by_handshake_over_the_same_pipe(manner: str, probe: float) -> None:
    async with running(child(manner, probe=probe)) as it:
        heard = value(await it.upstream(tool("heard")))
        assert identity(it) == OLDER
    methods = [message["method"] for message in heard]
    assert methods == ["server/discover", "initialize", "notifications/initialized", "tools/call"]


@pytest.mark.parametrize(("manners", "probe"), [(["brittle"], GUARD), (["brittle", "slow"], 0.1)])
async def test_a_child_that_dies_of_the_question_is_started_again_and_not_asked(
    manners: list[str], probe: float
) -> None:
    async with running(child(*manners, probe=probe), delays=lambda _: 3600) as it:
        heard = value(await it.upstream(tool("heard")))
        assert identity(it) == OLDER
        assert it.events.of(Disconnected) == []
    assert heard[0]["method"] == "initialize"


async def test_a_modern_child_that_is_slow_to_answer_is_still_found() -> None:
    async with running(child("slow", probe=0.1)) as it:
        assert value(await it.upstream(tool("echo", 1))) == 1
        assert identity(it) == MODERN


@pytest.mark.parametrize("manner", ["legacy", "brittle"])
async def test_era_modern_never_falls_back_on_a_child(manner: str) -> None:
    async with running(child(manner, era="modern"), delays=lambda _: 3600) as it:
        assert failure(await it.upstream(tool("echo"))).reason is Reason.UNAVAILABLE


# What goes out.


async def test_an_envelope_declares_what_this_caller_declared_and_no_more() -> None:
    server = FakeStateless()
    async with linked(server) as it:
        await it.upstream(logging(tool("echo", capabilities={"sampling": {}}), "debug"))
        await it.upstream(tool("echo"))
    first, second = (message["params"]["_meta"] for message in server.sent("tools/call"))
    assert first[CAPABILITIES] == {"sampling": {}}
    assert first[LOG_LEVEL] == "debug"
    assert first["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert first["io.modelcontextprotocol/clientInfo"]["name"] == "mcproxy"
    assert second[CAPABILITIES] == {}
    assert LOG_LEVEL not in second
    assert first["progressToken"] != second["progressToken"]


async def test_r40_headers_are_made_afresh_for_the_upstreams_own_names() -> None:
    server = FakeStateless(tools={"größe": FakeStateless().tools["echo"]})
    async with linked(server, headers={"Authorization": "Bearer abc", "Mcp-Method": "forged"}) as it:
        await it.upstream(tool("größe"))
        await it.upstream(request("tools/list"))
    call, listing = server.headers[1:]
    assert call["MCP-Protocol-Version"] == "2026-07-28"
    assert (call["Mcp-Method"], call["Mcp-Name"]) == ("tools/call", "=?base64?Z3LDtsOfZQ==?=")
    assert call["Authorization"] == "Bearer abc"
    assert call["Accept"] == "application/json, text/event-stream"
    assert listing["Mcp-Method"] == "tools/list"
    assert "Mcp-Name" not in listing
    assert not any(name.lower() in ("mcp-session-id", "cookie") for headers in server.headers for name in headers)


def annotated(header: str) -> Message:
    return {
        "name": "query",
        "inputSchema": {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": header}}},
    }


def wants_header(header: str) -> Any:
    async def query(_: FakeStateless, http: web.Request, message: Message) -> web.StreamResponse:
        if f"Mcp-Param-{header}" not in http.headers:
            return web.json_response(error(-32020, "Header mismatch", message["id"]), status=400)
        return web.json_response(complete(message, structuredContent={"value": http.headers[f"Mcp-Param-{header}"]}))

    return query


async def test_a_tools_parameters_are_mirrored_once_its_list_has_passed() -> None:
    server = FakeStateless(tools={"query": wants_header("Region")}, pages=[[annotated("Region")]])
    async with linked(server) as it:
        await it.upstream(request("tools/list"))
        assert value(await it.upstream(tool("query", {"region": "eu"}))) == "eu"
    assert len(server.sent("tools/list")) == 1


async def test_r4_a_header_mismatch_fetches_the_list_and_repeats_the_call_once() -> None:
    server = FakeStateless(tools={"query": wants_header("Place")}, pages=[[], [annotated("Place")], []])
    async with linked(server) as it:
        assert value(await it.upstream(tool("query", {"region": "eu"}))) == "eu"
    methods = [message["method"] for message in server.heard]
    assert methods == ["server/discover", "tools/call", "tools/list", "tools/list", "tools/call"]


async def test_a_header_mismatch_that_the_list_does_not_explain_is_passed_on() -> None:
    server = FakeStateless(tools={"query": wants_header("Region")}, pages=[[annotated("Place")]])
    async with linked(server) as it:
        await it.upstream(request("tools/list"))
        assert failure(await it.upstream(tool("query", {"region": "eu"}))).error.code == -32020
    assert len(server.sent("tools/call")) == 1


async def test_a_tool_with_an_invalid_annotation_is_not_listed_over_http() -> None:
    server = FakeStateless(pages=[[annotated("no header"), {"name": "good", "inputSchema": {}}]])
    async with linked(server) as it:
        outcome = await it.upstream(request("tools/list"))
    assert isinstance(outcome, Complete)
    assert [entry["name"] for entry in decoded(raw(outcome.result))["tools"]] == ["good"]


@pytest.mark.parametrize("method", ["ping", "logging/setLevel", "notifications/roots/list_changed"])
async def test_what_this_era_has_no_request_for_is_answered_here(method: str) -> None:
    server = FakeStateless()
    async with linked(server) as it:
        assert isinstance(await it.upstream(request(method, level="debug")), Complete)
    assert [message["method"] for message in server.heard] == ["server/discover"]


# What comes back.


async def test_what_precedes_the_answer_on_its_stream_goes_to_the_caller() -> None:
    async def work(_: FakeStateless, http: web.Request, message: Message) -> web.StreamResponse:
        token = message["params"]["_meta"]["progressToken"]
        return await events(
            http,
            b": a comment\n\n",
            event(notification("notifications/progress", progressToken=token, progress=1)),
            event(notification("notifications/message", level="info", data="a line")),
            event(complete(message, structuredContent={"value": "done"})),
        )

    client = FakeClient()
    async with linked(FakeStateless(tools={"work": work})) as it:
        assert value(await it.upstream(logging(tool("work", client=client), "info"))) == "done"
    assert client.told == [
        ("notifications/progress", {"progress": 1}),
        ("notifications/message", {"level": "info", "data": "a line"}),
    ]


async def test_a_server_that_asks_on_a_stream_is_not_answered_and_counted() -> None:
    async def asks(_: FakeStateless, http: web.Request, message: Message) -> web.StreamResponse:
        question = {"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {}}
        malformed = {**question, "id": message["id"], "params": []}
        other = {"jsonrpc": "2.0", "id": 77, "result": {}}
        done = complete(message, structuredContent={"value": 1})
        return await events(http, event(question), event(malformed), event(other), b"data: [1]\n\n", event(done))

    server = FakeStateless(tools={"asks": asks})
    async with linked(server) as it:
        assert value(await it.upstream(tool("asks"))) == 1
        assert it.count("mcproxy_upstream_junk_total", upstream="web") == 4
    assert len(server.heard) == 2


def replying(**result: Any) -> Any:
    async def reply(_: FakeStateless, __: web.Request, message: Message) -> web.StreamResponse:
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})

    return reply


async def test_a_request_for_input_is_an_outcome() -> None:
    form = {"form": {"method": "elicitation/create", "params": {"message": "who?"}}}
    reply = replying(resultType="input_required", inputRequests=form, requestState="sealed")
    async with linked(FakeStateless(tools={"ask": reply})) as it:
        outcome = await it.upstream(tool("ask", capabilities={"elicitation": {}}))
    assert isinstance(outcome, InputRequired)
    assert outcome.state == "sealed"
    assert outcome.requests["form"].method == "elicitation/create"


async def test_an_unknown_type_of_result_passes_where_both_declare_an_extension() -> None:
    server = FakeStateless(tools={"t": replying(resultType="odd")})
    server.capabilities = {"extensions": {"org.example/odd": {}}}
    declaring = tool("t", capabilities={"extensions": {"org.example/odd": {}}})
    async with linked(server) as it:
        assert isinstance(await it.upstream(modern(declaring)), Complete)
        failed = failure(await it.upstream(modern(tool("t"))))
        of_old = failure(await it.upstream(declaring))
    assert "unknown type ('odd')" in failed.error.message
    assert failed.party is Party.UPSTREAM
    assert of_old.error == failed.error


async def test_tasks_of_another_revision_are_not_declared() -> None:
    server = FakeStateless()
    extensions: dict[str, object] = {"extensions": {"io.modelcontextprotocol/tasks": {}, "org.example/odd": {}}}
    declaring = tool("echo", capabilities={"tasks": {}, **extensions})
    async with linked(server) as it:
        await it.upstream(declaring)
        await it.upstream(modern(declaring))
    old, new = (message["params"]["_meta"][META_CLIENT_CAPABILITIES] for message in server.heard[-2:])
    assert old == {"extensions": {"org.example/odd": {}}}
    assert new == extensions


async def test_the_listen_stream_declares_tasks_where_the_server_does() -> None:
    tasks: dict[str, object] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    server = FakeStateless(capabilities={**EVERYTHING, **tasks})
    async with linked(server) as it:
        await it.upstream(tool("echo"))
        [listening] = server.sent("subscriptions/listen")
    assert listening["params"]["_meta"][META_CLIENT_CAPABILITIES] == tasks


@pytest.mark.parametrize("status", [200, 400, 404])
async def test_an_upstreams_own_error_passes_untouched(status: int) -> None:
    async def fails(_: FakeStateless, __: web.Request, message: Message) -> web.StreamResponse:
        own = {"code": -32602, "message": "no such session", "data": {"kept": 1}}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": own}, status=status)

    async with linked(FakeStateless(tools={"fails": fails})) as it:
        failed = failure(await it.upstream(tool("fails")))
        assert it.events.of(Disconnected) == []
    assert (failed.error.code, failed.error.message) == (-32602, "no such session")
    assert decoded(failed.error.data or b"") == {"kept": 1}


async def test_r44_a_secret_in_an_upstreams_own_error_is_not_shown() -> None:
    async def fails(_: FakeStateless, request: web.Request, message: Message) -> web.StreamResponse:
        key = request.headers["Key"]
        own = {"code": -32602, "message": f"no {key}", "data": {"sent": key, "kept": 1}}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": own})

    async with linked(FakeStateless(tools={"fails": fails}), headers={"Key": "sentinel-123456"}) as it:
        failed = failure(await it.upstream(tool("fails")))
    assert failed.error.message == "no [redacted]"
    assert decoded(failed.error.data or b"") == {"sent": "[redacted]", "kept": 1}


# What goes wrong.


async def test_r5_a_stream_that_ends_without_the_answer_fails_the_call_at_once() -> None:
    async def ends(_: FakeStateless, http: web.Request, __: Message) -> web.StreamResponse:
        return await events(http, b"id: 1\nretry: 10\ndata: \n\n")

    server = FakeStateless(tools={"ends": ends})
    async with linked(server) as it:
        with anyio.fail_after(GUARD):
            failed = failure(await it.upstream(tool("ends")))
        assert "unknown" in failed.error.message
        assert it.events.of(Disconnected) == []
    assert len(server.sent("tools/call")) == 1


async def test_r25_cancelling_a_call_closes_its_response_and_says_nothing() -> None:
    hung_up = anyio.Event()
    begun = anyio.Event()

    async def hangs(_: FakeStateless, http: web.Request, __: Message) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        begun.set()
        try:
            await anyio.Event().wait()
        finally:
            hung_up.set()
        return response

    server = FakeStateless(tools={"hangs": hangs})
    async with linked(server) as it:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.upstream, tool("hangs"))
            await begun.wait()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(GUARD):
            await hung_up.wait()
    assert len(server.heard) == 2


async def test_r46_a_silent_call_times_out_with_upstream_method_and_time() -> None:
    async def hangs(_: FakeStateless, __: web.Request, ___: Message) -> NoReturn:
        await anyio.Event().wait()
        raise AssertionError("nobody sets it")

    server = FakeStateless(tools={"hangs": hangs})
    async with linked(server, timeouts=QUICK.model_copy(update={"idle": 0.1})) as it:
        failed = failure(await it.upstream(tool("hangs")))
    assert failed.reason is Reason.TIMEOUT
    assert re.search(r"'web', tools/call: no answer after \d+\.\d s \(idle\)", failed.error.message)


@pytest.mark.parametrize(
    ("status", "text"), [(401, "credentials"), (500, "HTTP 500"), (413, "HTTP 413"), (200, "text")]
)
async def test_what_is_no_mcp_fails_the_call_alone(status: int, text: str) -> None:
    async def odd(_: FakeStateless, __: web.Request, ___: Message) -> web.StreamResponse:
        return web.Response(status=status, text="sorry")

    async with linked(FakeStateless(tools={"odd": odd, "echo": FakeStateless().tools["echo"]})) as it:
        failed = failure(await it.upstream(tool("odd")))
        assert text in failed.error.message
        assert failed.reason is Reason.UNAVAILABLE
        assert value(await it.upstream(tool("echo", 1))) == 1
        assert it.events.of(Disconnected) == []


async def test_r16_an_answer_over_the_limit_fails_the_call_alone() -> None:
    async with linked(FakeStateless(), max_message_bytes=2000) as it:
        assert "max_message_bytes" in failure(await it.upstream(tool("echo", "x" * 5000))).error.message
        assert value(await it.upstream(tool("echo", 1))) == 1


async def test_a_malformed_answer_fails_its_call() -> None:
    async def odd(_: FakeStateless, __: web.Request, message: Message) -> web.StreamResponse:
        return web.json_response({"jsonrpc": "2.0", "id": message["id"]})

    async with linked(FakeStateless(tools={"odd": odd})) as it:
        assert "malformed" in failure(await it.upstream(tool("odd"))).error.message


async def test_a_server_that_is_gone_ends_the_link() -> None:
    async with AsyncExitStack() as site:
        url = await site.enter_async_context(serving(FakeStateless()))
        async with running(at(url), delays=lambda _: 3600) as it:
            assert value(await it.upstream(tool("echo", 1))) == 1
            await site.aclose()
            failed = failure(await it.upstream(request("tools/list")))
            assert failed.reason is Reason.UNAVAILABLE
            assert "no connection" in failed.error.message
            await it.events.until(lambda: len(it.events.of(Disconnected)) == 1)


async def test_r47_a_slow_call_delays_no_other() -> None:
    go_on = anyio.Event()

    async def slow(_: FakeStateless, __: web.Request, message: Message) -> web.StreamResponse:
        await go_on.wait()
        return web.json_response(complete(message, structuredContent={"value": "slow"}))

    server = FakeStateless(tools={"slow": slow, "echo": FakeStateless().tools["echo"]})
    outcomes: list[Any] = []

    async def call_slow(it: Running) -> None:
        outcomes.append(value(await it.upstream(tool("slow"))))

    async with linked(server) as it, anyio.create_task_group() as tasks:
        tasks.start_soon(call_slow, it)
        await server.until(lambda: len(server.sent("tools/call")) == 1)
        assert value(await it.upstream(tool("echo", 1))) == 1
        assert outcomes == []
        go_on.set()
    assert outcomes == ["slow"]


# Changes.


async def test_changes_are_heard_on_one_stream_from_the_beginning() -> None:
    server = FakeStateless(capabilities=EVERYTHING)
    async with linked(server) as it:
        await it.upstream(tool("echo"))
        [listener] = server.listeners
        assert listener.filter == dict.fromkeys(
            ("promptsListChanged", "resourcesListChanged", "toolsListChanged"), True
        )
        await listener.tell("notifications/tools/list_changed")
        await it.events.until(lambda: len(changes(it)) == 1)
        assert changes(it) == [ListChanged(Kind.TOOLS)]


async def test_r22_a_subscription_is_a_stream_and_its_end_closes_the_old_one() -> None:
    server = FakeStateless(capabilities=EVERYTHING)
    async with linked(server) as it:
        assert isinstance(await it.upstream(request("resources/subscribe", uri="a:1")), Complete)
        first, second = server.listeners
        assert second.filter["resourceSubscriptions"] == ["a:1"]
        with anyio.fail_after(GUARD):
            await first.gone.wait()
        await second.tell("notifications/resources/updated", uri="a:1")
        await it.events.until(lambda: len(changes(it)) == 1)
        assert changes(it) == [ResourceUpdated("a:1")]
        assert changes(it)[0].params.keys() == {"uri"}
    assert not server.sent("resources/subscribe")


@pytest.mark.parametrize("graceful", [True, False])
async def test_r21_a_stream_that_ends_is_opened_again_and_all_counts_as_changed(graceful: bool) -> None:
    server = FakeStateless(capabilities=EVERYTHING)
    async with linked(server) as it:
        await it.upstream(request("resources/subscribe", uri="a:1"))
        listener = server.listeners[-1]
        if graceful:
            await listener.end()
        else:
            listener.over.set()
        await server.until(lambda: len(server.listeners) == 3)
        await it.events.until(lambda: PushChannel.RESTORED in changes(it))
        assert it.events.of(Disconnected) == []
    assert changes(it) == [PushChannel.LOST, PushChannel.RESTORED]


async def test_r21_a_stream_that_ends_before_the_next_is_acknowledged_has_lost_the_channel() -> None:
    server, may_acknowledge = FakeStateless(capabilities=EVERYTHING), anyio.Event()
    async with linked(server) as it:
        await server.until(lambda: len(server.listeners) == 1)

        async def acknowledge(listener: Listener) -> None:
            await may_acknowledge.wait()
            await listener.acknowledge()

        server.acknowledges = acknowledge
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.upstream, request("resources/subscribe", uri="a:1"))
            await server.until(lambda: len(server.sent("subscriptions/listen")) == 2)
            server.listeners[0].over.set()
            await it.events.until(lambda: changes(it) == [PushChannel.LOST])
            may_acknowledge.set()
        await it.events.until(lambda: changes(it) == [PushChannel.LOST, PushChannel.RESTORED])
    assert len(server.listeners) == 2


async def test_a_subscriber_is_told_that_a_server_cannot_be_listened_to() -> None:
    refusal = web.json_response(error(-32601, "Method not found"), status=404)
    server = FakeStateless(capabilities=EVERYTHING, refuses_to_listen=refusal)
    async with linked(server) as it:
        assert value(await it.upstream(tool("echo", 1))) == 1
        assert failure(await it.upstream(request("resources/subscribe", uri="a:1"))).error.code == -32601
    assert len(server.sent("subscriptions/listen")) == 1


@pytest.mark.parametrize("status", [400, 404, 405, 500])
async def test_r75_a_server_that_refuses_to_be_listened_to_has_lost_its_push_channel(status: int) -> None:
    server = FakeStateless(capabilities=EVERYTHING, refuses_to_listen=web.Response(status=status))
    async with linked(server) as it:
        await it.events.until(lambda: bool(changes(it)))
        assert [type(event) for event in it.events.all] == [Connected, UpstreamChanged]
        assert changes(it) == [PushChannel.LOST]


async def test_r75_lists_whose_flags_are_not_honoured_are_published_as_unannounced() -> None:
    server = FakeStateless(capabilities=EVERYTHING)
    server.acknowledges = lambda listener: listener.acknowledge(toolsListChanged=False)
    async with linked(server) as it:
        await it.events.until(lambda: bool(changes(it)))
        assert changes(it) == [UnannouncedLists(frozenset({Kind.TOOLS}))]
        server.acknowledges = lambda listener: listener.acknowledge()
        server.listeners[0].over.set()
        await it.events.until(lambda: PushChannel.RESTORED in changes(it))
    assert changes(it)[1:] == [PushChannel.LOST, PushChannel.RESTORED]


async def test_r20_a_resource_that_is_left_out_is_refused() -> None:
    server = FakeStateless(capabilities=EVERYTHING)
    server.acknowledges = lambda listener: listener.acknowledge(resourceSubscriptions=[])
    async with linked(server) as it:
        failed = failure(await it.upstream(request("resources/subscribe", uri="a:1")))
    assert "does not report updates of a:1" in failed.error.message


# Over a pipe.


async def test_a_childs_progress_and_log_lines_go_to_their_caller() -> None:
    client = FakeClient()
    async with running(child()) as it:
        await it.upstream(tool("progress", client=client))
        await it.upstream(logging(tool("log", client=client), "info"))
        await it.upstream(tool("log", client=client))
        assert it.count("mcproxy_upstream_unattributed_total", upstream="kid", method="notifications/message") == 1
    assert client.told == [
        ("notifications/progress", {"progress": 1}),
        ("notifications/message", {"level": "info", "data": "a line"}),
    ]


async def test_r26_a_childs_log_line_that_may_be_of_two_callers_goes_to_neither() -> None:
    one, other = FakeClient(), FakeClient()
    async with running(child()) as it, anyio.create_task_group() as tasks:
        await it.upstream(tool("echo"))
        tasks.start_soon(it.upstream, logging(tool("hang", client=one), "info"))
        await anyio.wait_all_tasks_blocked()
        await it.upstream(logging(tool("log", client=other), "info"))
        tasks.cancel_scope.cancel()
    assert one.told == other.told == []


async def test_r25_cancelling_a_childs_call_is_said_by_its_id() -> None:
    async with running(child()) as it:
        await it.upstream(tool("echo"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.upstream, tool("hang"))
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        heard = value(await it.upstream(tool("heard")))
    [hanging] = [message["id"] for message in heard if message.get("params", {}).get("name") == "hang"]
    [cancelled] = [message["params"] for message in heard if message["method"] == "notifications/cancelled"]
    assert cancelled["requestId"] == hanging


async def test_a_child_that_asks_is_not_answered() -> None:
    async with running(child()) as it:
        assert value(await it.upstream(tool("ask"))) == "asked"
        heard = value(await it.upstream(tool("heard")))
        assert it.count("mcproxy_upstream_junk_total", upstream="kid") == 1
    assert not [message for message in heard if message.get("id") == "mine"]


async def test_r16_what_is_no_message_while_a_child_is_probed_is_counted() -> None:
    async with running(child("chatty")) as it:
        assert value(await it.upstream(tool("echo", 1))) == 1
        assert it.count("mcproxy_upstream_junk_total", upstream="kid") == 1


async def test_a_childs_changes_are_told_apart_by_subscription() -> None:
    async with running(child()) as it:
        await it.upstream(request("resources/subscribe", uri="a:1"))
        await it.upstream(tool("announce", {"method": "notifications/resources/updated", "params": {"uri": "a:1"}}))
        assert changes(it) == [ResourceUpdated("a:1")]
        heard = value(await it.upstream(tool("heard")))
    first, second = (message["id"] for message in heard if message["method"] == "subscriptions/listen")
    [cancelled] = [message["params"] for message in heard if message["method"] == "notifications/cancelled"]
    assert cancelled["requestId"] == first != second


async def test_a_child_that_tears_its_stream_down_is_asked_for_another() -> None:
    async with running(child()) as it:
        await it.upstream(tool("stop listening"))
        await it.events.until(lambda: PushChannel.RESTORED in changes(it))
        heard = value(await it.upstream(tool("heard")))
    methods = [message["method"] for message in heard]
    assert methods.count("subscriptions/listen") == 2
    assert "notifications/cancelled" not in methods


async def test_r13_a_child_that_dies_fails_its_calls_and_is_started_again() -> None:
    async with running(child()) as it:
        pid = value(await it.upstream(tool("pid")))
        async with anyio.create_task_group() as tasks:
            failures: list[Any] = []

            async def hang() -> None:
                failures.append(failure(await it.upstream(tool("hang"))))

            tasks.start_soon(hang)
            await anyio.wait_all_tasks_blocked()
            await anyio.run_process(["kill", "-9", str(pid)])
        assert "SIGKILL" in failures[0].error.message
        assert value(await it.upstream(tool("pid"))) != pid
