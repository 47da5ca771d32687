"""The one stream of changes of an upstream: what it asks for, and when it is opened anew."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import product
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from mcproxy.call.calls import Complete, Failed, Outcome
from mcproxy.call.clients import Change, ListChanged, ResourceUpdated, TaskChanged
from mcproxy.call.errors import Reason
from mcproxy.call.upstreams import PushChannel, UnannouncedLists
from mcproxy.pending_requests import PeerGone
from mcproxy.protocol.jsonrpc import (
    METHOD_NOT_FOUND,
    ErrorObject,
    ErrorResponse,
    Notification,
    Params,
    RequestId,
    Response,
    raw,
)
from mcproxy.protocol.methods import ACKNOWLEDGED, Kind
from mcproxy.settings import UpstreamSettings, UpstreamTimeouts
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.stateless.subscriptions import ListenStream
from tests.timeouts import GUARD
from tests.upstream.support import decoded, failure, request

pytestmark = pytest.mark.anyio

TOOLS = frozenset({"toolsListChanged"})
NOTHING: frozenset[str] = frozenset()
SECRET = "sentinel-123456"
METRICS = Metrics()


@dataclass(eq=False)
class Stream:
    """One `subscriptions/listen` as the server has it. `ending` is returned or raised once it is over."""

    id: RequestId
    asked: dict[str, Any]
    ended: anyio.Event = field(default_factory=anyio.Event)
    closed: anyio.Event = field(default_factory=anyio.Event)
    ending: Response | ErrorResponse | Exception = field(default_factory=lambda: Response(1, {}))

    def end(self, how: Response | ErrorResponse | Exception) -> None:
        self.ending = how
        self.ended.set()


class Server:
    """Satisfies `subscriptions.Listen`. Acknowledges what `honours` leaves of a filter, unless `silent`."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.honours: Callable[[dict[str, Any]], dict[str, Any]] = lambda asked: asked
        self.silent = False
        self.refusal: ErrorObject | None = None
        self.acknowledge: Callable[[RequestId, dict[str, Any]], object] = lambda *_: None
        self._more = anyio.Event()

    async def __call__(self, params: Params, begun: Callable[[RequestId], None]) -> Response | ErrorResponse:
        stream = Stream(len(self.streams) + 1, decoded(params["notifications"]))
        begun(stream.id)
        self.streams.append(stream)
        self._more.set()
        self._more = anyio.Event()
        if self.refusal is not None:
            return ErrorResponse(stream.id, self.refusal)
        if not self.silent:
            self.acknowledge(stream.id, self.honours(stream.asked))
        try:
            await stream.ended.wait()
        finally:
            stream.closed.set()
        if isinstance(stream.ending, Exception):
            raise stream.ending
        return stream.ending

    async def has(self, count: int) -> Stream:
        """The stream that is opened as the `count`-th."""
        while len(self.streams) < count:
            await self._more.wait()
        return self.streams[count - 1]


@dataclass
class Running:
    context: LinkContext
    subscriptions: ListenStream
    server: Server
    published: list[Change | PushChannel | UnannouncedLists]
    failures: list[int]

    def tell(self, method: str, id: RequestId, *, cause: RequestId | None = None, **params: Any) -> bool:
        meta = {"io.modelcontextprotocol/subscriptionId": id, "kept": 1}
        told = {key: raw(value) for key, value in {**params, "_meta": meta}.items()}
        return self.subscriptions.take(Notification(method, told), cause)

    async def subscribe(self, uri: str) -> Outcome:
        return await self.subscriptions.subscribe(request("resources/subscribe", uri=uri))

    async def listen(self, *ids: str) -> Outcome:
        return await self.subscriptions.listen(request("subscriptions/listen", notifications={"taskIds": ids}))

    async def unsubscribe(self, uri: str) -> Outcome:
        return await self.subscriptions.unsubscribe(request("resources/unsubscribe", uri=uri))


@asynccontextmanager
async def running(flags: frozenset[str] = NOTHING, *, idle: float = GUARD) -> AsyncIterator[Running]:
    spec = UpstreamSettings(
        name="u", prefix="u", url="http://a", headers={"Key": SECRET}, timeouts=UpstreamTimeouts(idle=idle)
    )
    published: list[Change | PushChannel | UnannouncedLists] = []
    failures: list[int] = []

    def delays(count: int) -> float:
        failures.append(count)
        return 0

    server = Server()
    context = LinkContext(spec, METRICS, published.append)
    it = Running(context, ListenStream(context, flags, server, delays), server, published, failures)
    server.acknowledge = lambda id, honoured: it.tell(ACKNOWLEDGED, id, notifications=honoured)
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.subscriptions.run)
            await it.subscriptions.report()
            await turns()
            yield it
            tasks.cancel_scope.cancel()


async def test_no_listen_stream_is_opened_for_an_empty_filter() -> None:
    async with running() as it:
        await it.subscriptions.begin(5)
        assert it.server.streams == []


async def test_lists_are_listened_to_from_the_beginning() -> None:
    async with running(TOOLS) as it:
        await it.subscriptions.begin(5)
        assert [stream.asked for stream in it.server.streams] == [{"toolsListChanged": True}]
        assert it.published == []


async def test_changes_are_published_without_what_belongs_to_the_hop() -> None:
    async with running(TOOLS) as it:
        assert it.tell("notifications/tools/list_changed", 1)
        assert it.tell("notifications/resources/list_changed", 1)
        assert it.tell("notifications/resources/updated", 1, uri="a:1")
    *lists, updated = it.published
    made_of_resources = (Kind.RESOURCES, Kind.TEMPLATES, Kind.SKILLS)
    assert lists == [ListChanged(Kind.TOOLS), *map(ListChanged, made_of_resources)]
    assert isinstance(updated, ResourceUpdated)
    assert (updated.uri, decoded(updated.params["_meta"])) == ("a:1", {"kept": 1})


async def test_a_change_that_names_no_stream_is_of_the_one_that_is_open() -> None:
    async with running() as it:
        untagged = [
            Notification("notifications/tools/list_changed", {}),
            Notification("notifications/resources/updated", {"uri": raw("a:1")}),
            Notification(ACKNOWLEDGED, {"notifications": raw({})}),
        ]
        assert [it.subscriptions.take(told, None) for told in untagged] == [False, False, False]
        await it.subscribe("a:1")
        assert [it.subscriptions.take(told, None) for told in untagged] == [True, True, False]
    assert it.published == [ListChanged(Kind.TOOLS), ResourceUpdated("a:1", {"uri": raw("a:1")})]


async def test_tasks_are_asked_for_beside_all_else_and_replaced_without_a_gap() -> None:
    async with running(TOOLS) as it:
        await it.subscribe("a:1")
        it.server.honours = lambda asked: {**asked, "taskIds": [id for id in asked["taskIds"] if id != "no"]}
        outcome = await it.listen("1", "no")
        assert isinstance(outcome, Complete)
        assert decoded(raw(outcome.result)) == {"notifications": {"taskIds": ["1"]}}
        two, three = it.server.streams[-2:]
        assert three.asked == {"toolsListChanged": True, "resourceSubscriptions": ["a:1"], "taskIds": ["1", "no"]}
        await two.closed.wait()
        await it.listen("2")
        assert (await it.server.has(4)).asked["taskIds"] == ["2"]
        assert PushChannel.LOST not in it.published


async def test_a_tasks_state_is_published_without_what_belongs_to_the_hop() -> None:
    async with running() as it:
        await it.listen("1")
        assert it.tell("notifications/tasks", 1, taskId="1", status="working")
        assert not it.tell("notifications/tasks", 1, status="working")
    [changed] = it.published
    assert isinstance(changed, TaskChanged)
    assert (changed.id, changed.method) == ("1", "notifications/tasks")
    assert decoded(raw(changed.params)) == {"taskId": "1", "status": "working", "_meta": {"kept": 1}}


async def test_a_task_that_is_told_of_no_longer_puts_nothing_in_doubt() -> None:
    async with running(TOOLS) as it:
        await it.listen("1")
        it.server.honours = lambda asked: {"toolsListChanged": True, "resourceSubscriptions": ["a:1"]}
        await it.subscribe("a:1")
        assert it.published == []
        assert isinstance(await it.listen(), Complete)


async def test_a_link_that_ends_while_tasks_are_asked_for_says_so() -> None:
    async with running() as it:
        it.server.silent = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_gone, it)
            await it.server.has(1)
            it.subscriptions.close("it was closed")


async def _gone(it: Running) -> None:
    with pytest.raises(PeerGone, match="it was closed"):
        await it.listen("1")


async def test_what_belongs_to_no_stream_or_says_nothing_is_not_taken() -> None:
    async with running(TOOLS) as it:
        assert not it.tell("notifications/tools/list_changed", 7)
        assert not it.tell("notifications/tools/list_changed", 1, cause=7)
        assert not it.tell("notifications/resources/updated", 1)
        assert not it.tell("notifications/odd", 1)
        assert not it.subscriptions.take(Notification("notifications/tools/list_changed", {"_meta": raw(1)}), None)
    assert it.published == []


async def test_r22_a_subscription_is_answered_once_the_server_agreed() -> None:
    async with running(TOOLS) as it:
        assert isinstance(await it.subscribe("a:1"), Complete)
        assert it.server.streams[-1].asked == {"toolsListChanged": True, "resourceSubscriptions": ["a:1"]}


async def test_the_old_stream_is_closed_only_when_the_new_one_is_acknowledged() -> None:
    async with running(TOOLS) as it:
        it.server.silent = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.subscribe, "a:1")
            await it.server.has(2)
            await anyio.wait_all_tasks_blocked()
            assert not it.server.streams[0].closed.is_set()
            assert it.tell("notifications/tools/list_changed", 1)
            it.server.acknowledge(2, it.server.streams[1].asked)
        await it.server.streams[0].closed.wait()
        assert not it.server.streams[1].closed.is_set()
    assert it.published == [ListChanged(Kind.TOOLS)]


async def test_a_burst_of_subscriptions_takes_few_streams() -> None:
    async with running() as it:
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(it.subscribe, f"a:{number}")
        assert len(it.server.streams) <= 2
        assert len(it.server.streams[-1].asked["resourceSubscriptions"]) == 100


async def test_r20_a_resource_that_the_acknowledgement_leaves_out_is_refused_by_name() -> None:
    async with running(TOOLS) as it:
        it.server.honours = lambda asked: {**asked, "resourceSubscriptions": []}
        assert "does not report updates of a:1" in failure(await it.subscribe("a:1")).error.message
        await anyio.wait_all_tasks_blocked()
        assert len(it.server.streams) == 2


async def test_a_refused_stream_refuses_what_was_new_and_leaves_the_rest_as_it_was() -> None:
    async with running() as it:
        await it.subscribe("a:1")
        it.server.refusal = ErrorObject(-32602, "no such resource", raw({"uri": "a:2"}))
        assert failure(await it.subscribe("a:2")).error == it.server.refusal
        await anyio.wait_all_tasks_blocked()
        assert not it.server.streams[0].closed.is_set()
        assert len(it.server.streams) == 2


async def test_r44_a_refusal_that_quotes_a_secret_does_not_show_it() -> None:
    async with running() as it:
        it.server.refusal = ErrorObject(-32602, f"no {SECRET}", raw({"key": SECRET}))
        shown = ErrorObject(-32602, "no [redacted]", raw({"key": "[redacted]"}))
        assert failure(await it.subscribe("a:1")).error == shown


async def test_unsubscribing_narrows_the_stream_and_the_last_ends_it() -> None:
    async with running() as it:
        await it.subscribe("a:1")
        await it.subscribe("a:2")
        assert isinstance(await it.unsubscribe("a:1"), Complete)
        narrowed = await it.server.has(3)
        assert narrowed.asked == {"resourceSubscriptions": ["a:2"]}
        await it.unsubscribe("a:2")
        await narrowed.closed.wait()
        assert isinstance(await it.unsubscribe("a:2"), Complete)
        assert len(it.server.streams) == 3


async def test_r21_after_a_loss_everything_may_have_changed() -> None:
    async with running(TOOLS) as it:
        await it.subscriptions.begin(5)
        await it.subscribe("a:1")
        assert it.published == []
        it.server.streams[-1].end(PeerGone("dropped"))
        reopened = await it.server.has(3)
        await anyio.wait_all_tasks_blocked()
        assert reopened.asked == {"toolsListChanged": True, "resourceSubscriptions": ["a:1"]}
    assert it.published == [PushChannel.LOST, PushChannel.RESTORED]


async def test_a_loss_is_told_at_once_and_its_end_once_the_new_stream_is_acknowledged() -> None:
    async with running() as it:
        await it.subscribe("a:1")
        it.server.silent = True
        it.server.streams[0].end(PeerGone("dropped"))
        reopened = await it.server.has(2)
        assert it.published == [PushChannel.LOST]
        it.server.acknowledge(reopened.id, reopened.asked)
        await anyio.wait_all_tasks_blocked()
        assert it.published == [PushChannel.LOST, PushChannel.RESTORED]


async def test_where_nothing_is_wanted_any_more_nothing_goes_unheard() -> None:
    async with running() as it:
        await it.subscribe("a:1")
        it.server.streams[0].end(PeerGone("dropped"))
        await it.unsubscribe("a:1")
        await anyio.wait_all_tasks_blocked()
        assert it.published == [PushChannel.LOST, PushChannel.RESTORED]
        assert len(it.server.streams) == 1


async def test_what_the_next_stream_leaves_out_has_to_be_subscribed_anew() -> None:
    async with running() as it:
        await it.subscribe("a:1")
        it.server.honours = lambda asked: {"resourceSubscriptions": ["a:2"]}
        assert isinstance(await it.subscribe("a:2"), Complete)
        assert it.published == [PushChannel.LOST, PushChannel.RESTORED]
        assert "does not report updates" in failure(await it.subscribe("a:1")).error.message


async def test_r6_a_stream_that_its_server_keeps_closing_is_reopened_ever_more_slowly() -> None:
    async with running(TOOLS) as it:
        for number in range(1, 5):
            (await it.server.has(number)).end(Response(number, {}))
        await it.server.has(5)
        assert it.failures == [1, 2, 3, 4]


async def test_a_late_acknowledgement_restores_the_push_channel() -> None:
    async with running() as it:
        it.server.silent = True
        late = replace(it, subscriptions=ListenStream(it.context, TOOLS, it.server))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(late.subscriptions.run)
            await late.subscriptions.begin(0)
            await late.subscriptions.report()
            stream = await it.server.has(1)
            assert late.tell(ACKNOWLEDGED, stream.id, notifications=stream.asked)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert it.published == [PushChannel.LOST, PushChannel.RESTORED]


async def test_a_server_without_such_streams_is_not_asked_again() -> None:
    async with running() as it:
        it.server.refusal = ErrorObject(METHOD_NOT_FOUND, "Method not found")
        for uri in ("a:1", "a:2"):
            assert failure(await it.subscribe(uri)).error == it.server.refusal
        assert len(it.server.streams) == 1


async def test_a_stream_that_is_never_acknowledged_is_given_up_in_time() -> None:
    async with running(idle=0.05) as it:
        it.server.silent = True
        failed = await it.subscribe("a:1")
        assert isinstance(failed, Failed)
        assert "acknowledgement" in failed.error.message
        assert failed.reason in (Reason.TIMEOUT, Reason.PROTOCOL_ERROR)
        await it.server.streams[0].closed.wait()


async def test_a_subscription_that_is_given_up_is_not_asked_for_any_more() -> None:
    async with running(TOOLS) as it:
        it.server.silent = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.subscribe, "a:1")
            await it.server.has(2)
            tasks.cancel_scope.cancel()
        it.server.silent = False
        it.server.acknowledge(2, it.server.streams[1].asked)
        assert (await it.server.has(3)).asked == {"toolsListChanged": True}


async def test_r13_a_subscription_does_not_outwait_its_link() -> None:
    async with running() as it, anyio.create_task_group() as tasks:
        it.server.silent = True

        async def end() -> None:
            await it.server.has(1)
            it.subscriptions.close("the child died")

        tasks.start_soon(end)
        with pytest.raises(PeerGone, match="the child died"):
            await it.subscribe("a:1")


async def test_a_subscription_without_a_uri_is_the_clients_fault() -> None:
    async with running() as it:
        assert failure(await it.subscriptions.subscribe(request("resources/subscribe"))).error.code == -32602


# Every order of events.


TURNS = 20
"""Turns of the loop in which the stream of changes does all that an event leads to."""


async def turns() -> None:
    """As `wait_all_tasks_blocked`, which sleeps, and is called thousands of times here."""
    for _ in range(TURNS):
        await anyio.lowlevel.checkpoint()


class Step(Enum):
    WANT = "the client subscribes to another resource, which needs another stream"
    ACKNOWLEDGE = "the server acknowledges the newest stream"
    REFUSE = "the server ends the newest stream, which it has not acknowledged"
    END = "the server ends the oldest stream that it acknowledged"
    CHANGE = "a list changes: the server says so on the streams that it acknowledged"
    PAUSE = "the gateway reads what has come"


@dataclass
class Model:
    """The server's side of the truth: what it acknowledged and has not ended, and when something changed."""

    it: Running
    tasks: TaskGroup
    wanted: int = 0
    acknowledged: list[Stream] = field(default_factory=list)
    changed_at: list[int] = field(default_factory=list)
    """For each change, how much had been published before."""

    @property
    def live(self) -> list[Stream]:
        return [each for each in self.acknowledged if not (each.ended.is_set() or each.closed.is_set())]

    @property
    def pending(self) -> Stream | None:
        newest = self.it.server.streams[-1] if self.it.server.streams else None
        over = newest is None or newest in self.acknowledged or newest.ended.is_set() or newest.closed.is_set()
        return None if over else newest

    async def do(self, step: Step) -> None:
        match step:
            case Step.WANT:
                self.wanted += 1
                self.tasks.start_soon(self.it.subscribe, f"a:{self.wanted}")
            case Step.ACKNOWLEDGE if self.pending is not None:
                stream = self.pending
                self.acknowledged.append(stream)
                self.it.tell(ACKNOWLEDGED, stream.id, notifications=stream.asked)
            case Step.REFUSE if self.pending is not None:
                self.pending.end(PeerGone("refused"))
            case Step.END if self.live:
                self.live[0].end(PeerGone("dropped"))
            case Step.CHANGE:
                self.changed_at.append(len(self.it.published))
                for stream in self.live:
                    self.it.tell("notifications/tools/list_changed", stream.id)
            case Step.PAUSE:
                await turns()
                channel = [change for change in self.it.published if isinstance(change, PushChannel)]
                if not self.live:
                    assert channel[-1:] == [PushChannel.LOST], "nobody listens, and the channel counts as up"
            case _:
                pass

    def missed(self) -> list[int]:
        """The changes of which the gateway was neither told nor knows that it may have missed some."""
        notices = (ListChanged(Kind.TOOLS), PushChannel.RESTORED)
        return [at for at in self.changed_at if not any(each in notices for each in self.it.published[at:])]


async def check_order(steps: Sequence[Step]) -> None:
    async with running(TOOLS) as it, anyio.create_task_group() as tasks:
        it.server.silent = True
        model = Model(it, tasks)
        it.server.acknowledge(1, it.server.streams[0].asked)
        model.acknowledged.append(it.server.streams[0])
        await turns()
        for step in steps:
            await model.do(step)
        await turns()
        while model.pending is not None:
            await model.do(Step.ACKNOWLEDGE)
            await turns()
        assert model.missed() == [], [step.name for step in steps]
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("first", Step)
async def test_no_change_is_missed_in_any_order_of_four_events(first: Step) -> None:
    for rest in product(Step, repeat=3):
        await check_order((first, *rest))


async def test_no_change_is_missed_in_long_orders_of_events() -> None:
    chance = random.Random(15)
    for _ in range(200):
        await check_order(chance.choices(list(Step), k=chance.randrange(5, 15)))
