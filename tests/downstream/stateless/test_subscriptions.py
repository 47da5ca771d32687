"""Streams of changes (`subscriptions/listen`), as their clients see them over HTTP."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.subscriptions import ResourceUpdated as Updated
from mcp.shared.subscriptions import ToolsListChanged

from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.clients import Change, InputRequest, ListChanged, Listener, Notice, ResourceUpdated, TaskChanged
from mcproxy.call.errors import McpError, Party
from mcproxy.call.identity import ANONYMOUS
from mcproxy.downstream.stateless.conversation import admit
from mcproxy.downstream.stateless.subscriptions import (
    TRANSITIONS,
    ListenEvent,
    ListenState,
    Subscription,
    SubscriptionFilter,
    read_filter,
)
from mcproxy.protocol.jsonrpc import (
    INTERNAL_ERROR,
    ErrorObject,
    ErrorResponse,
    Message,
    Notification,
    Request,
    Response,
    first_level,
    parse_message,
    parse_object,
    raw,
)
from mcproxy.protocol.methods import Kind
from mcproxy.settings import LimitSettings
from tests.downstream.modern import PREFIX, SUBSCRIPTION, modern_client_of, request
from tests.fakes.gateway import FakeGateway, Held, Served, edge_of, nobody_waits, quick, served
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

TOOLS = {"toolsListChanged": True}


def listen(notifications: Any, id: int | str = 1) -> dict[str, Any]:
    return request(id, "subscriptions/listen", {"notifications": notifications})


def signal(gateway: Served, *changes: Change) -> Listener:
    (listener,) = gateway.gateway.present
    for change in changes:
        listener.signal(change)
    return listener


async def streams_are(gateway: Served, many: int) -> None:
    while gateway.metric("mcproxy_streams", transport="http") != many:
        await anyio.lowlevel.checkpoint()


async def offering_everything(call: Call) -> Outcome:
    told = {"listChanged": True}
    return Complete(
        first_level({"capabilities": {"tools": told, "prompts": told, "resources": {**told, "subscribe": True}}})
    )


def open_gateway() -> FakeGateway:
    gateway = FakeGateway()
    gateway.answers["server/discover"] = offering_everything
    return gateway


@pytest.mark.parametrize("id", [1, "1", "s-1", 0])
async def test_the_acknowledgement_comes_first_and_all_is_tagged_with_the_requests_id(id: int | str) -> None:
    with anyio.fail_after(GUARD):
        async with (
            served() as gateway,
            modern_client_of(gateway) as client,
            client.stream(listen({**TOOLS, "resourceSubscriptions": ["a://b"]}, id)) as events,
        ):
            acknowledged = await events.message()
            assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
            assert acknowledged["params"]["notifications"] == {**TOOLS, "resourceSubscriptions": ["a://b"]}
            more, plain = {"_meta": raw({"k": 1})}, {"title": raw("t")}
            signal(gateway, ListChanged(Kind.TOOLS), ResourceUpdated("a://b", more), ResourceUpdated("a://c", plain))
            changed, updated, other = [await events.message() for _ in range(3)]
            assert changed["method"] == "notifications/tools/list_changed"
            assert updated["params"]["uri"] == "a://b"
            assert updated["params"]["_meta"] == {"k": 1, SUBSCRIPTION: id}
            assert other["params"] == {"title": "t", "uri": "a://c", "_meta": {SUBSCRIPTION: id}}
            for message in (acknowledged, changed):
                assert message["params"]["_meta"][SUBSCRIPTION] == id


async def test_r20_only_what_can_be_delivered_is_honoured() -> None:
    async def refuse_some(call: Call) -> Outcome:
        assert call.listener is not None
        if b"refused" in bytes(call.params["uri"]):
            return Failed(ErrorObject(-32602, "no"), Party.UPSTREAM)
        return Complete({})

    gateway = FakeGateway()
    gateway.answers["resources/subscribe"] = refuse_some
    wanted = {
        "toolsListChanged": True,
        "promptsListChanged": True,
        "resourcesListChanged": True,
        "resourceSubscriptions": ["a://ok", "a://refused", "a://too", "a://ok"],
    }
    with anyio.fail_after(GUARD):
        async with (
            served(gateway) as running,
            modern_client_of(running) as client,
            client.stream(listen(wanted)) as events,
        ):
            acknowledged = await events.message()
            honoured = {"toolsListChanged": True, "resourceSubscriptions": ["a://ok", "a://too"]}
            assert acknowledged["params"]["notifications"] == honoured


async def test_nothing_is_told_that_was_not_asked_for() -> None:
    with anyio.fail_after(GUARD):
        async with (
            served(open_gateway()) as gateway,
            modern_client_of(gateway) as client,
            client.stream(listen({"promptsListChanged": True, "toolsListChanged": False})) as events,
        ):
            await events.message()
            signal(
                gateway,
                ListChanged(Kind.TOOLS),
                ListChanged(Kind.RESOURCES),
                ResourceUpdated("a://b"),
                Notice("notifications/message", {"level": raw("error"), "data": raw(1)}, "error"),
                Notice("notifications/elicitation/complete", {"elicitationId": raw("e")}),
                ListChanged(Kind.PROMPTS),
            )
            assert (await events.message())["method"] == "notifications/prompts/list_changed"


TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


def listen_as_able(*ids: str, **flags: bool) -> dict[str, Any]:
    """From a client that has tasks of the extension."""
    named = {"notifications": {"taskIds": ids, **flags}}
    return request(1, "subscriptions/listen", named, {f"{PREFIX}/clientCapabilities": TASKS})


async def test_of_tasks_those_are_acknowledged_and_told_of_that_the_gateway_agrees_to() -> None:
    async def agree_to_some(call: Call) -> Outcome:
        assert call.listener is not None
        assert call.params == {"notifications": raw({"taskIds": ["1", "2", "3"]})}
        return Complete(first_level({"notifications": {"taskIds": ["3", "1"]}}))

    gateway = open_gateway()
    gateway.answers["subscriptions/listen"] = agree_to_some
    with anyio.fail_after(GUARD):
        async with (
            served(gateway) as running,
            modern_client_of(running) as client,
            client.stream(listen_as_able("1", "2", "3", "1", toolsListChanged=True)) as events,
        ):
            honoured = (await events.message())["params"]["notifications"]
            assert honoured == {"toolsListChanged": True, "taskIds": ["1", "3"]}
            times = {"createdAt": "now", "lastUpdatedAt": "now", "ttlMs": None}
            state = {"status": "cancelled", **times}
            changes = [
                TaskChanged(id, "notifications/tasks", parse_object(raw({"taskId": id, **state}))) for id in "23"
            ]
            signal(running, *changes)
            told = await events.message()
            assert told["method"] == "notifications/tasks"
            assert told["params"] == {"taskId": "3", **state, "_meta": {SUBSCRIPTION: 1}}


async def test_a_gateway_that_agrees_to_no_task_harms_no_other_wish() -> None:
    with anyio.fail_after(GUARD):
        async with (
            served(open_gateway()) as gateway,
            modern_client_of(gateway) as client,
            client.stream(listen_as_able("1", toolsListChanged=True)) as events,
        ):
            assert (await events.message())["params"]["notifications"] == {"toolsListChanged": True}


async def test_tasks_are_named_by_those_alone_who_declare_them_and_not_without_bound() -> None:
    with anyio.fail_after(GUARD):
        async with served(open_gateway()) as gateway, modern_client_of(gateway) as client:
            status, refused = await client.answer(listen({"taskIds": ["1"]}))
    assert status == 400
    assert refused["error"]["code"] == -32021
    assert refused["error"]["data"] == {"requiredCapabilities": TASKS}
    with pytest.raises(McpError, match="max_tasks_per_session"):
        read_filter({"notifications": raw({"taskIds": ["1", "2"]})}, LimitSettings(max_tasks_per_session=1))
    with pytest.raises(McpError, match="taskIds"):
        read_filter({"notifications": raw({"taskIds": [1]})}, LimitSettings())


def test_a_request_that_names_no_changes_at_all_is_told_what_it_lacks() -> None:
    with pytest.raises(McpError, match='"notifications" is missing'):
        read_filter({}, LimitSettings())


async def test_r23_a_storm_of_changes_is_told_once() -> None:
    with anyio.fail_after(GUARD):
        async with (
            served(open_gateway()) as gateway,
            modern_client_of(gateway) as client,
            client.stream(listen({"resourcesListChanged": True, "resourceSubscriptions": ["a://b"]})) as events,
        ):
            await events.message()
            changes: list[Change] = [ListChanged(Kind.RESOURCES), ListChanged(Kind.TEMPLATES), ResourceUpdated("a://b")]
            signal(gateway, *changes * 200).signal(ResourceUpdated("a://last"))
            methods = [(await events.message())["method"] for _ in range(3)]
            assert methods == [
                "notifications/resources/list_changed",
                "notifications/resources/updated",
                "notifications/resources/updated",
            ]


async def test_changes_before_the_acknowledgement_come_after_it() -> None:
    held = Held()
    gateway = open_gateway()
    gateway.answers["resources/subscribe"] = held
    with anyio.fail_after(GUARD):
        async with (
            served(gateway, quick(stream_after=0.01)) as running,
            modern_client_of(running) as client,
            client.stream(listen({**TOOLS, "resourceSubscriptions": ["a://b"]})) as events,
        ):
            await held.arrived.wait()
            signal(running, ListChanged(Kind.TOOLS))
            held.release.set()
            assert (await events.message())["method"] == "notifications/subscriptions/acknowledged"
            assert (await events.message())["method"] == "notifications/tools/list_changed"


async def test_r25_leaving_ends_the_subscription_and_no_other() -> None:
    with anyio.fail_after(GUARD):
        async with (
            served() as gateway,
            modern_client_of(gateway) as leaving,
            modern_client_of(gateway) as staying,
            staying.stream(listen(TOOLS)) as events,
        ):
            await events.message()
            async with leaving.stream(listen(TOOLS)) as gone:
                await gone.message()
                assert gateway.metric("mcproxy_streams", transport="http") == 2
            await gateway.gateway.emptied_of(1)
            await streams_are(gateway, 1)
            signal(gateway, ListChanged(Kind.TOOLS))
            assert (await events.message())["method"] == "notifications/tools/list_changed"


async def test_leaving_while_an_upstream_is_asked_cancels_that() -> None:
    held = Held()
    gateway = FakeGateway()
    gateway.answers["resources/subscribe"] = held
    with anyio.fail_after(GUARD):
        async with served(gateway, quick(stream_after=0.01)) as running, modern_client_of(running) as client:
            async with client.stream(listen({"resourceSubscriptions": ["a://b"]})):
                await held.arrived.wait()
            await held.cancelled.wait()
            await gateway.emptied_of(1)


async def test_r9_a_gateway_that_stops_ends_streams_with_their_closing_result() -> None:
    with anyio.fail_after(GUARD):
        async with (
            served() as gateway,
            modern_client_of(gateway) as client,
            client.stream(listen(TOOLS, "s")) as events,
        ):
            await events.message()
            gateway.stop.set()
            (closing,) = await events.rest()
            assert (closing["id"], closing["result"]["resultType"]) == ("s", "complete")
            assert closing["result"]["_meta"][SUBSCRIPTION] == "s"


async def test_r7_a_quiet_stream_is_kept_alive() -> None:
    with anyio.fail_after(GUARD):
        async with (
            served(proxy=quick(keep_alive=0.01)) as gateway,
            modern_client_of(gateway) as client,
            client.stream(listen(TOOLS)) as events,
        ):
            await events.events.response.content.readuntil(b"\n:\n\n:\n\n")


@pytest.mark.parametrize(
    "notifications",
    [None, [], {"toolsListChanged": "yes"}, {"resourceSubscriptions": "a://b"}, {"resourceSubscriptions": [1]}],
)
async def test_an_ill_typed_filter_is_invalid_params(notifications: Any) -> None:
    async with served() as gateway, modern_client_of(gateway) as client:
        status, answer = await client.answer(listen(notifications))
        assert (status, answer["error"]["code"]) == (400, -32602)
        assert not gateway.gateway.joined


async def test_a_filter_may_write_null_for_what_it_leaves_out() -> None:
    wanted = {"toolsListChanged": True, "promptsListChanged": None, "resourceSubscriptions": None, "taskIds": None}
    asked = parse_message(json.dumps(listen(wanted)).encode())
    assert isinstance(asked, Request)
    assert read_filter(asked.params, LimitSettings()) == SubscriptionFilter(frozenset({"toolsListChanged"}))
    async with edge_of(open_gateway()) as context:
        Subscription(context, admit(context, asked, ANONYMOUS, ""), Outlet())


async def test_too_many_resources_are_refused() -> None:
    limits = LimitSettings(max_subscriptions_per_session=2)
    async with served(proxy=quick(limits)) as gateway, modern_client_of(gateway) as client:
        status, answer = await client.answer(listen({"resourceSubscriptions": ["a:1", "a:2", "a:3"]}))
        assert (status, answer["error"]["code"]) == (400, -32602)
        assert "max_subscriptions_per_session" in answer["error"]["message"]


async def test_r54_too_many_streams_are_refused_and_room_is_made_by_leaving() -> None:
    with anyio.fail_after(GUARD):
        async with served(proxy=quick(LimitSettings(max_sessions=1))) as gateway, modern_client_of(gateway) as client:
            async with client.stream(listen(TOOLS)) as events:
                await events.message()
                status, answer = await client.answer(listen(TOOLS, 2))
                assert status == 503
                assert "max_sessions" in answer["error"]["message"]
            await gateway.gateway.emptied_of(1)
            await streams_are(gateway, 0)
            async with client.stream(listen(TOOLS, 3)) as events:
                await events.message()


async def test_a_client_that_takes_json_alone_cannot_listen() -> None:
    async with (
        served() as gateway,
        modern_client_of(gateway) as client,
        client.post(listen(TOOLS, "s"), accept="application/json") as response,
    ):
        assert (response.status, (await response.json())["id"]) == (406, "s")


async def test_where_nothing_is_known_of_the_offer_the_request_fails() -> None:
    async def down(call: Call) -> Outcome:
        raise McpError(INTERNAL_ERROR, "down")

    gateway = FakeGateway()
    gateway.answers["server/discover"] = down
    async with served(gateway) as running, modern_client_of(running) as client:
        status, answer = await client.answer(listen(TOOLS))
        assert (status, answer["error"]["message"]) == (200, "down")
        assert gateway.left == gateway.joined


async def test_a_listener_of_this_era_is_asked_nothing_and_logs_nothing() -> None:
    with anyio.fail_after(GUARD):
        async with (
            served() as gateway,
            modern_client_of(gateway) as client,
            client.stream(request(1, "subscriptions/listen", {"notifications": TOOLS}, {f"{PREFIX}/logLevel": "info"})),
        ):
            while not gateway.gateway.present:
                await anyio.lowlevel.checkpoint()
            (listener,) = gateway.gateway.present
            assert listener.caller.session is None
            with pytest.raises(McpError):
                await listener.ask(InputRequest("roots/list", {}))


async def test_r54_abandoned_streams_leave_nothing_behind() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway:
            for _ in range(5):
                async with anyio.create_task_group() as tasks:
                    for _ in range(20):
                        tasks.start_soon(abandon, gateway)
            await gateway.gateway.emptied_of(100)
            await streams_are(gateway, 0)


async def abandon(gateway: Served) -> None:
    async with modern_client_of(gateway) as client, client.stream(listen(TOOLS)) as events:
        await events.message()
        events.events.response.close()


async def test_the_official_client_listens() -> None:
    with anyio.fail_after(GUARD):
        async with (
            served(open_gateway()) as gateway,
            Client(f"{gateway.url}/mcp") as client,
            client.listen(tools_list_changed=True, resource_subscriptions=["a://b"]) as subscription,
        ):
            assert subscription.honored.tools_list_changed
            assert subscription.honored.resource_subscriptions == ["a://b"]
            signal(gateway, ListChanged(Kind.TOOLS), ResourceUpdated("a://b"))
            assert isinstance(await anext(subscription), ToolsListChanged)
            assert await anext(subscription) == Updated(uri="a://b")
            gateway.stop.set()
            with pytest.raises(StopAsyncIteration):
                await anext(subscription)


def test_a_filter_keeps_what_it_knows_and_each_resource_once() -> None:
    params = {"notifications": raw({"toolsListChanged": True, "x": 1, "resourceSubscriptions": ["b:", "a:", "b:"]})}
    assert read_filter(params, LimitSettings(max_subscriptions_per_session=2)) == SubscriptionFilter(
        frozenset({"toolsListChanged"}), ("b:", "a:")
    )


@pytest.mark.parametrize("member", ["resourceSubscriptions", "taskIds"])
def test_r78_a_filter_that_names_far_too_much_is_not_read(member: str) -> None:
    params = {"notifications": raw({member: [f"{number:x}\\" for number in range(100_000)]})}
    tracemalloc.start()
    try:
        with pytest.raises(McpError, match=f"{member} names too much for one subscription; at most 1000"):
            read_filter(params, LimitSettings(max_tasks_per_session=1000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(params["notifications"])


@pytest.mark.parametrize("end", ["", "\\", '"', '\\"'])
def test_a_filter_may_name_as_much_as_there_is_room_for_and_each_twice(end: str) -> None:
    uris = [f"a:{number}{end}" for number in range(5)]
    params = {"notifications": raw({"resourceSubscriptions": [*uris, *uris]})}
    assert read_filter(params, LimitSettings(max_subscriptions_per_session=5)).uris == tuple(uris)


def test_a_filter_of_nothing_is_one() -> None:
    assert read_filter({"notifications": raw({})}, LimitSettings()) == SubscriptionFilter()
    assert not SubscriptionFilter().members()


async def test_r54_a_stream_goes_on_without_a_task_and_ends_with_its_connection() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, modern_client_of(gateway) as client:
            async with client.stream(listen({"resourceSubscriptions": ["a://b"]})) as events:
                await events.message()
                await nobody_waits()
                signal(gateway, ResourceUpdated("a://b"))
                assert (await events.message())["params"]["uri"] == "a://b"
            await streams_are(gateway, 0)
            assert gateway.gateway.present == []


async def test_r21_a_list_whose_changes_were_awaited_before_is_told_as_changed_when_they_are_again() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, modern_client_of(gateway) as client:
            for number in (1, 2):
                wanted = {"toolsListChanged": True, "resourceSubscriptions": ["a://b"]}
                async with client.stream(listen(wanted, number)) as events:
                    assert (await events.message())["method"] == "notifications/subscriptions/acknowledged"
                    if number == 2:
                        told = [(await events.message())["method"] for _ in range(2)]
                        assert told == ["notifications/tools/list_changed", "notifications/resources/updated"]
                await gateway.gateway.emptied_of(number)


async def test_r21_what_was_watched_before_is_told_as_updated_when_it_is_watched_again() -> None:
    with anyio.fail_after(GUARD):
        async with served() as gateway, modern_client_of(gateway) as client:
            async with client.stream(listen({"resourceSubscriptions": ["a://b", "a://c"]})) as events:
                await events.message()
            await gateway.gateway.emptied_of(1)
            async with client.stream(listen({"resourceSubscriptions": ["a://b", "a://d"]}, 2)) as events:
                assert (await events.message())["method"] == "notifications/subscriptions/acknowledged"
                updated = await events.message()
                assert updated["params"] == {"uri": "a://b", "_meta": {SUBSCRIPTION: 2}}
                signal(gateway, ResourceUpdated("a://d"))
                assert (await events.message())["params"]["uri"] == "a://d"


@dataclass
class Outlet:
    """Remembers what a stream's client is sent (implements `SubscriptionOutlet`)."""

    sent: list[Message] = field(default_factory=list)

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def put(self, notification: bytes, *, droppable: bool) -> None:
        self.sent.append(parse_message(notification))

    def notify_writer(self) -> None:
        return


@dataclass
class Driven:
    """A real stream, its gateway, and what its client is sent."""

    gateway: FakeGateway
    outlet: Outlet
    stream: Subscription

    async def take(self, event: ListenEvent) -> None:
        match event:
            case ListenEvent.ACKNOWLEDGED:
                await self.stream.begin()
            case ListenEvent.REFUSED:
                del self.gateway.answers["server/discover"]
                await self.stream.begin()
            case ListenEvent.CLOSED:
                self.stream.close()
            case ListenEvent.LET_GO:
                self.stream.end()

    async def to(self, state: ListenState) -> None:
        for event in WAYS[state]:
            await self.take(event)
        assert self.stream.state is state


WAYS: dict[ListenState, list[ListenEvent]] = {
    ListenState.SUBSCRIBING: [],
    ListenState.CLOSING: [ListenEvent.CLOSED],
    ListenState.OPEN: [ListenEvent.ACKNOWLEDGED],
    ListenState.ANSWERED: [ListenEvent.ACKNOWLEDGED, ListenEvent.CLOSED],
    ListenState.ENDED: [ListenEvent.LET_GO],
}
"""The events that lead to each state."""

SENT: dict[tuple[ListenState, ListenEvent], list[type]] = {
    (ListenState.SUBSCRIBING, ListenEvent.ACKNOWLEDGED): [Notification],
    (ListenState.SUBSCRIBING, ListenEvent.REFUSED): [ErrorResponse],
    (ListenState.CLOSING, ListenEvent.REFUSED): [ErrorResponse],
    (ListenState.OPEN, ListenEvent.CLOSED): [Response],
}
"""What the client is sent on each edge; on the others nothing."""

EDGES = [(state, event, after) for state, row in TRANSITIONS.items() for event, after in row.items()]


@asynccontextmanager
async def driven() -> AsyncIterator[Driven]:
    gateway, outlet = open_gateway(), Outlet()
    async with edge_of(gateway) as context:
        asked = parse_message(json.dumps(listen(TOOLS)).encode())
        assert isinstance(asked, Request)
        yield Driven(gateway, outlet, Subscription(context, admit(context, asked, ANONYMOUS, ""), outlet))


@pytest.mark.parametrize(("state", "event", "after"), EDGES, ids=lambda each: each.name)
async def test_every_edge_leads_where_the_table_says_and_sends_no_more_than_its_message(
    state: ListenState, event: ListenEvent, after: ListenState
) -> None:
    async with driven() as d:
        await d.to(state)
        d.outlet.sent.clear()
        await d.take(event)
        assert d.stream.state is after
        assert [type(message) for message in d.outlet.sent] == SENT.get((state, event), [])


@pytest.mark.parametrize("state", ListenState)
async def test_an_open_stream_alone_sends_changes(state: ListenState) -> None:
    async with driven() as d:
        await d.to(state)
        d.outlet.sent.clear()
        d.stream.signal(ListChanged(Kind.TOOLS))
        d.stream.send_changes()
        assert len(d.outlet.sent) == (state is ListenState.OPEN)


@pytest.mark.parametrize("happens", [Subscription.close, Subscription.end], ids=lambda each: each.__name__)
async def test_a_stream_that_has_ended_may_be_closed_and_ended_again(happens: Callable[[Subscription], None]) -> None:
    async with driven() as d:
        await d.to(ListenState.ENDED)
        happens(d.stream)
        assert (d.stream.state, d.outlet.sent) == (ListenState.ENDED, [])


@pytest.mark.parametrize("refused", [False, True])
async def test_what_comes_of_a_request_whose_stream_has_ended_is_sent_to_nobody(refused: bool) -> None:
    held = Held()

    async def answer(call: Call) -> Outcome:
        await held(call)
        if refused:
            raise McpError(INTERNAL_ERROR, "no")
        return await offering_everything(call)

    with anyio.fail_after(GUARD):
        async with driven() as d, anyio.create_task_group() as tasks:
            d.gateway.answers["server/discover"] = answer
            tasks.start_soon(d.stream.begin)
            await held.arrived.wait()
            d.stream.end()
            held.release.set()
    assert (d.stream.state, d.outlet.sent) == (ListenState.ENDED, [])
