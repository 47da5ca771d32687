"""Streamable HTTP of the handshake eras, as its clients see it on the wire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.clients import InputRequest, ListChanged, ResourceUpdated
from mcproxy.call.errors import McpError, Party
from mcproxy.call.identity import Principal
from mcproxy.downstream.handshake.subscriber_journal import SubscriberJournal
from mcproxy.http.server import Request
from mcproxy.protocol.jsonrpc import ErrorObject, first_level, raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings import LimitSettings
from tests.downstream.client import EventReader, client_of, initialize, notification, request
from tests.fakes.gateway import FakeGateway, Held, IdentifiedBy, asking, quick, served
from tests.http.timers import COMMANDED, commanded_loop
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


def answering(answer: Any) -> FakeGateway:
    gateway = FakeGateway()
    gateway.answers["tools/call"] = answer
    return gateway


async def reporting(call: Call) -> Outcome:
    call.client.notify("notifications/progress", {"progress": raw(1)})
    return Complete(first_level({"content": []}))


@pytest.mark.parametrize(("version", "type"), [("2025-03-26", "text"), ("2025-06-18", "resource_link")])
async def test_a_client_gets_no_content_that_its_revision_does_not_know(version: str, type: str) -> None:
    async def linking(call: Call) -> Outcome:
        return Complete(first_level({"content": [{"type": "resource_link", "uri": "x://y", "name": "y"}]}))

    async with served(answering(linking)) as gateway, client_of(gateway) as client:
        await client.open(version)
        [block] = (await client.ask(request(1, "tools/call")))["result"]["content"]
        assert block["type"] == type


@pytest.mark.parametrize(
    ("capabilities", "kept"),
    [(None, {}), ({"sampling": None, "roots": {"listChanged": None}}, {"roots": {"listChanged": None}})],
)
async def test_a_capability_that_is_null_is_not_declared(capabilities: Any, kept: object) -> None:
    opening = initialize()
    opening["params"]["capabilities"] = capabilities
    async with served() as gateway, client_of(gateway) as client:
        assert "result" in await client.ask(opening)
        declared = gateway.gateway.calls[0].caller.capabilities
    assert {key: json.loads(bytes(value)) for key, value in declared.items()} == kept


async def test_a_session_opens_and_answers_in_json() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, client_of(gateway) as client:
            answer = await client.open()
            assert answer["result"]["serverInfo"] == {"name": "fake", "version": "1"}
            assert answer["result"]["protocolVersion"] == "2025-11-25"
            assert answer["result"]["instructions"] == "Be kind."
            listed = await client.ask(request(1, "tools/list"))
            assert listed["result"]["tools"][0]["name"] == "echo"


@pytest.mark.parametrize(
    ("asked", "given"),
    [("2024-11-05", "2024-11-05"), ("2025-03-26", "2025-03-26"), ("2099-01-01", "2025-11-25"), ("", "2025-11-25")],
)
async def test_r58_an_unknown_version_is_negotiated_down(asked: str, given: str) -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, client_of(gateway) as client:
            answer = await client.ask(initialize(asked))
            assert answer["result"]["protocolVersion"] == given


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("application/json", "application/json"),
        ("text/event-stream", "text/event-stream"),
        ("application/json, text/event-stream", "application/json"),
        ("*/*", "application/json"),
        (None, "application/json"),
        ("text/*", "text/event-stream"),
        ("application/json;q=0, text/event-stream", "text/event-stream"),
    ],
)
async def test_r55_any_accept_is_served_in_a_form_that_it_admits(accept: str | None, form: str) -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, client_of(gateway) as client:
            async with client.post(initialize(), accept=accept) as response:
                assert response.content_type == form
                client.headers["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
            async with client.post(request(1, "ping"), accept=accept) as response:
                assert response.content_type == form
                got = json.loads(await response.read()) if "json" in form else await EventReader(response).message()
                assert got == {"jsonrpc": "2.0", "id": 1, "result": {}}


async def test_r55_what_admits_neither_form_is_refused() -> None:
    async with served() as gateway, client_of(gateway) as client, client.post(initialize(), accept="text/html") as got:
        assert got.status == 406
        assert "application/json" in (await got.json())["error"]["message"]


@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/servers/up/mcp", "/servers/up/mcp/"])
async def test_r55_both_spellings_of_each_path_answer_without_a_redirect(path: str) -> None:
    async with served() as gateway, client_of(gateway, path) as client:
        await client.open()
        assert gateway.gateway.calls[0].caller.endpoint == ("up" if "up" in path else "")


@pytest.mark.parametrize(
    ("method", "party", "data", "code"),
    [
        ("resources/read", Party.UPSTREAM, {"uri": "a:b"}, -32002),
        ("resources/read", Party.UPSTREAM, {"uri": "a:c"}, -32602),
        ("resources/read", Party.UPSTREAM, ["a:b"], -32602),
        ("resources/read", Party.UPSTREAM, None, -32602),
        ("resources/read", Party.CLIENT, {"uri": "a:b"}, -32602),
        ("completion/complete", Party.UPSTREAM, {"uri": "a:b"}, -32602),
    ],
)
async def test_a_resource_that_a_stateless_server_does_not_have_is_told_by_the_code_of_these_revisions(
    method: str, party: Party, data: Any, code: int
) -> None:
    """resources, Error Handling: -32602 since 2026-07-28, with the URI in `data`; -32002 before."""

    async def lacks(call: Call) -> Outcome:
        return Failed(ErrorObject(-32602, "no", None if data is None else raw(data)), party)

    gateway = FakeGateway()
    gateway.answers[method] = lacks
    async with served(gateway) as running, client_of(running) as client:
        await client.open()
        error = (await client.ask(request(1, method, {"uri": "a:b"})))["error"]
        assert (error["code"], error["message"], error.get("data")) == (code, "no", data)


async def test_an_endpoint_that_is_no_upstream_is_not_there() -> None:
    async with (
        served() as gateway,
        client_of(gateway, "/servers/down/mcp") as client,
        client.post(initialize()) as response,
    ):
        assert response.status == 404
        assert "error" in await response.json()


async def test_r62_a_stream_begins_only_where_something_precedes_the_result() -> None:
    with anyio.fail_after(GUARD):
        async with served(answering(reporting)) as gateway, client_of(gateway) as client:
            await client.open()
            params = {"name": "t", "_meta": {"progressToken": 7}}
            async with client.post(request(1, "tools/call", params)) as response:
                assert response.content_type == "text/event-stream"
                progress, result = await EventReader(response).rest()
            assert progress["params"] == {"progressToken": 7, "progress": 1}
            assert result["id"] == 1


async def test_r59_event_streams_are_neither_buffered_nor_stored() -> None:
    async with served(answering(reporting)) as gateway, client_of(gateway) as client:
        await client.open()
        async with client.listen() as events:
            headers = events.response.headers
            assert (headers["X-Accel-Buffering"], headers["Cache-Control"]) == ("no", "no-store")


@pytest.mark.parametrize("token", [7, "7", ""])
async def test_r24_progress_has_the_clients_own_token_with_its_type(token: int | str) -> None:
    with anyio.fail_after(GUARD):
        async with served(answering(reporting)) as gateway, client_of(gateway) as client:
            await client.open()
            params = {"name": "t", "_meta": {"progressToken": token, "mine": 1}}
            async with client.post(request(1, "tools/call", params)) as response:
                progress = await EventReader(response).message()
            assert progress["params"]["progressToken"] == token
            assert type(progress["params"]["progressToken"]) is type(token)
            assert json.loads(bytes(gateway.gateway.calls[-1].params["_meta"])) == {"mine": 1}


async def test_r24_no_progress_without_a_token() -> None:
    async with served(answering(reporting)) as gateway, client_of(gateway) as client:
        await client.open()
        assert (await client.ask(request(1, "tools/call")))["result"] == {"content": []}


@pytest.mark.parametrize("meta", [None, {"progressToken": None}])
async def test_r24_no_progress_where_the_token_is_null(meta: object) -> None:
    async with served(answering(reporting)) as gateway, client_of(gateway) as client:
        await client.open()
        answer = await client.ask(request(1, "tools/call", {"name": "t", "_meta": meta}))
        assert answer["result"] == {"content": []}
        assert "_meta" not in gateway.gateway.calls[-1].params


async def test_r52_bytes_are_counted_whatever_form_they_come_in() -> None:
    async with served() as gateway, client_of(gateway) as client:
        await client.open()
        for accept in ("application/json", "text/event-stream"):
            before = gateway.metric("mcproxy_sent_bytes_total", transport="http")
            async with client.post(request(1, "tools/list"), accept=accept) as response:
                size = len(await response.read())
            assert gateway.metric("mcproxy_sent_bytes_total", transport="http") - before == size


async def test_r24_no_progress_after_the_result() -> None:
    held = Held()
    with anyio.fail_after(GUARD):
        async with served(answering(held)) as gateway, client_of(gateway) as client:
            await client.open()
            async with client.listen() as events:
                held.release.set()
                await client.ask(request(1, "tools/call", {"_meta": {"progressToken": 1}}))
                assert held.call is not None
                held.call.client.notify("notifications/progress", {"progress": raw(2)})
                gateway.gateway.present[0].signal(ListChanged(Kind.TOOLS))
                assert (await events.message())["method"] == "notifications/tools/list_changed"


@pytest.mark.parametrize("void", [{"task": None}, {"inputResponses": {"1": {}}, "requestState": "made up"}])
async def test_a_task_that_is_null_and_what_retries_of_another_era_have_count_as_left_out(void: dict[str, Any]) -> None:
    async with served() as gateway, client_of(gateway) as client:
        await client.open()
        await client.ask(request(1, "tools/call", {"name": "t", **void}))
        assert gateway.gateway.calls[-1].params.keys() == {"name"}


async def become_a_task(call: Call) -> Outcome:
    return Complete(first_level({"task": {"taskId": "1", "status": "working"}}))


async def test_r24_progress_of_a_task_goes_on_the_sessions_own_stream() -> None:
    """tasks, Task Progress Notifications: the token "remains valid throughout the task lifetime"."""
    with anyio.fail_after(GUARD):
        async with served(answering(become_a_task)) as gateway, client_of(gateway) as client:
            await client.open()
            async with client.listen() as events:
                made = await client.ask(request(1, "tools/call", {"task": {}, "_meta": {"progressToken": "t"}}))
                assert made["result"]["task"]["taskId"] == "1"
                tell = gateway.gateway.calls[-1].client.notify
                tell("notifications/progress", {"progress": raw(2)})
                assert (await events.message())["params"] == {"progressToken": "t", "progress": 2}
                with pytest.raises(McpError):
                    await gateway.gateway.calls[-1].client.ask(InputRequest("roots/list", {}))
            async with client.http.delete(client.url, headers=client.headers):
                tell("notifications/progress", {"progress": raw(3)})


async def test_r24_equal_ids_of_two_clients_do_not_meet() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, client_of(gateway) as one, client_of(gateway) as other:
            await one.open()
            await other.open()
            mine = await one.ask(request(1, "tools/call", {"name": "mine"}))
            theirs = await other.ask(request(1, "tools/call", {"name": "theirs"}))
            assert mine["result"]["structuredContent"]["params"]["name"] == "mine"
            assert theirs["result"]["structuredContent"]["params"]["name"] == "theirs"


async def test_a_json_only_client_gets_json_however_much_precedes_it() -> None:
    async with served(answering(reporting)) as gateway, client_of(gateway) as client:
        await client.open()
        params = {"_meta": {"progressToken": 1}}
        assert "result" in await client.ask(request(1, "tools/call", params), accept="application/json")


async def test_r7_a_long_post_becomes_a_stream_with_keep_alives() -> None:
    held = Held()
    proxy = quick(stream_after=0.01, keep_alive=0.01)
    with anyio.fail_after(GUARD):
        async with served(answering(held), proxy) as gateway, client_of(gateway) as client:
            await client.open("2025-03-26")
            async with client.post(request(1, "tools/call")) as response:
                assert response.content_type == "text/event-stream"
                assert await response.content.readuntil(b":\n\n") == b":\n\n"
                held.release.set()
                assert (await EventReader(response).rest())[-1]["id"] == 1


async def test_streams_of_2025_11_25_begin_with_an_event_to_come_back_to() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, client_of(gateway) as client:
            await client.open()
            async with client.post(request(1, "ping"), accept="text/event-stream") as response:
                first = await EventReader(response).next()
            assert first is not None
            assert (first.data, bool(first.id), bool(first.retry)) == (b"", True, True)


async def test_r25_cancelling_reaches_exactly_the_call_that_is_meant() -> None:
    gateway = FakeGateway()
    one, other = Held(), Held()

    async def either(call: Call) -> Outcome:
        return await (one if call.params["name"] == raw("one") else other)(call)

    gateway.answers["tools/call"] = either
    with anyio.fail_after(GUARD):
        async with served(gateway) as running, client_of(running) as client, anyio.create_task_group() as tasks:
            await client.open()
            answers: dict[object, int] = {}

            async def call(id: int | str, name: str) -> None:
                async with client.post(request(id, "tools/call", {"name": name})) as response:
                    answers[id] = response.status

            tasks.start_soon(call, 7, "one")
            tasks.start_soon(call, "7", "other")
            await one.arrived.wait()
            await other.arrived.wait()
            with anyio.fail_after(GUARD):
                await client.tell(notification("notifications/cancelled", {"requestId": 7}))
                await one.cancelled.wait()
            assert not other.cancelled.is_set()
            other.release.set()
        # cancellation: no response is sent for the cancelled request.
        assert answers == {7: 202, "7": 200}


async def test_r25_a_dropped_connection_cancels_nothing_and_the_answer_waits_for_its_client() -> None:
    held = Held()
    with anyio.fail_after(GUARD):
        async with served(answering(held), quick(stream_after=0.01)) as gateway, client_of(gateway) as client:
            await client.open()
            async with client.post(request(1, "tools/call")) as response:
                primer = await EventReader(response).next()
                assert primer is not None
                assert primer.id is not None
                response.close()
            held.release.set()
            async with client.listen(**{"Last-Event-ID": primer.id}) as events:
                assert [message["id"] for message in await events.rest()] == [1]
            assert not held.cancelled.is_set()


async def test_a_resumed_stream_replays_only_its_own_events() -> None:
    with anyio.fail_after(GUARD):
        async with served(answering(reporting)) as gateway, client_of(gateway) as client:
            await client.open()
            ids: list[str] = []
            for id in (1, 2):
                async with client.post(request(id, "tools/call", {"_meta": {"progressToken": id}})) as response:
                    event = await EventReader(response).next()
                    assert event is not None
                    ids.append(event.id or "")
            async with client.listen(**{"Last-Event-ID": ids[0]}) as events:
                progress, result = await events.rest()
            assert (progress["params"]["progressToken"], result["id"]) == (1, 1)


@pytest.mark.parametrize("made_up", ["nothing", "p00-1", "-", "p-9999999999999999", "ü-1"])
async def test_nothing_is_resumed_after_an_event_that_never_was(made_up: str) -> None:
    async with served() as gateway, client_of(gateway) as client:
        await client.open()
        headers = {**client.headers, "Accept": "text/event-stream", "Last-Event-ID": made_up}
        async with client.http.get(client.url, headers=headers) as response:
            assert response.status == 400
            assert "Last-Event-ID" in (await response.json())["error"]["message"]


async def test_changes_are_told_on_the_listening_stream_and_coalesce() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, client_of(gateway) as client:
            await client.open()
            listener = gateway.gateway.present[0]
            for _ in range(200):
                listener.signal(ListChanged(Kind.RESOURCES))
                listener.signal(ListChanged(Kind.TEMPLATES))
                listener.signal(ResourceUpdated("a:b"))
            async with client.listen() as events:
                told = [await events.message(), await events.message()]
                listener.signal(ListChanged(Kind.PROMPTS))
                last = await events.message()
            assert [message["method"] for message in told] == [
                "notifications/resources/list_changed",
                "notifications/resources/updated",
            ]
            assert last["method"] == "notifications/prompts/list_changed"


async def test_r8_of_two_listening_streams_the_newest_is_told_and_the_older_ends() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, client_of(gateway) as client:
            await client.open()
            async with client.listen() as older, client.listen() as newer:
                assert await older.rest() == []
                gateway.gateway.present[0].signal(ListChanged(Kind.TOOLS))
                assert (await newer.message())["method"] == "notifications/tools/list_changed"


async def test_a_question_goes_to_the_stream_of_its_call_and_its_answer_back() -> None:
    gateway = answering(asking("elicitation/create", {"message": "?"}))
    with anyio.fail_after(GUARD):
        async with served(gateway) as running, client_of(running) as client:
            await client.open(capabilities={"elicitation": {}})
            async with client.post(request(1, "tools/call")) as response:
                events = EventReader(response)
                question = await events.message()
                assert question["method"] == "elicitation/create"
                answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}}
                assert await client.tell(answer) == 202
                (result,) = await events.rest()
            assert result["result"]["structuredContent"]["answer"] == {"action": "accept"}


async def test_a_clients_own_error_passes_as_it_is() -> None:
    gateway = answering(asking("sampling/createMessage"))
    with anyio.fail_after(GUARD):
        async with served(gateway) as running, client_of(running) as client:
            await client.open(capabilities={"sampling": {}})
            async with client.post(request(1, "tools/call")) as response:
                events = EventReader(response)
                question = await events.message()
                error = {"code": -1, "message": "User rejected", "data": {"x": 1}}
                await client.tell({"jsonrpc": "2.0", "id": question["id"], "error": error})
                (result,) = await events.rest()
            assert result["error"] == error


async def test_r25_a_question_is_taken_back_when_its_call_is_cancelled() -> None:
    gateway = answering(asking("sampling/createMessage"))
    with anyio.fail_after(GUARD):
        async with served(gateway) as running, client_of(running) as client:
            await client.open(capabilities={"sampling": {}})
            async with client.post(request(1, "tools/call")) as response:
                events = EventReader(response)
                question = await events.message()
                await client.tell(notification("notifications/cancelled", {"requestId": 1}))
                (taken_back,) = await events.rest()
            assert taken_back["method"] == "notifications/cancelled"
            assert taken_back["params"]["requestId"] == question["id"]


async def test_batches_are_answered_together_in_2025_03_26() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, client_of(gateway) as client:
            await client.open("2025-03-26")
            batch = [request(1, "ping"), notification("notifications/initialized"), request("1", "tools/list"), 5]
            async with client.post(batch) as response:
                answers = json.loads(await response.read())
            assert {(type(answer["id"]), answer["id"]) for answer in answers} == {
                (int, 1),
                (str, "1"),
                (type(None), None),
            }
            async with client.post([notification("notifications/initialized")]) as response:
                assert response.status == 202


async def test_a_batch_cannot_open_a_session() -> None:
    async with served() as gateway, client_of(gateway) as client:
        await client.open("2025-03-26")
        async with client.post([initialize()]) as response:
            (answer,) = json.loads(await response.read())
        assert answer["error"]["code"] == -32600


@pytest.mark.parametrize(("version", "size"), [("2025-06-18", 1), ("2025-03-26", 4)])
async def test_batches_elsewhere_and_too_large_ones_are_refused(version: str, size: int) -> None:
    async with served(proxy=quick(LimitSettings(max_batch=3))) as gateway, client_of(gateway) as client:
        await client.open(version)
        async with client.post([request(id, "ping") for id in range(size)]) as response:
            assert response.status == 400
            assert "batch" in (await response.json())["error"]["message"]


async def test_a_duplicate_id_in_flight_is_refused() -> None:
    held = Held()
    with anyio.fail_after(GUARD):
        async with served(answering(held)) as gateway, client_of(gateway) as client:
            await client.open()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.ask, request(1, "tools/call"))
                await held.arrived.wait()
                again = await client.ask(request(1, "tools/call"))
                held.release.set()
            assert again["error"]["code"] == -32600


async def test_calls_at_once_are_bounded_by_session() -> None:
    held = Held()
    with anyio.fail_after(GUARD):
        proxy = quick(LimitSettings(max_calls_per_session=1))
        async with served(answering(held), proxy) as gateway, client_of(gateway) as client:
            await client.open()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.ask, request(1, "tools/call"))
                await held.arrived.wait()
                busy = await client.ask(request(2, "tools/call"))
                assert (await client.ask(request(3, "ping")))["result"] == {}
                held.release.set()
            assert "max_calls_per_session" in busy["error"]["message"]


async def test_r56_a_session_that_never_was_is_404_and_a_missing_one_400() -> None:
    async with served() as gateway, client_of(gateway) as client:
        async with client.post(request(1, "ping"), **{"Mcp-Session-Id": "made-up"}) as response:
            assert response.status == 404
        async with client.post(request(1, "ping")) as response:
            assert response.status == 400


async def test_r56_a_deleted_session_stays_deleted() -> None:
    async with served() as gateway, client_of(gateway) as client:
        await client.open()
        async with client.http.delete(client.url, headers=client.headers) as response:
            assert response.status == 204
        async with client.post(request(1, "ping")) as response:
            assert response.status == 404
        assert gateway.gateway.present == []


async def test_r25_the_end_of_a_session_cancels_its_calls() -> None:
    held = Held()
    with anyio.fail_after(GUARD):
        async with served(answering(held)) as gateway, client_of(gateway) as client:
            await client.open()
            async with anyio.create_task_group() as tasks:

                async def call() -> None:
                    async with client.post(request(1, "tools/call")) as response:
                        assert (response.status, (await response.json())["id"]) == (404, 1)

                tasks.start_soon(call)
                await held.arrived.wait()
                async with client.http.delete(client.url, headers=client.headers):
                    await held.cancelled.wait()


async def test_r56_a_session_outlives_a_restart_under_the_same_secret() -> None:
    capabilities = {"sampling": {}, "roots": {"listChanged": True}}
    async with served() as before, client_of(before) as client:
        await client.open("2025-06-18", capabilities)
        headers = dict(client.headers)
        inner = before.gateway.calls[0].caller.session
    async with served() as after, client_of(after) as client:
        client.headers = headers
        await client.ask(request(1, "tools/list"))
        caller = after.gateway.calls[0].caller
        assert (caller.session, caller.version) == (inner, "2025-06-18")
        assert {key: json.loads(bytes(value)) for key, value in caller.capabilities.items()} == capabilities
        assert caller.info is not None
        assert len(after.gateway.present) == 1
    async with served(secret=b"another") as stranger, client_of(stranger) as client:
        client.headers = headers
        async with client.post(request(1, "ping")) as response:
            assert response.status == 404


async def test_r21_a_session_that_is_opened_again_is_told_to_fetch_the_lists_that_may_have_changed() -> None:
    with anyio.fail_after(GUARD):
        async with served() as before, client_of(before) as client:
            await client.open()
            headers = dict(client.headers)
        async with served() as after, client_of(after) as client:
            client.headers = headers
            assert "result" in await client.ask(request(1, "ping"))
            async with client.listen() as events:
                assert (await events.message())["method"] == "notifications/tools/list_changed"
                after.gateway.present[0].signal(ResourceUpdated("x:1"))
                assert (await events.message())["method"] == "notifications/resources/updated"


async def by_header(request: Request) -> Principal:
    return Principal(request.fields.get("x-user", "nobody"))


async def test_r39_anothers_session_looks_unknown() -> None:
    async with served(identify=IdentifiedBy(by_header)) as gateway, client_of(gateway) as client:
        client.headers["X-User"] = "ann"
        await client.open()
        client.headers["X-User"] = "bob"
        async with client.post(request(1, "ping")) as response:
            assert response.status == 404
        async with client.http.delete(client.url, headers=client.headers) as response:
            assert response.status == 404
        assert len(gateway.gateway.present) == 1


async def test_r39_another_endpoints_session_looks_unknown() -> None:
    async with served() as gateway, client_of(gateway) as client, client_of(gateway, "/servers/up/mcp") as other:
        await client.open()
        other.headers = client.headers
        async with other.post(request(1, "ping")) as response:
            assert response.status == 404


async def test_a_version_that_is_none_is_refused() -> None:
    async with served() as gateway, client_of(gateway) as client:
        await client.open()
        async with client.post(request(7, "ping"), **{"MCP-Protocol-Version": "1999-12-31"}) as response:
            assert response.status == 400
            answer = await response.json()
    assert (answer["id"], answer["error"]["code"]) == (7, -32022)
    assert {"2024-11-05", "2026-07-28"} < set(answer["error"]["data"]["supported"])


async def test_a_newcomer_without_room_is_told_why() -> None:
    async with served(proxy=quick(LimitSettings(max_sessions=1))) as gateway, client_of(gateway) as client:
        await client.open()
        async with client.post(initialize()) as response:
            assert response.status == 503
            assert "max_sessions" in (await response.json())["error"]["message"]


async def test_log_messages_go_out_at_the_sessions_level_and_info_until_it_sets_one() -> None:
    async def chatty(call: Call) -> Outcome:
        for level in ("debug", "info", "error", "nonsense"):
            call.client.notify("notifications/message", {"level": raw(level), "data": raw(level)})
        return Complete(first_level({"content": []}))

    async def heard() -> list[str]:
        async with client.post(request(1, "tools/call"), accept="text/event-stream") as response:
            return [message["params"]["level"] for message in await EventReader(response).rest() if "method" in message]

    with anyio.fail_after(GUARD):
        async with served(answering(chatty)) as gateway, client_of(gateway) as client:
            await client.open()
            assert await heard() == ["info", "error"]
            await client.ask(request(2, "logging/setLevel", {"level": "debug"}))
            assert await heard() == ["debug", "info", "error"]


async def test_a_notification_that_is_a_call_reaches_the_core_and_a_request_without_id_does_not() -> None:
    async with served() as gateway, client_of(gateway) as client:
        await client.open()
        assert await client.tell(notification("tools/call", {"name": "x"})) == 202
        assert await client.tell(notification("notifications/roots/list_changed")) == 202
        await client.ask(request(1, "tools/list"))
        methods = [call.method for call in gateway.gateway.calls]
        assert methods == ["server/discover", "notifications/roots/list_changed", "tools/list"]


@pytest.mark.parametrize(
    "method",
    ["nonsense", "notifications/roots/list_changed", "subscriptions/listen", "server/discover", "tasks/update"],
)
async def test_a_method_that_is_none_here_is_not_found(method: str) -> None:
    async with served() as gateway, client_of(gateway) as client:
        await client.open()
        assert (await client.ask(request(1, method)))["error"]["code"] == -32601


async def test_r54_two_hundred_abandoned_sessions_leave_nothing_behind() -> None:
    proxy = quick(LimitSettings(session_idle=0.4))
    with anyio.fail_after(GUARD):
        async with served(proxy=proxy) as gateway:
            for _ in range(200):
                async with client_of(gateway) as client, client.post(initialize()) as response:
                    assert response.status == 200
            await gateway.gateway.emptied_of(200)
            assert gateway.gateway.present == []
            assert gateway.metric("mcproxy_sessions", transport="http") == 0
            assert gateway.metric("mcproxy_streams", transport="http") == 0


@COMMANDED
async def test_a_session_with_an_open_stream_is_not_idle() -> None:
    # Any session has been idle for longer when they are looked through, which happens as time goes by, and not before.
    proxy = quick(LimitSettings(session_idle=0.000001))
    with anyio.fail_after(GUARD):
        async with served(proxy=proxy) as gateway, client_of(gateway) as client, client_of(gateway) as other:
            await client.open()
            async with client.listen() as events:
                await other.open()
                await commanded_loop().advance(1)
                await gateway.gateway.emptied_of(1)
                mine, *_ = gateway.gateway.joined
                assert mine in gateway.gateway.present
                mine.signal(ListChanged(Kind.TOOLS))
                assert "method" in await events.message()


async def test_r56_a_restart_opens_sessions_again_but_for_those_that_had_subscriptions(tmp_path: Path) -> None:
    def journal() -> SubscriberJournal:
        kept = SubscriberJournal(tmp_path / "subscribers", lambda key: [key])
        kept.load(issued_after=0, now=0)
        return kept

    async with served() as first, client_of(first) as plain, client_of(first) as subscribed:
        first.context.subscribers = journal()
        for client in (plain, subscribed):
            await client.open()
        assert "result" in await subscribed.ask(request(1, "resources/subscribe", {"uri": "x:1"}))
        assert "result" in await subscribed.ask(request(2, "ping"))
    async with served() as second:
        second.context.subscribers = journal()
        for client, status in ((plain, 200), (subscribed, 404)):
            async with client_of(second) as again:
                again.headers = client.headers
                async with again.post(request(3, "ping")) as response:
                    assert response.status == status
