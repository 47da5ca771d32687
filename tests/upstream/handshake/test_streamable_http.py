"""Streamable HTTP of the handshake era against real servers on loopback."""

from __future__ import annotations

import gzip
from collections.abc import Awaitable
from typing import Any

import anyio
import pytest
from aiohttp import web

from mcproxy.call.calls import Outcome
from mcproxy.call.clients import ResourceUpdated
from mcproxy.call.errors import Reason
from mcproxy.call.upstreams import Connected, Disconnected, PushChannel, Retired, UpstreamChanged
from mcproxy.protocol.jsonrpc import ErrorObject, ErrorResponse
from mcproxy.settings import UpstreamSettings
from mcproxy.upstream.handshake.streamable_http import MAX_RESUMPTIONS, session_is_lost
from mcproxy.upstream.streamable import Position
from tests.fakes.servers.web import FakeStreamable, Message, echo, error, event, events, result, serving
from tests.timeouts import GUARD
from tests.upstream.support import QUICK, UNREADABLE, FakeClient, answering, failure, request, running, tool, value

pytestmark = pytest.mark.anyio


def at(url: str, **settings: Any) -> UpstreamSettings:
    settings = {"timeouts": QUICK, "era": "legacy", **settings}
    return UpstreamSettings(name="web", prefix="web", type="http", url=url, **settings)


async def test_a_call_is_answered_over_json() -> None:
    async with serving(FakeStreamable()) as url, running(at(url)) as it:
        assert value(await it.upstream(tool("echo", {"n": 1}))) == {"n": 1}


@pytest.mark.parametrize("status", [400, 500])
async def test_a_server_that_fails_at_capabilities_of_a_newer_revision_is_told_them_without_their_parts(
    status: int,
) -> None:
    server = FakeStreamable()

    async def handle(http: web.Request) -> web.StreamResponse:
        message = await http.json() if http.method == "POST" else {}
        if message.get("method") == "initialize" and message["params"]["capabilities"]["sampling"]:
            return web.json_response({"message": 'Unrecognized field "tools"'}, status=status)
        return await server(http)

    async with serving(handle) as url, running(at(url)) as it:
        assert value(await it.upstream(tool("echo", 1))) == 1


async def test_initialize_may_be_answered_with_an_event_stream() -> None:
    async with serving(FakeStreamable(initialize_as_events=True)) as url, running(at(url)) as it:
        assert value(await it.upstream(tool("echo", {"n": 1}))) == {"n": 1}


async def test_a_call_is_answered_over_an_event_stream_after_its_progress() -> None:
    async def slow(_: FakeStreamable, http: web.Request, message: Message) -> web.StreamResponse:
        token = message["params"]["_meta"]["progressToken"]
        progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token}}
        log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}
        return await events(http, b": hello\n\n", event(progress), event(log), event(result(message, "done")))

    client = FakeClient()
    async with serving(FakeStreamable({"slow": slow})) as url, running(at(url)) as it:
        assert value(await it.upstream(tool("slow", client=client))) == "done"
    assert client.told == [
        ("notifications/progress", {}),
        ("notifications/message", {"level": "info", "data": 1}),
    ]


class Elsewhere:
    """A server that accepts calls (HTTP 202), and answers them on the GET stream, as some for the first SDKs do."""

    def __init__(self, *, answers: bool = True) -> None:
        self.stream: web.StreamResponse | None = None
        self.opened, self.over = anyio.Event(), anyio.Event()
        self._answers = answers
        self.server = FakeStreamable({"echo": self._accept}, self._listen)

    async def _listen(self, http: web.Request) -> web.StreamResponse:
        self.stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await self.stream.prepare(http)
        self.opened.set()
        await self.over.wait()
        return self.stream

    async def _accept(self, _: FakeStreamable, http: web.Request, message: Message) -> web.StreamResponse:
        await self.opened.wait()
        if self._answers:
            assert self.stream is not None
            await self.stream.write(event(result(message, message["params"]["arguments"])))
        return web.Response(status=202, text="Accepted")


async def test_an_accepted_call_may_be_answered_on_the_listening_stream() -> None:
    it_answers = Elsewhere()
    async with serving(it_answers.server) as url, running(at(url)) as it:
        for number in range(3):
            assert value(await it.upstream(tool("echo", {"n": number}))) == {"n": number}
        assert it_answers.server.count("initialize") == 1
        it_answers.over.set()


async def test_an_accepted_call_fails_when_the_stream_ends_on_which_it_could_be_answered() -> None:
    silent = Elsewhere(answers=False)
    async with serving(silent.server) as url, running(at(url)) as it:
        async with anyio.create_task_group() as tasks:
            outcomes: list[Outcome] = []

            async def call() -> None:
                outcomes.append(await it.upstream(tool("echo")))

            tasks.start_soon(call)
            await silent.server.until("tools/call")
            silent.over.set()
        assert "HTTP 202" in failure(outcomes[0]).error.message
        assert silent.server.count("tools/call") == 1


async def test_an_accepted_call_of_a_server_without_a_listening_stream_fails_at_once() -> None:
    async def accept(_: FakeStreamable, http: web.Request, message: Message) -> web.StreamResponse:
        return web.Response(status=202)

    async with serving(FakeStreamable({"echo": accept})) as url, running(at(url)) as it:
        with anyio.fail_after(GUARD):
            assert "HTTP 202" in failure(await it.upstream(tool("echo"))).error.message


async def test_r40_headers_are_made_from_scratch_and_from_the_settings() -> None:
    server = FakeStreamable()
    async with serving(server) as url, running(at(url, headers={"Authorization": "Bearer abc"})) as it:
        await it.upstream(tool("echo"))
    posts = [headers for method, headers in server.requests if method == "POST"]
    for headers in posts:
        assert headers["Accept"] == "application/json, text/event-stream"
        assert headers["Content-Type"] == "application/json"
        assert headers["Authorization"] == "Bearer abc"
    assert "Mcp-Session-Id" not in posts[0]
    assert "MCP-Protocol-Version" not in posts[0]
    for headers in posts[1:]:
        assert headers["Mcp-Session-Id"] == "session-1"
        assert headers["MCP-Protocol-Version"] == "2025-11-25"


async def test_the_session_is_deleted_in_the_end() -> None:
    server = FakeStreamable()
    async with serving(server) as url, running(at(url)) as it:
        await it.upstream(tool("echo"))
        assert server.sessions == {"session-1"}
        assert not server.deleted
        it.stop()
        await it.events.until(lambda: bool(it.events.of(Retired)))
        assert server.deleted == ["session-1"]


async def test_r48_in_steady_state_one_call_is_one_request() -> None:
    server = FakeStreamable()
    async with serving(server) as url, running(at(url)) as it:
        await it.upstream(tool("echo"))
        before = len(server.requests)
        for _ in range(3):
            await it.upstream(tool("echo"))
        assert len(server.requests) == before + 3


LOST = [
    web.json_response(error(-32001, "Session not found"), status=404),
    web.Response(status=404, text="what?"),
    web.json_response(error(-32000, "Bad Request: Server not initialized"), status=400),
    web.Response(status=400, text="Invalid session ID"),
    web.Response(status=401, text="Session not found"),
    web.Response(status=400, text="Your session has expired"),
    web.json_response(error(-32000, "Session 5f2a-11 not found"), status=400),
    web.Response(status=410, text="session expired"),
    web.json_response(error(-32600, "Session not found"), status=200),
    web.json_response(error(-32001, "Session not found"), status=200),
]


@pytest.mark.parametrize("kind", range(len(LOST)))
async def test_r2_a_lost_session_is_made_anew_and_the_call_sent_once_more(kind: int) -> None:
    def lost(_: Message | None) -> web.Response:
        return web.Response(
            status=LOST[kind].status, body=LOST[kind].body, headers={"Content-Type": LOST[kind].content_type}
        )

    server = FakeStreamable(session_lost=lost)
    async with serving(server) as url, running(at(url)) as it:
        await it.upstream(tool("echo"))
        server.sessions.clear()
        outcomes: list[Outcome] = []

        async def call() -> None:
            outcomes.append(await it.upstream(tool("echo", "again")))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(call)
        assert [value(outcome) for outcome in outcomes] == ["again"] * 5
        assert server.count("initialize") == 2
        assert len(it.events.of(Connected)) == 2
        assert len(it.events.of(Disconnected)) == 1


@pytest.mark.parametrize("as_answer", [False, True])
async def test_a_server_without_sessions_that_speaks_another_version_now_is_found_out_anew(as_answer: bool) -> None:
    speaks = "2025-11-25"
    called: list[str] = []

    def refusal(message: Message) -> Message:
        if not as_answer:
            return error(-32000, "Bad Request: Unsupported protocol version: 2025-11-25 (supported versions: ...)")
        refused = error(-32022, "Unsupported protocol version", message["id"])
        refused["error"]["data"] = {"supported": [speaks]}
        return refused

    async def handle(http: web.Request) -> web.StreamResponse:
        if http.method != "POST":
            return web.Response(status=405)
        message = await http.json()
        if message["method"] == "initialize":
            body = {"protocolVersion": speaks, "capabilities": {"tools": {}}, "serverInfo": {"name": "f"}}
            return web.json_response({**result(message, None), "result": body})
        if http.headers["MCP-Protocol-Version"] != speaks:
            return web.json_response(refusal(message), status=400)
        if "id" not in message:
            return web.Response(status=202)
        called.append(message["params"]["arguments"])
        return await echo(FakeStreamable(), http, message)

    async with serving(handle) as url, running(at(url)) as it:
        assert value(await it.upstream(tool("echo", "before"))) == "before"
        speaks = "2025-06-18"
        assert value(await it.upstream(tool("echo", "after"))) == "after"
        assert [each.identity.version for each in it.events.of(Connected)] == ["2025-11-25", "2025-06-18"]
    assert called == ["before", "after"]


def test_r2_a_tools_own_error_is_no_lost_session() -> None:
    own = ErrorResponse(None, ErrorObject(-32602, "Session not found"))
    assert not session_is_lost(200, b"", own, had_session=True)
    assert not session_is_lost(404, b"", None, had_session=False)
    again = ErrorResponse(None, ErrorObject(-32001, "Session expired: log in to the bank again"))
    assert not session_is_lost(200, b"", again, had_session=True)
    lost = ErrorResponse(None, ErrorObject(-32001, "Session not found"))
    assert session_is_lost(200, b"", lost, had_session=True)
    assert not session_is_lost(200, b"", lost, had_session=False)
    assert not session_is_lost(401, b"token expired", None, had_session=True)


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 409, 410, 429, 500, 503])
@pytest.mark.parametrize("message", ["Session not found", "x" * 20_000])
async def test_r76_an_error_with_the_requests_id_is_the_answer_whatever_the_status(status: int, message: str) -> None:
    server = FakeStreamable()

    def refuse(_: FakeStreamable, __: web.Request, asked: Message) -> Awaitable[web.StreamResponse]:
        return _respond(web.json_response(error(-32001, message, asked["id"]), status=status))

    server.tools["refuse"] = refuse
    async with serving(server) as url, running(at(url)) as it:
        failed = failure(await it.upstream(tool("refuse")))
        assert (failed.error.code, failed.error.message) == (-32001, message)
        assert value(await it.upstream(tool("echo", 1))) == 1
        assert (server.count("tools/call"), server.count("initialize")) == (2, 1)


async def test_r76_a_result_with_the_requests_id_is_the_answer_as_an_event_of_an_error_too() -> None:
    server = FakeStreamable()

    async def refuse(_: FakeStreamable, http: web.Request, asked: Message) -> web.StreamResponse:
        response = web.StreamResponse(status=404, headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        await response.write(event(result(asked, "done")))
        await response.write_eof()
        return response

    server.tools["refuse"] = refuse
    async with serving(server) as url, running(at(url)) as it:
        assert value(await it.upstream(tool("refuse"))) == "done"
        assert (server.count("tools/call"), server.count("initialize")) == (1, 1)


async def test_r76_an_error_with_the_id_of_another_request_is_no_answer() -> None:
    server = FakeStreamable()
    server.tools["lost"] = lambda s, r, m: _respond(web.json_response(error(-32001, "x", "other"), status=404))
    async with serving(server) as url, running(at(url)) as it:
        assert "lost the session" in failure(await it.upstream(tool("lost"))).error.message


BROKEN = [
    *UNREADABLE.values(),
    *(answer.replace(b'"id":ID', b'"id":"\\ud800"') for answer in UNREADABLE.values()),
    '{"jsonrpc":"2.0","id":ID,"result":{}}'.encode("utf-16"),
]


@pytest.mark.parametrize("number", range(len(BROKEN)))
@pytest.mark.parametrize("as_event", [False, True])
async def test_an_answer_that_is_nearly_json_fails_its_call_at_once_naming_why(number: int, as_event: bool) -> None:
    server = FakeStreamable()

    async def broken(_: FakeStreamable, http: web.Request, asked: Message) -> web.StreamResponse:
        body = BROKEN[number].replace(b"ID", str(asked["id"]).encode())
        if not as_event:
            return web.Response(body=body, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        await response.write(b'data: {"method":"notifications/message","params":NaN}\n\n')
        await response.write(b"data: " + body + b"\n\n")
        await anyio.sleep_forever()
        return response

    server.tools["broken"] = broken
    spec = at("", timeouts=QUICK.model_copy(update={"idle": 3600}))
    async with serving(server, notices_hang_up=True) as url, running(spec.model_copy(update={"url": url})) as it:
        with anyio.fail_after(GUARD):
            outcome = await it.upstream(tool("broken"))
        assert "the answer is malformed" in failure(outcome).error.message
        assert value(await it.upstream(tool("echo", 1))) == 1
        assert server.count("initialize") == 1


async def test_r4_a_server_that_never_takes_a_session_is_not_asked_forever() -> None:
    server = FakeStreamable()
    server.tools["lost"] = lambda s, r, m: _respond(web.Response(status=404))
    async with serving(server) as url, running(at(url)) as it:
        assert "lost the session" in failure(await it.upstream(tool("lost"))).error.message
        assert server.count("tools/call") == 2


async def test_what_needs_no_answer_is_not_waited_for_without_end() -> None:
    server = FakeStreamable()

    async def stuck(post: web.Request) -> web.StreamResponse:
        if b"roots/list_changed" in await post.read():
            await anyio.sleep_forever()
        return await server(post)

    spec = at("", timeouts=QUICK.model_copy(update={"idle": 0.2}))
    async with serving(stuck) as url, running(spec.model_copy(update={"url": f"{url}/mcp"})) as it:
        with anyio.fail_after(GUARD):
            failed = failure(await it.upstream(request("notifications/roots/list_changed")))
    assert "did not take" in failed.error.message


async def test_settings_that_cannot_be_sent_are_named() -> None:
    server = FakeStreamable()
    async with serving(server) as url, running(at(url, headers={"X-Key": "two\nlines"})) as it:
        assert "the header 'X-Key' holds characters" in failure(await it.upstream(tool("echo"))).error.message


async def test_credentials_in_the_url_are_sent_as_a_header_unless_there_is_one() -> None:
    server, seen = FakeStreamable(), set()

    async def noting(post: web.Request) -> web.StreamResponse:
        seen.add(post.headers["Authorization"])
        return await server(post)

    async with serving(noting) as url:
        named = url.replace("//", "//user:password@")
        for headers in ({}, {"authorization": "Bearer x"}):
            async with running(at(named, headers=headers)) as it:
                await it.upstream(tool("echo"))
    assert seen == {"Basic dXNlcjpwYXNzd29yZA==", "Bearer x"}


async def test_r39_a_cookie_is_sent_back_to_the_server_that_gave_it() -> None:
    server, seen = FakeStreamable(), []

    async def sticky(post: web.Request) -> web.StreamResponse:
        seen.append(post.headers.get("Cookie"))
        response = await server(post)
        if not response.prepared:
            response.set_cookie("node", "7")
        return response

    async with serving(sticky) as url, running(at(url.replace("127.0.0.1", "localhost"))) as it:
        await it.upstream(tool("echo"))
    assert seen[0] is None
    assert seen[-1] == "node=7"


async def _respond(response: web.Response) -> web.StreamResponse:
    return response


async def test_r5_a_stream_that_ends_without_the_response_fails_the_call_at_once() -> None:
    async def cut(_: FakeStreamable, http: web.Request, message: Message) -> web.StreamResponse:
        return await events(http, b": nothing\n\n")

    async with serving(FakeStreamable({"cut": cut})) as url, running(at(url)) as it:
        with anyio.fail_after(GUARD):
            failed = failure(await it.upstream(tool("cut")))
        assert "ended without the response" in failed.error.message
        assert failed.reason is Reason.UNAVAILABLE


@pytest.mark.parametrize("breaks", ["the stream ends", "HTTP 500"])
async def test_a_session_in_which_nothing_is_answered_any_more_gives_way_to_another(breaks: str) -> None:
    """As with Python's SDK 1.9, once a call was cancelled."""

    async def broken(http: web.Request, message: Message) -> web.StreamResponse:
        return web.Response(status=500) if breaks == "HTTP 500" else await events(http, b": nothing\n\n")

    async def echo_once_new(server: FakeStreamable, http: web.Request, message: Message) -> web.StreamResponse:
        is_broken = http.headers["Mcp-Session-Id"] == "session-1"
        return await (broken(http, message) if is_broken else echo(server, http, message))

    server = FakeStreamable({"echo": echo_once_new}, on_ping=broken)
    async with serving(server) as url, running(at(url)) as it:
        assert failure(await it.upstream(tool("echo"))).reason is Reason.UNAVAILABLE
        await it.events.until(lambda: bool(it.events.of(Disconnected)))
        assert value(await it.upstream(tool("echo", {"n": 1}))) == {"n": 1}
        assert (server.count("ping"), server.count("initialize")) == (1, 2)


async def test_a_session_in_which_one_call_breaks_stays_as_long_as_others_are_answered() -> None:
    async def cut(_: FakeStreamable, http: web.Request, message: Message) -> web.StreamResponse:
        return await events(http, b": nothing\n\n")

    server = FakeStreamable({"cut": cut, "echo": echo})
    async with serving(server) as url, running(at(url)) as it:
        for number in range(3):
            failure(await it.upstream(tool("cut")))
            await server.until("ping")
            assert value(await it.upstream(tool("echo", {"n": number}))) == {"n": number}
        assert server.count("initialize") == 1


async def test_a_stream_with_event_ids_is_resumed_where_it_stopped() -> None:
    pending: list[Message] = []
    resumed: list[str] = []

    async def polled(_: FakeStreamable, http: web.Request, message: Message) -> web.StreamResponse:
        pending.append(message)
        return await events(http, b"id: e1\nretry: 10\ndata:\n\n")

    async def on_get(http: web.Request) -> web.StreamResponse:
        last = http.headers.get("Last-Event-ID")
        if last is None:
            return web.Response(status=405)
        resumed.append(last)
        if len(resumed) == 1:
            return await events(http, b"id: e2\nretry: 10\ndata:\n\n")
        return await events(http, event(result(pending[0], "at last"), id="e3"))

    async with serving(FakeStreamable({"polled": polled}, on_get)) as url, running(at(url)) as it:
        assert value(await it.upstream(tool("polled"))) == "at last"
    assert resumed == ["e1", "e2"]
    assert len(pending) == 1


async def test_a_server_that_asks_to_be_polled_is_polled_until_it_answers() -> None:
    pending: list[Message] = []
    resumed: list[str] = []

    async def polled(_: FakeStreamable, http: web.Request, message: Message) -> web.StreamResponse:
        pending.append(message)
        return await events(http, b"id: e1\nretry: 10\ndata:\n\n")

    async def on_get(http: web.Request) -> web.StreamResponse:
        last = http.headers.get("Last-Event-ID")
        if last is None:
            return web.Response(status=405)
        resumed.append(last)
        if len(resumed) < 2 * MAX_RESUMPTIONS:
            return await events(http)
        return await events(http, event(result(pending[0], "at last")))

    async with serving(FakeStreamable({"polled": polled}, on_get)) as url, running(at(url)) as it:
        assert value(await it.upstream(tool("polled"))) == "at last"
    assert resumed == 2 * MAX_RESUMPTIONS * ["e1"]
    assert len(pending) == 1


async def test_a_stream_that_cannot_be_resumed_fails_its_call() -> None:
    async def polled(_: FakeStreamable, http: web.Request, message: Message) -> web.StreamResponse:
        return await events(http, b"id: e1\nretry: 10\ndata:\n\n")

    async with serving(FakeStreamable({"polled": polled})) as url, running(at(url)) as it:
        assert "could not be resumed" in failure(await it.upstream(tool("polled"))).error.message


async def test_r4_a_call_whose_server_goes_away_before_its_stream_is_resumed_is_not_sent_again() -> None:
    async def begun(_: FakeStreamable, http: web.Request, message: Message) -> web.StreamResponse:
        await site.stop()
        return await events(http, b"id: e1\nretry: 10\ndata:\n\n")

    async def handle(http: web.Request) -> web.StreamResponse:
        response = await server(http)
        response.force_close()
        return response

    server = FakeStreamable({"begun": begun, "echo": echo})
    runner = web.ServerRunner(web.Server(handle))  # type: ignore[arg-type, unused-ignore]  # as in `serving`
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = int(site.name.rpartition(":")[2])
    async with running(at(site.name)) as it:
        assert "the outcome is unknown" in failure(await it.upstream(tool("begun"))).error.message
        await it.events.until(lambda: bool(it.events.of(Disconnected)))
        await web.TCPSite(runner, "127.0.0.1", port).start()
        assert value(await it.upstream(tool("echo", "back"))) == "back"
    assert [call["params"]["name"] for call in server.heard if call.get("method") == "tools/call"] == ["begun", "echo"]
    await runner.cleanup()


async def test_r25_cancelling_closes_the_stream_and_tells_the_server_which() -> None:
    async def hang(_: FakeStreamable, http: web.Request, message: Message) -> web.StreamResponse:
        await anyio.sleep_forever()
        raise AssertionError

    server = FakeStreamable({"hang": hang})
    async with serving(server) as url, running(at(url)) as it, anyio.create_task_group() as tasks:
        tasks.start_soon(it.upstream, tool("hang"))
        call = await server.until("tools/call")
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True), anyio.fail_after(GUARD):
            cancelled = await server.until("notifications/cancelled")
    assert cancelled["params"]["requestId"] == call["id"]


async def test_r26_a_question_on_a_calls_own_stream_goes_to_its_client_among_other_callers() -> None:
    async def ask(server: FakeStreamable, http: web.Request, message: Message) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        key = message["params"]["arguments"]
        await response.write(event({"jsonrpc": "2.0", "id": key, "method": "roots/list"}))
        while not (answers := [m for m in server.heard if m.get("id") == key and "method" not in m]):
            await server.more.wait()
        await response.write(event(result(message, answers[0]["result"])))
        return response

    async with serving(FakeStreamable({"ask": ask})) as url, running(at(url)) as it:
        answers: dict[str, Any] = {}

        async def call(key: str) -> None:
            client = answering({"roots": [{"uri": f"file:///{key}"}]})
            answers[key] = value(await it.upstream(tool("ask", key, client=client)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, "a")
            tasks.start_soon(call, "b")
    assert answers == {key: {"roots": [{"uri": f"file:///{key}"}]} for key in ("a", "b")}


async def test_r47_a_slow_call_delays_no_other() -> None:
    async def hang(_: FakeStreamable, http: web.Request, message: Message) -> web.StreamResponse:
        await anyio.sleep_forever()
        raise AssertionError

    server = FakeStreamable()
    server.tools["hang"] = hang
    async with serving(server) as url, running(at(url)) as it, anyio.create_task_group() as tasks:
        for _ in range(120):
            tasks.start_soon(it.upstream, tool("hang"))
        with anyio.fail_after(GUARD):
            assert value(await it.upstream(tool("echo", 1))) == 1
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("redirect", [307, 308])
async def test_a_redirect_within_the_origin_is_followed(redirect: int) -> None:
    server = FakeStreamable()

    async def moved(http: web.Request) -> web.StreamResponse:
        if http.path == "/mcp":
            return web.Response(status=redirect, headers={"Location": "/mcp/"})
        return await server(http)

    async with serving(moved) as url, running(at(f"{url}/mcp")) as it:
        assert value(await it.upstream(tool("echo", 1))) == 1


async def test_r43_credentials_are_not_sent_along_a_redirect_to_another_origin() -> None:
    server = FakeStreamable()
    async with serving(server) as other:

        async def moved(http: web.Request) -> web.StreamResponse:
            return web.Response(status=307, headers={"Location": f"{other}/mcp"})

        async with serving(moved) as url, running(at(url, headers={"Authorization": "Bearer abcdefgh"})) as it:
            message = failure(await it.upstream(tool("echo"))).error.message
    assert "redirects to" in message
    assert not server.requests


async def test_r43_a_get_turned_from_a_post_is_not_followed() -> None:
    async def moved(http: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "/elsewhere"})

    async with serving(moved) as url, running(at(url)) as it:
        assert "302" in failure(await it.upstream(tool("echo"))).error.message


@pytest.mark.parametrize(
    ("response", "parts"),
    [
        ((500, "text/plain", b"it broke badly"), ["HTTP 500", "it broke badly"]),
        ((200, "text/html", b"<h1>Welcome</h1>"), ["text/html", "stream: Welcome"]),
        (
            (501, "text/html", b"<title>No</title><style>b {}</style><b>POST"),
            ["HTTP 501", "no MCP endpoint", ": No POST"],
        ),
        ((502, "text/html", b"<h1>Bad Gateway</h1>"), ["HTTP 502 Bad Gateway: Bad Gateway"]),
        ((401, "text/plain", b"who are you, Bearer sentinel-42?"), ["HTTP 401", "credentials", "[redacted]"]),
        ((403, "application/json", b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"no"}}'), ["HTTP 403"]),
        ((200, "application/json", b"{not json"), ["malformed"]),
    ],
)
async def test_what_is_no_mcp_fails_the_call_with_status_and_excerpt(
    response: tuple[int, str, bytes], parts: list[str]
) -> None:
    status, kind, body = response
    server = FakeStreamable()
    server.tools["odd"] = lambda s, r, m: _respond(
        web.Response(status=status, body=body, headers={"Content-Type": kind})
    )
    async with serving(server) as url, running(at(url, headers={"Authorization": "Bearer sentinel-42"})) as it:
        message = failure(await it.upstream(tool("odd"))).error.message
        for part in ("'web'", *parts):
            assert part in message
        assert "sentinel" not in message


async def test_an_http_error_that_holds_the_upstreams_own_error_passes_it_untouched() -> None:
    server = FakeStreamable()
    server.tools["odd"] = lambda s, r, m: _respond(web.json_response(error(-32602, "bad name", "x"), status=400))
    async with serving(server) as url, running(at(url)) as it:
        failed = failure(await it.upstream(tool("odd")))
    assert (failed.error.code, failed.error.message) == (-32602, "bad name")


async def test_r16_a_compressed_answer_is_unpacked_no_further_than_the_bound() -> None:
    bomb = gzip.compress(b'{"jsonrpc":"2.0","id":1,"result":{"a":"' + b"x" * 2**24 + b'"}}')
    server = FakeStreamable()
    server.tools["bomb"] = lambda s, r, m: _respond(
        web.Response(body=bomb, headers={"Content-Type": "application/json", "Content-Encoding": "gzip"})
    )
    async with serving(server) as url, running(at(url, max_message_bytes=2**20)) as it:
        assert "(max_message_bytes)" in failure(await it.upstream(tool("bomb"))).error.message
        assert not it.events.of(Disconnected)


async def test_r6_a_get_stream_that_is_closed_cleanly_is_reopened_and_heard() -> None:
    opened: list[str | None] = []

    async def on_get(http: web.Request) -> web.StreamResponse:
        opened.append(http.headers.get("Last-Event-ID"))
        update = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": f"a:{len(opened)}"}}
        return await events(http, event(update, id=f"g{len(opened)}", retry=10))

    async with serving(FakeStreamable(on_get=on_get)) as url, running(at(url)) as it:
        await it.events.until(lambda: len(it.events.of(UpstreamChanged)) >= 2)
        changes = [event.change for event in it.events.of(UpstreamChanged)][:2]
    assert changes == [ResourceUpdated("a:1"), ResourceUpdated("a:2")]
    assert opened[:2] == [None, "g1"]


async def test_r21_what_comes_between_two_streams_that_cannot_be_resumed_counts_as_missed() -> None:
    async def on_get(http: web.Request) -> web.StreamResponse:
        return await events(http, b"retry: 10\n\n")

    async with serving(FakeStreamable(on_get=on_get)) as url, running(at(url)) as it:
        await it.events.until(lambda: len(it.events.of(UpstreamChanged)) >= 3)
        assert it.events.of(Disconnected) == []
    changes = [event.change for event in it.events.of(UpstreamChanged)]
    assert changes[:3] == [PushChannel.LOST, PushChannel.RESTORED, PushChannel.LOST]


async def test_r21_a_server_that_refuses_to_be_listened_to_goes_unheard_even_where_its_last_stream_had_ids() -> None:
    opened = 0

    async def on_get(http: web.Request) -> web.StreamResponse:
        nonlocal opened
        opened += 1
        return await events(http, b"id: 1\nretry: 10\ndata:\n\n") if opened != 2 else web.Response(status=503)

    async with serving(FakeStreamable(on_get=on_get)) as url, running(at(url)) as it:
        await it.events.until(lambda: len(it.events.of(UpstreamChanged)) >= 2)
    assert [event.change for event in it.events.of(UpstreamChanged)] == [PushChannel.LOST, PushChannel.RESTORED]


async def test_a_server_without_a_get_stream_has_lost_its_push_channel() -> None:
    async with serving(FakeStreamable()) as url, running(at(url)) as it:
        await it.events.until(lambda: len(it.events.of(UpstreamChanged)) == 1)
        assert value(await it.upstream(tool("echo", 1))) == 1
    assert [event.change for event in it.events.of(UpstreamChanged)] == [PushChannel.LOST]


def test_r6_reopening_a_stream_backs_off_unless_its_server_says_when() -> None:
    assert Position().wait(0) < Position().wait(6) < 60
    assert Position(retry=3.0).wait(9) == 3.0
    assert Position(retry=0.0).wait(0) > 0


@pytest.mark.parametrize("status", [400, 401, 409, 429, 503])
async def test_r21_a_stream_that_is_refused_once_is_asked_for_again_where_there_was_one_before(status: int) -> None:
    opened = 0

    async def on_get(http: web.Request) -> web.StreamResponse:
        nonlocal opened
        opened += 1
        return web.Response(status=status) if opened == 2 else await events(http, b"retry: 10\n\n")

    async with serving(FakeStreamable(on_get=on_get)) as url, running(at(url)) as it:
        await it.events.until(lambda: PushChannel.RESTORED in [each.change for each in it.events.of(UpstreamChanged)])
    assert opened >= 3


async def test_what_is_no_stream_is_none_even_where_there_was_one_before() -> None:
    opened, answered = 0, anyio.Event()

    async def on_get(http: web.Request) -> web.StreamResponse:
        nonlocal opened
        opened += 1
        if opened == 1:
            return await events(http, b"retry: 10\n\n")
        if opened == 3:
            answered.set()
        return web.json_response({"maintenance": True})

    async with serving(FakeStreamable(on_get=on_get)) as url, running(at(url)) as it:
        await answered.wait()
        assert [each.change for each in it.events.of(UpstreamChanged)] == [PushChannel.LOST]


@pytest.mark.parametrize("id", [b"", b"\x01", b"x" * 5000])
async def test_a_stream_whose_last_id_fits_into_no_header_is_reopened_without_one_and_its_link_stays(id: bytes) -> None:
    resumed: list[str | None] = []
    heard_again = anyio.Event()

    async def on_get(http: web.Request) -> web.StreamResponse:
        resumed.append(http.headers.get("Last-Event-ID"))
        if len(resumed) == 2:
            heard_again.set()
        return await events(http, b"id: e1\nretry: 10\ndata:\n\nid: " + id + b"\ndata:\n\n")

    async with serving(FakeStreamable(on_get=on_get)) as url, running(at(url)) as it:
        await heard_again.wait()
        assert it.events.of(Disconnected) == []
    assert resumed[:2] == [None, None]


async def test_r2_a_get_stream_whose_session_is_gone_ends_the_link_before_any_call_suffers() -> None:
    opened = 0

    async def on_get(http: web.Request) -> web.StreamResponse:
        nonlocal opened
        opened += 1
        return web.Response(status=404) if opened == 2 else await events(http, b"retry: 10\n\n")

    server = FakeStreamable(on_get=on_get)
    async with serving(server) as url, running(at(url)) as it:
        await it.events.until(lambda: len(it.events.of(Connected)) == 2)
    assert server.count("initialize") == 2


async def test_r3_a_server_that_is_not_there_yet_is_reached_by_the_first_call_after_it_came() -> None:
    async with serving(FakeStreamable()) as url:
        pass
    async with running(at(url), delays=lambda _: 3600) as it:
        failed = failure(await it.upstream(tool("echo")))
        assert failed.reason is Reason.UNAVAILABLE
        assert "'web'" in failed.error.message
        port = int(url.rpartition(":")[2])
        runner = web.ServerRunner(web.Server(FakeStreamable()))  # type: ignore[arg-type, unused-ignore]  # as in `serving`
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        assert value(await it.upstream(tool("echo", "late"))) == "late"
        await runner.cleanup()
