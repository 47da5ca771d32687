"""Tasks of both kinds, and of none: the twin of `mcproxy.gateway.tasks.relay` and of its neighbours about tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mcproxy.access.policy import Policy
from mcproxy.call.calls import Call, Complete, Outcome
from mcproxy.call.clients import InputRequest, TaskChanged
from mcproxy.call.errors import Reason
from mcproxy.call.identity import AGGREGATE, ANONYMOUS, Caller, Principal
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.catalog.naming import layouts
from mcproxy.catalog.uri_matching import matcher, readings
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.gateway.listings.state import Catalogue, CatalogueRules
from mcproxy.gateway.resolving.task_ids import Task, TaskIds
from mcproxy.gateway.tasks.registry import TaskRegistry
from mcproxy.protocol.eras import HANDSHAKE_VERSIONS, LATEST, LATEST_HANDSHAKE, V2025_06_18, Era
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, Params, parse_object, raw
from mcproxy.protocol.methods import Kind, row_of
from mcproxy.protocol.tasks import EXTENSION, META_RELATED_TASK, related_task
from mcproxy.sealing import Sealer
from tests.fakes.upstream import (
    FakeClient,
    FakeListener,
    FakeUpstream,
    House,
    complete,
    decoded,
    error,
    failed,
    house,
    settings_of,
    text_of,
    tool,
)

pytestmark = pytest.mark.anyio

CORE: dict[str, object] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
EXTENDED: dict[str, object] = {"extensions": {EXTENSION: {}}}
DECLARED: Params = {"extensions": raw({EXTENSION: {}})}
STATUS = "notifications/tasks/status"


def related(id: str) -> dict[str, object]:
    return {META_RELATED_TASK: {"taskId": id}}


MADE = "2026-07-28T12:00:00Z"


def described(id: str, status: str = "working") -> dict[str, object]:
    return {"taskId": id, "status": status, "createdAt": MADE, "lastUpdatedAt": MADE, "ttl": None}


def core(name: str = "a", support: str = "optional", **tasks: object) -> FakeUpstream:
    """An upstream of 2025-11-25 whose tool becomes the tasks `1`, `2`, ..."""
    upstream = FakeUpstream(name, tools={}, tasks=tasks or CORE)
    upstream.lists[Kind.TOOLS] = [tool("slow", execution={"taskSupport": support})]

    def create(call: Call) -> Outcome:
        if "task" not in call.params:
            return complete(content=[])
        return complete(task=described(str(upstream.count("tools/call"))), _meta=related("1"), kept=1)

    def listed(call: Call) -> Outcome:
        return complete(tasks=[described(str(made + 1)) for made in range(upstream.count("tools/call"))])

    upstream.answers = {
        "tools/call": create,
        "tasks/get": lambda call: complete(**described(text_of(call.params["taskId"]))),
        "tasks/cancel": lambda call: complete(**described(text_of(call.params["taskId"]), "cancelled")),
        "tasks/result": lambda call: complete(
            content=[{"type": "resource_link", "uri": "file:///x", "name": "x"}],
            taskId="a field of the tool's",
            _meta=related(text_of(call.params["taskId"])),
        ),
        "tasks/list": listed,
    }
    return upstream


def extended(name: str = "a") -> FakeUpstream:
    """An upstream of 2026-07-28 that makes a task of every call."""
    upstream = FakeUpstream(name)
    declared = {"tools": raw({}), "extensions": raw(EXTENDED["extensions"])}
    upstream.identity = ServerIdentity(Era.STATELESS, LATEST, declared)
    upstream.lists[Kind.TOOLS] = [tool("slow")]
    upstream.answers = {
        "tools/call": lambda call: complete(resultType="task", **described("1")),
        "tasks/get": lambda call: complete(
            resultType="complete",
            result={"content": [{"type": "resource_link", "uri": "file:///x", "name": "x"}]},
            **described(text_of(call.params["taskId"]), "completed"),
        ),
        "tasks/update": lambda call: complete(resultType="complete"),
        "tasks/cancel": lambda call: complete(resultType="complete"),
    }
    return upstream


async def create(h: House, name: str = "a__slow", listener: FakeListener | None = None) -> str:
    """The id of a new task, as its client knows it."""
    result = decoded(await h.call("tools/call", listener=listener, name=name, task={"ttl": 1}))
    task = result["task"]
    assert isinstance(task, dict)
    return str(task["taskId"])


def sent(upstream: FakeUpstream, method: str) -> dict[str, Any]:
    """The params of the latest call of that method."""
    return decoded(next(call for call in reversed(upstream.calls) if call.method == method).params)


# From creation to result.


async def test_what_is_asked_of_a_task_is_known_by_the_tool_whose_call_became_it() -> None:
    async with house(core()) as h:
        await h.ready()
        caller = Caller(ANONYMOUS, LATEST_HANDSHAKE, endpoint=AGGREGATE)
        params: Params = {"taskId": raw(await create(h))}
        found = h.gateway.subject_of(Call(row_of("tasks/result"), params, caller, FakeClient()))
        assert (found.upstream, found.own, found.tool) == ("a", "1", "slow")


async def test_a_task_is_known_to_its_client_by_an_id_of_ours_that_is_always_the_same() -> None:
    async with house(core()) as h:
        await h.ready()
        result = decoded(await h.call("tools/call", name="a__slow", task={"ttl": 1}))
        assert isinstance(result["task"], dict)
        id = result["task"]["taskId"]
        assert id != "1"
        assert result == {"task": {**described("1"), "taskId": id}, "_meta": related(id), "kept": 1}
        assert sent(h["a"], "tools/call") == {"name": "slow", "task": {"ttl": 1}}
        assert decoded(await h.call("tasks/get", taskId=id))["taskId"] == id
        assert decoded(await h.call("tasks/cancel", taskId=id))["taskId"] == id
        assert sent(h["a"], "tasks/get") == sent(h["a"], "tasks/cancel") == {"taskId": "1"}


@pytest.mark.parametrize("endpoint", ["", "a"])
async def test_a_result_comes_in_the_names_of_its_endpoint(endpoint: str) -> None:
    async with house(core()) as h:
        await h.ready()
        name, uri = ("slow", "file:///x") if endpoint else ("a__slow", "a+file:///x")
        made = decoded(await h.call("tools/call", endpoint=endpoint, name=name, task={}))["task"]
        assert isinstance(made, dict)
        result = decoded(await h.call("tasks/result", endpoint=endpoint, taskId=made["taskId"]))
        assert result == {
            "content": [{"type": "resource_link", "uri": uri, "name": "x"}],
            "taskId": "a field of the tool's",
            "_meta": related(made["taskId"]),
        }


async def test_an_upstreams_own_error_about_a_task_passes() -> None:
    up = core()
    up.answers["tasks/get"] = lambda call: failed("expired", -32602)
    async with house(up) as h:
        await h.ready()
        assert error(await h.call("tasks/get", taskId=await create(h))).message == "expired"


async def test_a_task_of_an_upstream_that_is_away_is_unavailable_and_not_unknown() -> None:
    async with house(core()) as h:
        await h.ready()
        id = await create(h)
        h["a"].disconnect()
        h["a"].reachable = False
        outcome = await h.call("tasks/get", taskId=id)
        assert error(outcome).code == INTERNAL_ERROR
        assert getattr(outcome, "reason", None) is Reason.UNAVAILABLE


async def test_an_id_survives_a_restart() -> None:
    async with house(core()) as h:
        await h.ready()
        id = await create(h)
    async with house(core()) as h:
        assert decoded(await h.call("tasks/get", taskId=id))["taskId"] == id


async def test_input_for_a_task_is_asked_of_the_client_that_waits_for_its_result() -> None:
    """tasks, Associating Task-Related Messages: question and answer name the task, each in the reader's names."""
    up, heard = Asking("a"), FakeClient()
    async with house(up) as h:
        await h.ready()
        id = await create(h)
        heard.answer = {"action": "accept", "_meta": related(id)}
        await h.call("tasks/result", client=heard, taskId=id)
    assert [related_task(request.params) for request in heard.asked] == [id]
    assert [related_task(params) for _, params in heard.notified] == [id]
    assert up.answered == {"action": "accept", "_meta": related("1")}


class Asking(FakeUpstream):
    """Asks for input, and logs, before it gives the result of a task."""

    def __init__(self, name: str, support: str = "optional") -> None:
        super().__init__(name)
        source = core(name, support)
        self.identity, self.lists, self.answers = source.identity, source.lists, source.answers
        self.answers["tools/call"] = lambda call: complete(task=described("1"))
        self.answered: object = None

    async def __call__(self, call: Call) -> Outcome:
        if call.method == "tasks/result":
            call.client.notify("notifications/message", {"_meta": raw(related("1"))})
            request = InputRequest("elicitation/create", {"message": raw("?"), "_meta": raw(related("1"))})
            self.answered = decoded(await call.client.ask(request))
        return await super().__call__(call)


# Whose a task is.


@pytest.mark.parametrize("id", ["", "1", "made-up", "0" * 200, "é"])
async def test_what_is_no_id_of_ours_is_not_found(id: str) -> None:
    async with house(core()) as h:
        await h.ready()
        assert error(await h.call("tasks/get", taskId=id)).message == "Task not found"
        assert h["a"].count("tasks/get") == 0


async def test_r39_the_task_of_another_principal_looks_unknown() -> None:
    async with house(core()) as h:
        await h.ready()
        id = await create(h)
        other = FakeListener(Caller(Principal("eve"), LATEST_HANDSHAKE))
        unknown = error(await h.call("tasks/get", listener=other, taskId="made-up"))
        assert error(await h.call("tasks/get", listener=other, taskId=id)).message == unknown.message
        assert error(await h.call("tasks/get", endpoint="a", taskId=id)).message == unknown.message


@pytest.mark.parametrize("judged", [True, False])
async def test_r39_a_task_whose_arguments_were_judged_is_for_the_same_roles_alone(judged: bool) -> None:
    rule: dict[str, object] = {"tools": ["slow"], **({"arguments": {"path": {"equals": "/a"}}} if judged else {})}
    access = {"policy": {"roles": {"dev": {"allow": [rule]}, "ops": {"allow": [{}]}}}}
    async with house(core(), access=access) as h:
        await h.ready()
        lesser, better = (h.listener(principal=Principal("ann", frozenset({role}))) for role in ("dev", "ops"))

        async def of(who: FakeListener) -> str:
            arguments = {"path": "/b" if who is better else "/a"}
            called = await h.call("tools/call", listener=who, name="a__slow", arguments=arguments, task={"ttl": 1})
            made: Any = decoded(called)["task"]
            return str(made["taskId"])

        ids = {better: await of(better), lesser: await of(lesser)}
        for reader, maker in ((better, better), (lesser, lesser), (lesser, better)):
            may = reader is maker or not judged
            for method in ("tasks/get", "tasks/result"):
                answer = await h.call(method, listener=reader, taskId=ids[maker])
                assert isinstance(answer, Complete) is may
            listed: Any = decoded(await h.call("tasks/list", listener=reader))["tasks"]
            assert (ids[maker] in [task["taskId"] for task in listed]) is may


async def test_the_task_of_a_sessions_own_link_is_unknown_in_another_session() -> None:
    async with house(core(), options={"a": {"connection": "session"}}) as h:
        await h.ready()
        one, two = h.listener(session="1"), h.listener(session="2")
        id = await create(h, listener=one)
        assert decoded(await h.call("tasks/get", listener=one, taskId=id))["taskId"] == id
        assert error(await h.call("tasks/get", listener=two, taskId=id)).message == "Task not found"


async def test_a_change_is_told_to_the_sessions_that_know_the_task_and_to_no_other() -> None:
    async with house(core()) as h:
        await h.ready()
        one, two, third = h.listener(), h.listener(), h.listener()
        id = await create(h, listener=one)
        await h.call("tasks/get", listener=two, taskId=id)
        h["a"].announce(
            TaskChanged("1", STATUS, parse_object(raw({**described("1", "failed"), "_meta": related("1")})))
        )
        expected = {**described(id, "failed"), "_meta": related(id)}
        for listener in (one, two):
            [changed] = [change for change in listener.changes if isinstance(change, TaskChanged)]
            assert (changed.id, changed.method, decoded(changed.params)) == (id, STATUS, expected)
        assert TaskChanged(id, "", {}) not in third.changes
        h.gateway.leave(one)
        h["a"].announce(TaskChanged("1", STATUS, {}))
        assert [one.changes.count(TaskChanged(id, "", {})), two.changes.count(TaskChanged(id, "", {}))] == [1, 2]


def test_of_one_session_the_oldest_tasks_give_way() -> None:
    registry, listener = TaskRegistry(2), FakeListener()
    tasks = [Task(LinkKey("a", None), str(number)) for number in range(3)]
    for task in (tasks[0], tasks[1], tasks[0], tasks[2]):
        registry.add(listener, task)
    assert [list(registry.holders(task)) for task in tasks] == [[listener], [], [listener]]
    registry.drop(listener)
    registry.drop(listener)
    assert not any(registry.holders(task) for task in tasks)


@pytest.mark.parametrize("denied", [{"upstreams": ["a"]}, {"upstreams": ["a"], "tools": ["slow"]}])
async def test_r38_what_the_policy_withdraws_takes_its_tasks_along(denied: dict[str, object]) -> None:
    up = core()
    up.lists[Kind.TOOLS] = [*up.lists[Kind.TOOLS], tool("quick")]
    async with house(up) as h:
        await h.ready()
        one = h.listener()
        id = await create(h, listener=one)
        roles = {"everyone": {"allow": [{}], "deny": [denied]}}
        h.gateway.reconfigure(settings_of({"a": {}}, {"policy": {"roles": roles}}), h.upstreams)
        asked = up.count("tasks/get")
        assert error(await h.call("tasks/get", listener=one, taskId=id)).message == "Task not found"
        assert up.count("tasks/get") == asked
        up.announce(TaskChanged("1", STATUS, parse_object(raw(described("1")))))
        assert not any(isinstance(change, TaskChanged) for change in one.changes)
        if "tools" in denied:
            assert await ids(h, one) == []
        h.gateway.reconfigure(settings_of({"a": {}}), h.upstreams)
        assert decoded(await h.call("tasks/get", listener=one, taskId=id))["taskId"] == id


# Lists.


async def ids(h: House, listener: FakeListener | None = None, **params: object) -> list[object]:
    tasks = decoded(await h.call("tasks/list", listener=listener, **params))["tasks"]  # type: ignore[arg-type]  # all params
    assert isinstance(tasks, list)
    return [task["taskId"] for task in tasks]


async def test_the_list_holds_the_callers_tasks_of_all_upstreams_and_no_others() -> None:
    no_list = core("c", requests={"tools": {"call": {}}})
    async with house(core("a"), core("b"), no_list) as h:
        await h.ready()
        one, two = h.listener(), h.listener()
        mine = [await create(h, name, one) for name in ("a__slow", "b__slow", "a__slow", "c__slow")]
        theirs = await create(h, "a__slow", two)
        assert await ids(h, one) == [mine[0], mine[2], mine[1]]
        assert await ids(h, two) == [theirs]
        assert await ids(h) == []
        assert no_list.count("tasks/list") == 0


async def test_an_authenticated_caller_finds_its_tasks_in_each_of_its_sessions() -> None:
    async with house(core()) as h:
        await h.ready()
        caller = Caller(Principal("ann"), LATEST_HANDSHAKE)
        one, two, elsewhere = (FakeListener(c) for c in (caller, caller, replace(caller, endpoint="a")))
        for listener in (one, two, elsewhere):
            h.gateway.join(listener)
        id = await create(h, listener=one)
        assert await ids(h, two) == [id]
        assert await ids(h, elsewhere) == []


async def test_the_list_comes_in_pages() -> None:
    async with house(core(), naming={"page_size": 2}) as h:
        await h.ready()
        one = h.listener()
        mine = [await create(h, listener=one) for _ in range(3)]
        first = decoded(await h.call("tasks/list", listener=one))
        assert await ids(h, one) == await ids(h, one, cursor=None) == mine[:2]
        assert await ids(h, one, cursor=first["nextCursor"]) == mine[2:]
        assert error(await h.call("tasks/list", listener=one, cursor="made-up")).code == -32602


async def test_r1_an_upstream_that_lists_nothing_harms_no_other() -> None:
    bad = core("b")
    bad.answers["tasks/list"] = lambda call: failed("broken")
    async with house(core("a"), bad) as h:
        await h.ready()
        one = h.listener()
        await create(h, "b__slow", one)
        assert await ids(h, one) == [await create(h, "a__slow", one)][:0]
        assert len(await ids(h, one)) == 1


async def test_what_an_entry_holds_beside_the_task_is_in_the_names_of_the_endpoint() -> None:
    up = core()
    link = {"type": "resource_link", "uri": "file:///x", "name": "x"}
    up.answers["tasks/list"] = lambda call: complete(tasks=[{**described("1"), "result": {"content": [link]}}])
    async with house(up) as h:
        await h.ready()
        one = h.listener()
        id = await create(h, listener=one)
        named = {**link, "uri": "a+file:///x"}
        listed = decoded(await h.call("tasks/list", listener=one))["tasks"]
        assert listed == [{**described(id), "result": {"content": [named]}}]


class ReloadingUpstream(FakeUpstream):
    """Calls `reload` as soon as it is asked for its tasks, before any other task has its turn."""

    reload: Callable[[], None]

    async def __call__(self, call: Call) -> Outcome:
        if call.method == "tasks/list":
            self.reload()
        return await super().__call__(call)


async def test_an_upstream_that_a_reload_takes_away_before_it_is_asked_is_left_out() -> None:
    first = ReloadingUpstream("a", tools={}, tasks=CORE)
    first.lists, first.answers = core().lists, core().answers
    async with house(first, core("b")) as h:
        await h.ready()
        one = h.listener()
        await create(h, "b__slow", one)
        first.reload = lambda: h.gateway.reconfigure(settings_of({"a": {}}), {"a": first})
        assert await ids(h, one) == []
        assert (first.count("tasks/list"), h["b"].count("tasks/list")) == (1, 0)


# Who has no tasks in common.


async def test_capabilities_and_tools_speak_of_tasks_to_clients_of_the_same_kind_alone() -> None:
    async with house(core("a"), extended("b")) as h:
        await h.ready()
        for version in (*HANDSHAKE_VERSIONS, LATEST):
            offered = decoded(await h.call("server/discover", version=version))["capabilities"]
            assert isinstance(offered, dict)
            assert ("tasks" in offered) == (version == LATEST_HANDSHAKE)
            assert offered.get("extensions") == (EXTENDED["extensions"] if version == LATEST else None)
            tools = decoded(await h.call("tools/list", version=version))["tools"]
            assert isinstance(tools, list)
            assert ["execution" in entry for entry in tools] == [version == LATEST_HANDSHAKE, False]


async def test_a_tool_that_must_be_a_task_is_waited_for_where_the_client_has_no_tasks() -> None:
    for version in (V2025_06_18, LATEST):
        async with house(core(support="required")) as h:
            await h.ready()
            result = decoded(await h.call("tools/call", version=version, name="a__slow", arguments={}))
            assert result == {
                "content": [{"type": "resource_link", "uri": "a+file:///x", "name": "x"}],
                "taskId": "a field of the tool's",
            }
            assert sent(h["a"], "tools/call") == {"name": "slow", "arguments": {}, "task": {}}
            assert sent(h["a"], "tasks/result") == {"taskId": "1"}
            assert h["a"].count("tasks/cancel") == 0


async def test_what_is_asked_while_it_is_waited_for_says_nothing_of_the_task() -> None:
    up, heard = Asking("a", "required"), FakeClient(answer={"action": "accept"})
    async with house(up) as h:
        await h.ready()
        await h.call("tools/call", version=V2025_06_18, client=heard, name="a__slow")
    assert [request.params for request in heard.asked] == [{"message": raw("?")}]
    assert up.answered == {"action": "accept", "_meta": related("1")}


async def test_what_it_reports_while_it_is_waited_for_says_nothing_of_the_task() -> None:
    up, heard = core(support="required"), FakeClient()

    def create_and_report(call: Call) -> Outcome:
        call.client.notify("notifications/progress", {"progress": raw(1), "_meta": raw(related("1"))})
        return complete(task=described("1"))

    up.answers["tools/call"] = create_and_report
    async with house(up) as h:
        await h.ready()
        await h.call("tools/call", version=V2025_06_18, client=heard, name="a__slow")
    assert heard.notified == [("notifications/progress", {"progress": raw(1)})]


async def test_r25_a_caller_that_stops_waiting_cancels_the_task() -> None:
    async with house(core(support="required")) as h:
        await h.ready()
        up = h["a"]
        up.answers["tasks/result"] = _shut(up)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: h.call("tools/call", version=V2025_06_18, name="a__slow"))
            await up.called("tasks/result")
            tasks.cancel_scope.cancel()
        assert sent(up, "tasks/cancel") == {"taskId": "1"}


def _shut(up: FakeUpstream) -> Callable[[Call], Outcome]:
    return lambda call: failed("too late")


async def test_a_tool_without_tasks_cannot_be_called_as_one_and_who_has_none_is_served_all_the_same() -> None:
    plain = FakeUpstream("b", tools={})
    plain.lists[Kind.TOOLS] = [tool("quick", execution={"taskSupport": "required"})]
    plain.answers["tools/call"] = lambda call: complete(content=[])
    async with house(core("a"), plain) as h:
        await h.ready()
        assert error(await h.call("tools/call", name="b__quick", task={})).code == -32601
        decoded(await h.call("tools/call", version=V2025_06_18, name="b__quick", task={}))
        assert sent(plain, "tools/call") == {"name": "quick"}
        decoded(await h.call("tools/call", endpoint="b", name="quick", task={}))
        assert sent(plain, "tools/call") == {"name": "quick"}


async def test_a_server_without_tasks_has_no_methods_about_them() -> None:
    async with house(core()) as h:
        await h.ready()
        id = await create(h)
        for method in ("tasks/get", "tasks/list"):
            assert error(await h.call(method, version=V2025_06_18, taskId=id)).code == -32601
        assert error(await h.call("tasks/get", version=LATEST, taskId=id)).code == -32021
        found = await h.call("tasks/get", version=LATEST, capabilities=DECLARED, taskId=id)
        assert error(found).message == "Task not found"
        assert h["a"].count("tasks/get") == 0


# The extension.


async def test_the_extensions_tasks_pass_between_stateless_peers() -> None:
    async with house(extended()) as h:
        await h.ready()
        stateless: dict[str, Any] = {"version": LATEST, "capabilities": DECLARED}
        made = decoded(await h.call("tools/call", **stateless, name="a__slow"))
        id = made["taskId"]
        assert made == {"resultType": "task", **described("1"), "taskId": id}
        assert id != "1"
        got = decoded(await h.call("tasks/get", **stateless, taskId=id))
        assert got["taskId"] == id
        assert got["result"] == {"content": [{"type": "resource_link", "uri": "a+file:///x", "name": "x"}]}
        answers = {"name": {"action": "accept"}}
        decoded(await h.call("tasks/update", **stateless, taskId=id, inputResponses=answers))
        assert sent(h["a"], "tasks/update") == {"taskId": "1", "inputResponses": answers}
        decoded(await h.call("tasks/cancel", **stateless, taskId=id))
        assert sent(h["a"], "tasks/cancel") == {"taskId": "1"}


STATELESS: dict[str, Any] = {"version": LATEST, "capabilities": DECLARED}
TOLD = "notifications/tasks"


def announcing(name: str = "a") -> FakeUpstream:
    """An upstream of the extension that makes the tasks `1`, `2`, ... and tells of each but `2`."""
    upstream = extended(name)
    upstream.answers["tools/call"] = lambda call: complete(
        resultType="task", **described(str(upstream.count("tools/call")))
    )

    def listen(call: Call) -> Outcome:
        asked = decoded(call.params["notifications"])["taskIds"]
        assert isinstance(asked, list)
        return complete(notifications={"taskIds": [id for id in asked if id != "2"]})

    upstream.answers["subscriptions/listen"] = listen
    return upstream


async def made(h: House, **who: Any) -> str:
    return str(decoded(await h.call("tools/call", **{**STATELESS, **who}, name="a__slow"))["taskId"])


def stream(h: House, principal: str = ANONYMOUS.name) -> FakeListener:
    """A `subscriptions/listen` stream that has joined."""
    listener = FakeListener(Caller(Principal(principal), LATEST, DECLARED))
    h.gateway.join(listener)
    return listener


async def agreed(h: House, listener: FakeListener, *ids: str) -> object:
    """Which of the tasks a stream will hear of."""
    outcome = await h.call("subscriptions/listen", listener=listener, notifications={"taskIds": ids})
    members = decoded(outcome)["notifications"]
    assert isinstance(members, dict)
    return members["taskIds"]


def heard(listener: FakeListener) -> list[dict[str, object]]:
    return [decoded(change.params) for change in listener.changes if isinstance(change, TaskChanged)]


def state(id: str) -> TaskChanged:
    link = {"type": "resource_link", "uri": "file:///x", "name": "x"}
    params = {**described(id, "completed"), "result": {"content": [link]}}
    return TaskChanged(id, TOLD, {key: raw(value) for key, value in params.items()})


async def test_an_upstream_that_came_back_while_it_was_asked_is_asked_again() -> None:
    async with house(announcing()) as h:
        await h.ready()
        task, listener = await made(h), stream(h)
        h["a"].gate.shut()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agreed, h, listener, task)
            await h["a"].called("subscriptions/listen")
            h["a"].disconnect()
            h["a"].connect()
            h["a"].gate.open()
            await h["a"].called("subscriptions/listen", 2)
        assert sent(h["a"], "subscriptions/listen") == {"notifications": {"taskIds": ["1"]}}


async def test_a_stream_hears_of_its_tasks_in_its_own_names_and_of_no_others() -> None:
    async with house(announcing()) as h:
        await h.ready()
        one, silent, other = await made(h), await made(h), await made(h)
        mine, theirs = stream(h), stream(h)
        assert await agreed(h, mine, one, silent, "made-up", "1") == [one]
        assert await agreed(h, theirs, other) == [other]
        h["a"].announce(state("1"))
        link = {"type": "resource_link", "uri": "a+file:///x", "name": "x"}
        assert heard(mine) == [{**described(one, "completed"), "result": {"content": [link]}}]
        assert heard(theirs) == []


async def test_r39_the_tasks_of_another_principal_are_left_out_like_those_that_do_not_exist() -> None:
    async with house(announcing()) as h:
        await h.ready()
        id, eve = await made(h, principal=Principal("ann")), stream(h, "eve")
        assert await agreed(h, eve, id, "made-up") == []
        assert h["a"].count("subscriptions/listen") == 0
        h["a"].announce(state("1"))
        assert heard(eve) == []
        assert await agreed(h, stream(h, "ann"), id) == [id]


async def test_an_upstream_is_asked_for_what_all_its_clients_listen_for_until_their_streams_end() -> None:
    async with house(announcing()) as h:
        await h.ready()
        ids = [await made(h) for _ in range(3)]
        one, two = stream(h), stream(h)
        await agreed(h, one, ids[0])
        await agreed(h, two, ids[0], ids[2])
        assert sent(h["a"], "subscriptions/listen") == {"notifications": {"taskIds": ["1", "3"]}}
        h.gateway.leave(two)
        await h["a"].called("subscriptions/listen", 3)
        assert sent(h["a"], "subscriptions/listen") == {"notifications": {"taskIds": ["1"]}}
        h["a"].announce(state("3"))
        assert heard(two) == []


async def test_an_upstream_that_returns_is_asked_again() -> None:
    async with house(announcing()) as h:
        await h.ready()
        id, listener = await made(h), stream(h)
        h["a"].disconnect()
        assert await agreed(h, listener, id) == [id]
        assert h["a"].count("subscriptions/listen") == 0
        h["a"].connect()
        await h["a"].called("subscriptions/listen")
        assert sent(h["a"], "subscriptions/listen") == {"notifications": {"taskIds": ["1"]}}


async def test_an_upstream_that_refuses_to_tell_leaves_nothing_agreed() -> None:
    up = announcing()
    up.answers["subscriptions/listen"] = lambda call: failed("no")
    async with house(up) as h:
        await h.ready()
        listener = stream(h)
        assert await agreed(h, listener, await made(h)) == []
        h["a"].announce(state("1"))
        assert heard(listener) == []


async def test_a_client_without_a_stream_listens_for_nothing() -> None:
    async with house(announcing()) as h:
        await h.ready()
        named = {"taskIds": [await made(h)]}
        assert error(await h.call("subscriptions/listen", **STATELESS, notifications=named)).code == -32600


async def test_a_result_of_a_tool_that_only_looks_like_a_task_passes_untouched() -> None:
    up = core()
    up.answers["tools/call"] = lambda call: complete(content=[], task=described("1"), taskId="1")
    async with house(up) as h:
        await h.ready()
        result = decoded(await h.call("tools/call", name="a__slow"))
        assert result == {"content": [], "task": described("1"), "taskId": "1"}


# Ids.

names = st.text(min_size=1, max_size=8)


@given(own=st.text(), owner=st.none() | st.just("s"), names=st.tuples(names, names), tampered=st.integers(0))
def test_an_id_opens_for_the_caller_that_it_was_sealed_for_and_for_no_other(
    own: str, owner: str | None, names: tuple[str, str], tampered: int
) -> None:
    connection = "session" if owner else "shared"
    settings = settings_of({"up": {"connection": connection}, "other": {"connection": connection}})
    policy = Policy(settings.access.policy, readings=readings, matcher=matcher)
    ids = TaskIds(Catalogue(CatalogueRules(layouts(settings.upstreams, 64), policy, max_views=10)), Sealer(b"secret"))
    task, caller = Task(LinkKey("up", owner), own), Caller(Principal(names[0]), LATEST_HANDSHAKE, session=owner)
    id = ids.seal(task, caller)
    assert ids.seal(task, caller) == id
    assert ids.open(id, caller) == task
    assert ids.seal(Task(LinkKey("other", owner), own), caller) != id
    at = tampered % len(id)
    assert ids.open(id[:at] + ("A" if id[at] != "A" else "B") + id[at + 1 :], caller) in (None, task)
    if names[0] != names[1]:
        assert ids.open(id, replace(caller, principal=Principal(names[1]))) is None
    if owner:
        assert ids.open(id, replace(caller, session="another")) is None
    assert ids.open(id, replace(caller, endpoint="up")) is None
