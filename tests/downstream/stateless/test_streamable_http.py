"""The stateless era over HTTP, as its clients see it on the wire."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import anyio
import pytest
from mcp import Client, MCPError

from mcproxy.call.calls import Call, Complete, Failed, InputRequired, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import Party
from mcproxy.call.identity import Principal
from mcproxy.http.server import Request
from mcproxy.protocol.jsonrpc import ErrorObject, first_level, raw
from tests.downstream.client import EventReader, initialize, notification
from tests.downstream.client import request as bare
from tests.downstream.modern import ENVELOPE, PREFIX, VERSION, headers_of, modern_client_of, request
from tests.fakes.gateway import FakeGateway, Held, IdentifiedBy, nobody_waits, quick, served
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


def answering(answer: Any, method: str = "tools/call") -> FakeGateway:
    gateway = FakeGateway()
    gateway.answers[method] = answer
    return gateway


def failing(code: int) -> Any:
    async def fail(call: Call) -> Outcome:
        return Failed(ErrorObject(code, "no", raw({"why": 1})), Party.UPSTREAM)

    return fail


async def chatty(call: Call) -> Outcome:
    call.client.notify("notifications/progress", {"progress": raw(1)})
    for level in ("debug", "warning"):
        call.client.notify("notifications/message", {"level": raw(level), "data": raw(level)})
    call.client.notify("notifications/elicitation/complete", {"elicitationId": raw("e")})
    return Complete(first_level({"content": []}))


TOOL = {"name": "t", "arguments": {"a": 1}}


async def test_a_request_alone_is_answered_without_a_session() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, modern_client_of(gateway) as client:
            meta = {f"{PREFIX}/clientInfo": {"name": "c", "version": "1"}, "traceparent": "t"}
            async with client.post(request(1, "tools/call", TOOL, meta)) as response:
                answer = await response.json()
                assert "Mcp-Session-Id" not in response.headers
            client.judge.received(answer)
            call = gateway.gateway.calls[0]
            assert json.loads(bytes(raw(call.params))) == {**TOOL, "_meta": {"traceparent": "t"}}
            assert (call.caller.version, call.caller.session, call.caller.endpoint) == (VERSION, None, "")
            assert call.caller.info is not None
            assert json.loads(bytes(call.caller.info)) == {"name": "c", "version": "1"}


@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/servers/up/mcp"])
async def test_every_endpoint_serves_it(path: str) -> None:
    async with served() as gateway, modern_client_of(gateway, path) as client:
        await client.result(request("a", "tools/list"))
        assert gateway.gateway.calls[0].caller.endpoint == ("up" if "up" in path else "")


async def test_results_say_what_they_are_whose_and_how_to_cache_them() -> None:
    async with served() as gateway, modern_client_of(gateway) as client:
        listed = await client.result(request(1, "tools/list"))
        assert (listed["resultType"], listed["ttlMs"], listed["cacheScope"]) == ("complete", 0, "private")
        assert listed["_meta"][f"{PREFIX}/serverInfo"]["name"] == "mcproxy"
        called = await client.result(request(2, "tools/call", TOOL))
        assert called["resultType"] == "complete"
        assert "ttlMs" not in called


async def test_what_a_result_says_of_itself_stays() -> None:
    async def hinted(call: Call) -> Outcome:
        own = {"tools": [], "ttlMs": 5, "cacheScope": "public", "resultType": "complete", "_meta": {"x": [1]}}
        return Complete(first_level(own))

    async with served(answering(hinted, "tools/list")) as gateway, modern_client_of(gateway) as client:
        listed = await client.result(request(1, "tools/list"))
        assert (listed["ttlMs"], listed["cacheScope"], listed["_meta"]["x"]) == (5, "public", [1])


async def test_discover_names_every_version_that_is_served() -> None:
    async with served() as gateway, modern_client_of(gateway) as client:
        discovered = await client.result(request(1, "server/discover"))
        assert discovered["supportedVersions"] == [VERSION, "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
        assert discovered["ttlMs"] == 0


async def test_input_required_passes_in_its_wire_shape() -> None:
    asked = {"e": {"method": "elicitation/create", "params": {"mode": "url", "message": "m", "url": "https://x"}}}

    async def ask(call: Call) -> Outcome:
        wire = first_level({"resultType": "input_required", "inputRequests": asked, "requestState": "s"})
        return InputRequired({"e": InputRequest("elicitation/create", {})}, "s", wire)

    async with served(answering(ask)) as gateway, modern_client_of(gateway) as client:
        result = await client.result(request(1, "tools/call", TOOL))
        assert result["inputRequests"] == asked
        assert (result["resultType"], result["requestState"]) == ("input_required", "s")
        assert "ttlMs" not in result


async def test_input_is_never_required_for_what_may_not_ask() -> None:
    async def ask(call: Call) -> Outcome:
        return InputRequired({}, "s", first_level({"requestState": "s"}))

    async with served(answering(ask, "tools/list")) as gateway, modern_client_of(gateway) as client:
        _, answer = await client.answer(request(1, "tools/list"))
        assert answer["error"]["code"] == -32603


@pytest.mark.parametrize("missing", ENVELOPE)
async def test_a_request_without_its_whole_envelope_is_malformed(missing: str) -> None:
    async with served() as gateway, modern_client_of(gateway) as client:
        message = bare(7, "tools/list", {"_meta": {key: value for key, value in ENVELOPE.items() if key != missing}})
        status, answer = await client.answer(message)
        assert (status, answer["id"], answer["error"]["code"]) == (400, 7, -32602)


async def test_a_header_alone_makes_a_request_stateless_and_malformed() -> None:
    async with served() as gateway, modern_client_of(gateway) as client:
        status, answer = await client.answer(bare(7, "tools/list"))
        assert (status, answer["error"]["code"]) == (400, -32602)


@pytest.mark.parametrize(
    "wrong",
    [
        {"MCP-Protocol-Version": "2025-11-25"},
        {"Mcp-Method": "tools/list"},
        {"Mcp-Method": "TOOLS/CALL"},
        {"Mcp-Name": "T"},
        {"Mcp-Name": "=?base64?dA?="},
    ],
)
async def test_headers_that_do_not_match_the_body_are_refused(wrong: dict[str, str]) -> None:
    async with served() as gateway, modern_client_of(gateway) as client:
        status, answer = await client.answer(request(1, "tools/call", TOOL), **wrong)
        assert (status, answer["id"], answer["error"]["code"]) == (400, 1, -32020)
        assert not gateway.gateway.calls


@pytest.mark.parametrize("missing", ["MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"])
async def test_missing_headers_are_refused(missing: str) -> None:
    async with served() as gateway, modern_client_of(gateway) as client:
        message = request(1, "tools/call", TOOL)
        headers = {name: value for name, value in headers_of(message).items() if name != missing}
        async with client.raw.post(message, **headers) as response:
            assert response.status == 400
            assert (await response.json())["error"]["code"] == -32020


async def test_an_encoded_name_is_decoded_before_it_is_compared() -> None:
    async with served() as gateway, modern_client_of(gateway) as client:
        message = request(1, "tools/call", {"name": "wörld"})
        assert (await client.answer(message, **{"Mcp-Name": "=?base64?d8O2cmxk?="}))[0] == 200


async def test_an_unknown_version_is_answered_with_those_that_are_served() -> None:
    async with served() as gateway, modern_client_of(gateway) as client:
        message = request(1, "tools/list", meta={f"{PREFIX}/protocolVersion": "1900-01-01"})
        status, answer = await client.answer(message, **{"MCP-Protocol-Version": "1900-01-01"})
        assert (status, answer["error"]["code"]) == (400, -32022)
        assert answer["error"]["data"]["requested"] == "1900-01-01"
        assert VERSION in answer["error"]["data"]["supported"]


@pytest.mark.parametrize("rest", [{}, {f"{PREFIX}/clientCapabilities": {}}])
async def test_a_client_of_a_later_version_is_told_which_are_served_whatever_its_requests_have(rest: Any) -> None:
    """versioning: an error that names no versions would have it take the gateway for a server of old."""
    async with served() as gateway, modern_client_of(gateway) as client:
        later = "2027-03-01"
        message = bare(1, "server/discover", {"_meta": {f"{PREFIX}/protocolVersion": later, **rest}})
        async with client.raw.post(message, **{"MCP-Protocol-Version": later}) as response:
            answer = await response.json()
        assert (response.status, answer["error"]["code"]) == (400, -32022)


@pytest.mark.parametrize(
    ("method", "subject"),
    [("tasks/result", {"taskId": "t"}), ("resources/subscribe", {"uri": "a:b"}), ("unknown/method", {"name": "n"})],
)
async def test_a_method_that_is_not_served_needs_no_header_that_names_its_subject(
    method: str, subject: dict[str, str]
) -> None:
    async with served() as gateway, modern_client_of(gateway) as client:
        message = request(1, method, subject)
        headers = {"MCP-Protocol-Version": VERSION, "Mcp-Method": method}
        async with client.raw.post(message, **headers) as response:
            answer = await response.json()
        assert (response.status, answer["error"]["code"]) == (404, -32601)


@pytest.mark.parametrize(
    "method",
    [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "notifications/roots/list_changed",
        "notifications/cancelled",
        "unknown/method",
    ],
)
async def test_unknown_and_removed_methods_are_not_found(method: str) -> None:
    async with served() as gateway, modern_client_of(gateway) as client:
        status, answer = await client.answer(request("x", method, {"capabilities": {}, "level": "info"}))
        assert (status, answer["id"], answer["error"]["code"]) == (404, "x", -32601)
        assert not gateway.gateway.calls


@pytest.mark.parametrize(
    ("code", "status", "sent"),
    [
        (-32602, 200, -32602),
        (-32601, 404, -32601),
        (-32021, 400, -32021),
        (-32002, 200, -32602),
        (-32042, 200, -32603),
        (-32020, 200, -32603),
        (-32022, 200, -32603),
        (-32000, 200, -32000),
        (17, 200, 17),
    ],
)
async def test_errors_have_the_codes_and_statuses_of_this_revision(code: int, status: int, sent: int) -> None:
    async with served(answering(failing(code))) as gateway, modern_client_of(gateway) as client:
        got, answer = await client.answer(request(1, "tools/call", TOOL))
        assert (got, answer["error"]) == (status, {"code": sent, "message": "no", "data": {"why": 1}})


async def test_a_notification_is_accepted_and_does_nothing() -> None:
    held = Held()
    with anyio.fail_after(GUARD):
        async with (
            served(answering(held)) as gateway,
            modern_client_of(gateway) as client,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(client.result, request(1, "tools/call", TOOL))
            await held.arrived.wait()
            cancelled = notification("notifications/cancelled", {"requestId": 1, "_meta": ENVELOPE})
            async with client.raw.post(cancelled, **{"MCP-Protocol-Version": VERSION}) as response:
                assert (response.status, await response.read()) == (202, b"")
            held.release.set()


@pytest.mark.parametrize("body", [[request(1, "tools/list")], {"jsonrpc": "2.0", "id": 1, "result": {}}])
async def test_batches_and_responses_are_refused(body: Any) -> None:
    headers = {"MCP-Protocol-Version": VERSION}
    async with (
        served() as gateway,
        modern_client_of(gateway) as client,
        client.raw.post(body, **headers) as response,
    ):
        assert response.status == 400
        assert (await response.json())["error"]["code"] == -32600


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_other_http_methods_are_refused_where_they_are_clearly_of_this_era(method: str) -> None:
    async with served() as gateway, modern_client_of(gateway) as client:
        headers = {"MCP-Protocol-Version": VERSION, "Accept": "text/event-stream"}
        async with client.raw.http.request(method, client.raw.url, headers=headers) as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST")


async def test_sessions_and_resumption_are_ignored() -> None:
    async with served() as gateway, modern_client_of(gateway) as client:
        headers = {"Mcp-Session-Id": "made-up", "Last-Event-ID": "p1-3"}
        async with client.post(request(1, "tools/list"), **headers) as response:
            assert response.status == 200
            assert "Mcp-Session-Id" not in response.headers


async def test_a_foreign_origin_is_refused() -> None:
    async with (
        served() as gateway,
        modern_client_of(gateway) as client,
        client.post(request(1, "tools/list"), Origin="https://evil.example") as response,
    ):
        assert response.status == 403


async def test_r62_a_stream_begins_where_a_notification_comes_first() -> None:
    with anyio.fail_after(GUARD):
        async with served(answering(chatty)) as gateway, modern_client_of(gateway) as client:
            meta = {"progressToken": "7", f"{PREFIX}/logLevel": "notice"}
            async with client.stream(request(1, "tools/call", TOOL, meta)) as events:
                headers = events.events.response.headers
                assert (headers["X-Accel-Buffering"], headers["Cache-Control"]) == ("no", "no-store")
                progress, log, result = await events.rest()
            assert progress["params"] == {"progressToken": "7", "progress": 1}
            assert log["params"] == {"level": "warning", "data": "warning"}
            assert result["result"]["resultType"] == "complete"


async def test_r24_a_request_for_no_progress_and_no_log_gets_an_answer_alone() -> None:
    async with served(answering(chatty)) as gateway, modern_client_of(gateway) as client:
        assert (await client.result(request(1, "tools/call", TOOL)))["content"] == []


async def test_r24_nothing_follows_the_result() -> None:
    calls: list[Call] = []

    async def answer(call: Call) -> Outcome:
        calls.append(call)
        return await chatty(call)

    async with served(answering(answer)) as gateway, modern_client_of(gateway) as client:
        async with client.stream(request(1, "tools/call", TOOL, {"progressToken": 1})) as events:
            assert len(await events.rest()) == 2
        calls[0].client.notify("notifications/progress", {"progress": raw(2)})


async def test_r7_a_late_answer_comes_on_a_stream_that_is_kept_alive() -> None:
    held = Held()
    with anyio.fail_after(GUARD):
        async with (
            served(answering(held), quick(stream_after=0.01, keep_alive=0.01)) as gateway,
            modern_client_of(gateway) as client,
            client.stream(request(1, "tools/call", TOOL)) as events,
        ):
            assert await events.events.response.content.readuntil(b":\n\n") == b":\n\n"
            held.release.set()
            assert (await events.rest())[-1]["id"] == 1


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("application/json", "application/json"),
        ("text/event-stream", "text/event-stream"),
        ("*/*", "application/json"),
    ],
)
async def test_r55_any_accept_is_served_in_a_form_that_it_admits(accept: str, form: str) -> None:
    async with (
        served() as gateway,
        modern_client_of(gateway) as client,
        client.post(request(1, "tools/list"), accept=accept) as response,
    ):
        assert response.content_type == form
        got = await response.json() if "json" in form else await EventReader(response).message()
        client.judge.received(got)


async def test_r55_a_client_that_takes_json_alone_gets_the_answer_alone_however_late() -> None:
    async def late(call: Call) -> Outcome:
        await chatty(call)
        with anyio.move_on_after(0.05):
            await anyio.sleep_forever()
        return await chatty(call)

    async with served(answering(late), quick(stream_after=0.01)) as gateway, modern_client_of(gateway) as client:
        message = request(1, "tools/call", TOOL, {"progressToken": 1})
        async with client.post(message, accept="application/json") as response:
            client.judge.received(await response.json())


@pytest.mark.parametrize("stream_after", [5, 0.001])
async def test_r25_the_clients_leaving_cancels_its_call(stream_after: float) -> None:
    held = Held()
    with anyio.fail_after(GUARD):
        async with served(answering(held), quick(stream_after=stream_after)) as gateway:
            async with modern_client_of(gateway) as client, anyio.create_task_group() as tasks:

                async def call() -> None:
                    async with client.post(request(1, "tools/call", TOOL)) as response:
                        await response.read()

                tasks.start_soon(call)
                await held.arrived.wait()
                tasks.cancel_scope.cancel()
            with anyio.fail_after(GUARD):
                await held.cancelled.wait()


async def test_headers_that_differ_in_each_request_of_a_connection_must_agree_with_their_bodies_all_the_same() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as http:
            for number, (named, meant) in enumerate([("a", "a"), ("b", "b"), ("b", "a"), ("a", "b"), ("c", "c")]):
                said = request(number, "tools/call", {"name": meant})
                headers = {**headers_of(said), "Mcp-Name": named, "traceparent": f"00-{number:032}-{1:016}-01"}
                async with http.post(gateway.url + "/mcp", json=said, headers=headers) as response:
                    answer = await response.json()
                assert ("error" in answer) is (named != meant)
                assert named == meant or answer["error"]["code"] == -32020
            assert [bytes(call.params["name"]) for call in gateway.gateway.calls] == [b'"a"', b'"b"', b'"c"']


async def test_r25_a_client_that_left_while_it_was_identified_makes_no_call() -> None:
    asked = anyio.Event()

    async def identify(request: Request) -> Principal:
        asked.set()
        while not request.is_disconnected:
            await anyio.lowlevel.checkpoint()
        return Principal("ann")

    with anyio.fail_after(GUARD):
        async with served(identify=IdentifiedBy(identify)) as gateway, modern_client_of(gateway) as client:

            async def post() -> None:
                async with client.post(request(1, "tools/call", TOOL)):
                    raise AssertionError("it was answered")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(post)
                await asked.wait()
                tasks.cancel_scope.cancel()
            await nobody_waits()
            assert gateway.gateway.calls == []


async def test_r25_leaving_a_stream_cancels_its_call_and_no_other() -> None:
    first, second = Held(), Held()

    async def answer(call: Call) -> Outcome:
        return await (first if b"first" in bytes(call.params["name"]) else second)(call)

    with anyio.fail_after(GUARD):
        async with (
            served(answering(answer), quick(stream_after=0.001)) as gateway,
            modern_client_of(gateway) as leaving,
            modern_client_of(gateway) as staying,
            staying.stream(request(1, "tools/call", {"name": "second"})) as events,
        ):
            async with leaving.stream(request(1, "tools/call", {"name": "first"})) as gone:
                gone.events.response.close()
                await first.cancelled.wait()
            assert not second.cancelled.is_set()
            second.release.set()
            assert (await events.rest())[-1]["id"] == 1


async def test_r9_a_call_in_flight_is_answered_while_the_gateway_stops() -> None:
    held = Held()
    with anyio.fail_after(GUARD):
        async with served(answering(held)) as gateway, modern_client_of(gateway) as client:
            results: list[Any] = []

            async def call() -> None:
                results.append(await client.result(request(1, "tools/call", TOOL)))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await held.arrived.wait()
                gateway.stop.set()
                held.release.set()
            assert results[0]["content"] == []


@pytest.mark.parametrize("stream_after", [0.01, 60])
async def test_r9_a_call_that_outlasts_the_grace_is_answered_that_its_outcome_is_unknown(stream_after: float) -> None:
    held = Held()
    with anyio.fail_after(GUARD):
        async with (
            served(answering(held), quick(stream_after=stream_after, shutdown_grace=0.1)) as gateway,
            modern_client_of(gateway) as client,
        ):
            bodies: list[bytes] = []

            async def call() -> None:
                async with client.post(request(1, "tools/call", TOOL)) as response:
                    bodies.append(await response.read())

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await held.arrived.wait()
                gateway.stop.set()
            await held.cancelled.wait()
            await gateway.stopped.wait()
    assert b"unknown" in bodies[0]
    assert b'"id":1' in bodies[0]


async def test_both_eras_share_the_endpoint() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, modern_client_of(gateway) as modern, modern_client_of(gateway) as legacy:
            await legacy.raw.open()
            assert (await modern.result(request(1, "tools/list")))["resultType"] == "complete"
            assert "resultType" not in (await legacy.raw.ask(bare(1, "tools/list")))["result"]


async def test_initialize_opens_a_session_whatever_its_header_says() -> None:
    headers = {"MCP-Protocol-Version": VERSION}
    async with (
        served() as gateway,
        modern_client_of(gateway) as client,
        client.raw.post(initialize(), **headers) as response,
    ):
        assert "Mcp-Session-Id" in response.headers


async def test_the_official_client_finds_the_era_by_itself() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, Client(f"{gateway.url}/mcp") as client:
            assert client.protocol_version == VERSION
            assert [tool.name for tool in (await client.list_tools()).tools] == ["echo"]
            result = await client.call_tool("echo", {"text": "grüße"})
            assert result.structured_content == {"params": {"name": "echo", "arguments": {"text": "grüße"}}}
            with pytest.raises(MCPError):
                await client.get_prompt("none")


async def test_the_official_client_hears_progress() -> None:
    heard: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    with anyio.fail_after(GUARD):
        async with served(answering(chatty)) as gateway, Client(f"{gateway.url}/mcp", mode=VERSION) as client:
            await client.call_tool("t", {}, progress_callback=on_progress)
            assert heard == [1]


async def test_r8_a_client_that_takes_nothing_is_disconnected_and_its_call_cancelled() -> None:
    cancelled = anyio.Event()

    async def flood(call: Call) -> Outcome:
        params = {"level": raw("error"), "data": raw("x" * 1_000_000)}
        try:
            while True:
                call.client.notify("notifications/message", params)
                await anyio.lowlevel.checkpoint()
        finally:
            cancelled.set()

    with anyio.fail_after(GUARD):
        async with served(answering(flood), quick(write_timeout=0.2)) as gateway, modern_client_of(gateway) as client:
            message = request(1, "tools/call", TOOL, {f"{PREFIX}/logLevel": "debug"})
            async with client.stream(message) as events:
                await cancelled.wait()
                with pytest.raises(aiohttp.ClientError):
                    await events.rest()
