"""What the policy does to each thing that a caller can do (requirement R38), and to what it hears."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.calls import Call, Failed, InputRequired, Outcome
from mcproxy.call.clients import InputRequest, ListChanged, Notice, ResourceUpdated
from mcproxy.call.errors import Reason
from mcproxy.call.identity import ANONYMOUS, Principal
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings import Settings
from tests.fakes.upstream import FakeUpstream, House, complete, decoded, error, house, quiet, resource, tool

pytestmark = pytest.mark.anyio

READER = Principal("ann", roles=frozenset({"reader"}))
ADMIN = Principal("bob", roles=frozenset({"admin"}))
GATEWAY_ITSELF = Principal("eve")

READ_ONLY = {"annotations": {"readOnlyHint": True}}
ACCESS: dict[str, Any] = {
    "policy": {
        "roles": {
            "admin": {"allow": [{}], "deny": [{"tools": ["format_disk"]}]},
            "reader": {
                "allow": [
                    {"upstreams": ["files"], "read_only": True},
                    {"upstreams": ["files"], "tools": ["query"], "arguments": {"table": {"one_of": ["open"]}}},
                    {"upstreams": ["files"], "resources": ["file:///public/*"]},
                ]
            },
        }
    }
}


def files() -> FakeUpstream:
    upstream = FakeUpstream("files")
    upstream.lists[Kind.TOOLS] = [tool("look", **READ_ONLY), tool("query"), tool("delete"), tool("format_disk")]
    upstream.lists[Kind.RESOURCES] = [resource("file:///public/a"), resource("file:///secret")]
    upstream.lists[Kind.TEMPLATES] = [
        {"uriTemplate": "file:///public/{name}", "name": "t"},
        {"uriTemplate": "file:///{+path}", "name": "t"},
    ]
    upstream.lists[Kind.PROMPTS] = [{"name": "greet"}]
    for method in ("tools/call", "resources/read", "prompts/get", "completion/complete", "resources/subscribe"):
        upstream.answers[method] = lambda call: complete(did=call.method)
    return upstream


def hidden() -> FakeUpstream:
    """One of which readers may use nothing."""
    upstream = FakeUpstream("hidden", tools={}, logging={}, experimental={"mark": {}})
    upstream.lists[Kind.TOOLS] = [tool("x", **READ_ONLY)]
    return upstream


def same_but_for(name: str, outcome: Outcome) -> tuple[int, str, str]:
    """A refusal, without the name that it is about."""
    failure = error(outcome)
    data = "" if failure.data is None else bytes(failure.data).decode()
    return failure.code, failure.message.replace(name, "?"), data.replace(name, "?")


async def refusal(gateway: House, method: str, key: str, name: str, who: Principal = READER, **more: object) -> Any:
    return same_but_for(name, await gateway.call(method, principal=who, **{key: name}, **more))  # type: ignore[arg-type]


async def test_r38_lists_show_what_may_be_used_and_nothing_else() -> None:
    async with house(files(), hidden(), access=ACCESS) as gateway:
        await gateway.ready()
        assert await gateway.listed(Kind.TOOLS, principal=READER) == ["files__look", "files__query"]
        assert await gateway.listed(Kind.RESOURCES, principal=READER) == ["files+file:///public/a"]
        assert await gateway.listed(Kind.TEMPLATES, principal=READER) == ["files+file:///public/{name}"]
        assert await gateway.listed(Kind.PROMPTS, principal=READER) == []
        assert await gateway.listed(Kind.TOOLS, principal=ADMIN) == [
            "files__look", "files__query", "files__delete", "hidden__x",
        ]  # fmt: skip


@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
async def test_r38_a_denied_name_is_refused_as_one_that_does_not_exist(method: str) -> None:
    async with house(files(), hidden(), access=ACCESS) as gateway:
        await gateway.ready()
        denied = ["files__delete", "hidden__x"] if method == "tools/call" else ["files__greet"]
        for name in denied:
            assert await refusal(gateway, method, "name", name) == await refusal(gateway, method, "name", "files__nil")
        assert gateway["files"].count(method) == gateway["hidden"].count(method) == 0


@pytest.mark.parametrize("method", ["resources/read", "resources/subscribe"])
@pytest.mark.parametrize(
    "uri",
    ["files+file:///secret", "files+file:///public/../secret", "files+file:///public/%2e%2e/secret", "hidden+a:b"],
)
async def test_r38_a_denied_uri_is_refused_as_one_that_does_not_exist(method: str, uri: str) -> None:
    async with house(files(), hidden(), access=ACCESS) as gateway:
        await gateway.ready()
        listener = gateway.listener(principal=READER)
        expected = await refusal(gateway, method, "uri", "nobody+file:///x", listener=listener)
        assert await refusal(gateway, method, "uri", uri, listener=listener) == expected
        assert gateway["files"].count(method) == 0


async def test_r38_a_denied_reference_is_refused_as_one_that_does_not_exist() -> None:
    async with house(files(), access=ACCESS) as gateway:
        await gateway.ready()
        for reference, unknown in (
            ({"type": "ref/prompt", "name": "files__greet"}, {"type": "ref/prompt", "name": "files__nil"}),
            (
                {"type": "ref/resource", "uri": "files+file:///{+path}"},
                {"type": "ref/resource", "uri": "no+file:///{+path}"},
            ),
        ):
            name = reference.get("name") or reference["uri"]
            denied = await gateway.call("completion/complete", principal=READER, ref=reference, argument={})
            missing = await gateway.call("completion/complete", principal=READER, ref=unknown, argument={})
            other = unknown.get("name") or unknown["uri"]
            assert same_but_for(name, denied) == same_but_for(other, missing)
        assert gateway["files"].count("completion/complete") == 0


async def test_r38_what_may_be_used_is_used() -> None:
    async with house(files(), access=ACCESS) as gateway:
        await gateway.ready()
        listener = gateway.listener(principal=READER)
        reference = {"type": "ref/resource", "uri": "files+file:///public/{name}"}
        for outcome in (
            await gateway.call("tools/call", principal=READER, name="files__look"),
            await gateway.call("resources/read", principal=READER, uri="files+file:///public/unlisted"),
            await gateway.call("resources/subscribe", listener=listener, uri="files+file:///public/a"),
            await gateway.call("completion/complete", principal=READER, ref=reference, argument={}),
        ):
            assert not isinstance(outcome, Failed)


async def test_a_tool_with_arguments_that_are_denied_is_as_unknown_as_any() -> None:
    async with house(files(), access=ACCESS) as gateway:
        await gateway.ready()
        query = "files__query"
        unknown = await refusal(gateway, "tools/call", "name", "files__nil")
        wrong: list[object] = [{}, {"table": "closed"}, {"table": ["open"]}, []]
        for arguments in wrong:
            assert await refusal(gateway, "tools/call", "name", query, arguments=arguments) == unknown
        outcome = await gateway.call("tools/call", principal=READER, name=query, arguments={"table": "open"})
        assert not isinstance(outcome, Failed)


async def test_arguments_that_can_be_judged_in_two_ways_are_not_sent() -> None:
    async with house(files(), access=ACCESS) as gateway:
        await gateway.ready()
        twice = Raw(b'{"table": "closed", "table": "open"}')
        outcome = await gateway.call("tools/call", principal=READER, name="files__query", arguments=twice)
        assert error(outcome).message == "\"arguments\" names the member 'table' twice: send each member once"
        assert gateway["files"].count("tools/call") == 0


async def test_metrics_tell_what_is_denied_from_what_does_not_exist() -> None:
    async with house(files(), access=ACCESS) as gateway:
        await gateway.ready()
        denied = await gateway.call("tools/call", principal=READER, name="files__delete")
        missing = await gateway.call("tools/call", principal=READER, name="files__nil")
        assert isinstance(denied, Failed)
        assert isinstance(missing, Failed)
        assert (denied.reason, missing.reason) == (Reason.DENIED, Reason.PROTOCOL_ERROR)


async def test_nothing_is_told_of_an_upstream_of_which_nothing_may_be_used() -> None:
    async with house(files(), hidden(), access=ACCESS) as gateway:
        gateway["hidden"].identity = replace(gateway["hidden"].identity, instructions="Our secrets.")
        await gateway.ready()
        seen = decoded(await gateway.call("server/discover", principal=READER))
        assert "instructions" not in seen
        assert "mark" not in str(seen["capabilities"])
        assert "Our secrets." in str(decoded(await gateway.call("server/discover", principal=ADMIN)))


async def test_a_caller_that_may_use_nothing_sees_an_empty_gateway() -> None:
    async with house(files(), access=ACCESS) as gateway, house() as empty:
        await gateway.ready()
        for method in ("server/discover", "tools/list"):
            seen = await gateway.call(method, principal=GATEWAY_ITSELF, version=LATEST)
            there = await empty.call(method, principal=GATEWAY_ITSELF, version=LATEST)
            assert decoded_or_refused(seen) == decoded_or_refused(there)


def decoded_or_refused(outcome: Outcome) -> object:
    return same_but_for("", outcome) if isinstance(outcome, Failed) else decoded(outcome)


async def test_lists_that_differ_by_caller_are_private_whatever_upstreams_say() -> None:
    upstream = files()
    upstream.answers["tools/list"] = lambda call: complete(tools=[tool("look")], ttlMs=60_000, cacheScope="public")
    upstream.answers["resources/read"] = lambda call: complete(contents=[], ttlMs=60_000, cacheScope="public")
    async with house(upstream, access=ACCESS) as gateway:
        await gateway.ready()
        listed = decoded(await gateway.call("tools/list", principal=ADMIN, version=LATEST))
        read = decoded(
            await gateway.call("resources/read", principal=ADMIN, uri="files+file:///secret", version=LATEST)
        )
        assert listed["cacheScope"] == read["cacheScope"] == "private"
    async with house(upstream) as open_to_all:
        await open_to_all.ready()
        assert decoded(await open_to_all.call("tools/list", version=LATEST))["cacheScope"] == "public"


async def test_r34_what_one_caller_read_is_not_served_to_a_caller_that_may_not() -> None:
    upstream = files()
    upstream.answers["resources/read"] = lambda call: complete(contents=[], ttlMs=60_000, cacheScope="public")
    async with house(upstream, access=ACCESS) as gateway:
        await gateway.ready()
        uri = "files+file:///secret"
        await gateway.call("resources/read", principal=ADMIN, uri=uri)
        await gateway.call("resources/read", principal=ADMIN, uri=uri)
        assert upstream.count("resources/read") == 1
        assert isinstance(await gateway.call("resources/read", principal=READER, uri=uri), Failed)


# Changes


async def test_only_those_hear_of_a_change_who_see_it() -> None:
    async with house(files(), access=ACCESS) as gateway:
        await gateway.ready()
        reader, admin = gateway.listener(principal=READER), gateway.listener(principal=ADMIN)
        tools = list(gateway["files"].lists[Kind.TOOLS])
        gateway["files"].list_changed(Kind.TOOLS, [*tools, tool("destroy")])
        await admin.hears(ListChanged(Kind.TOOLS))
        await quiet()
        assert reader.changes == []


async def test_updates_reach_only_callers_that_may_read_what_they_are_about() -> None:
    async with house(files(), access=ACCESS) as gateway:
        await gateway.ready()
        reader, admin = gateway.listener(principal=READER), gateway.listener(principal=ADMIN)
        await gateway.call("resources/subscribe", listener=admin, uri="files+file:///secret")
        for listener in (reader, admin):
            await gateway.call("resources/subscribe", listener=listener, uri="files+file:///public/a")
        gateway["files"].announce(ResourceUpdated("file:///public/a"))
        gateway["files"].announce(ResourceUpdated("file:///public/a/../../secret"))
        gateway["files"].announce(ResourceUpdated("file:///secret"))
        await admin.hears(ResourceUpdated("files+file:///secret"))
        assert reader.changes == [ResourceUpdated("files+file:///public/a")]


async def test_notices_reach_only_callers_that_may_use_something_of_their_upstream() -> None:
    notice = Notice("notifications/message", {"data": raw("x")}, level="error")
    async with house(files(), hidden(), access=ACCESS) as gateway:
        await gateway.ready()
        reader = gateway.listener(principal=READER, level="debug")
        admin = gateway.listener(principal=ADMIN, level="debug")
        gateway["hidden"].announce(notice)
        assert admin.changes == [notice]
        assert reader.changes == []


async def test_a_caller_that_may_use_nothing_of_an_upstream_sets_no_level_there() -> None:
    upstream = hidden()
    upstream.answers["logging/setLevel"] = lambda call: complete()
    async with house(files(), upstream, access=ACCESS) as gateway:
        await gateway.ready()
        await gateway.call("logging/setLevel", listener=gateway.listener(principal=READER), level="debug")
        await quiet()
        assert upstream.count("logging/setLevel") == 0


async def test_a_change_of_policy_is_told_to_whose_view_changed_and_holds_at_once() -> None:
    async with house(files(), access=ACCESS) as gateway:
        await gateway.ready()
        reader, admin = gateway.listener(principal=READER), gateway.listener(principal=ADMIN)
        await gateway.call("resources/subscribe", listener=reader, uri="files+file:///public/a")
        policy = {"roles": {"admin": ACCESS["policy"]["roles"]["admin"], "reader": {"allow": [{"tools": ["look"]}]}}}
        changed = gateway.settings.model_copy(
            update={"access": Settings.model_validate({"access": {"policy": policy}}).access}
        )
        gateway.gateway.reconfigure(changed, gateway.upstreams)
        await quiet()
        assert set(reader.changes) == {ListChanged(kind) for kind in (Kind.TOOLS, Kind.RESOURCES, Kind.TEMPLATES)}
        assert admin.changes == []
        gateway["files"].announce(ResourceUpdated("file:///public/a"))
        assert ResourceUpdated("files+file:///public/a") not in reader.changes
        denied = await gateway.call("resources/read", principal=READER, uri="files+file:///public/a")
        assert isinstance(denied, Failed)


async def test_what_was_missed_is_told_to_those_alone_that_may_still_read_it() -> None:
    async with house(files(), access=ACCESS) as gateway:
        await gateway.ready()
        listeners = [gateway.listener(principal=who) for who in (READER, ADMIN)]
        for listener in listeners:
            await gateway.call("resources/subscribe", listener=listener, uri="files+file:///public/a")
        roles = {"admin": ACCESS["policy"]["roles"]["admin"], "reader": {"allow": [{"prompts": ["*"]}]}}
        access = Settings.model_validate({"access": {"policy": {"roles": roles}}}).access
        gateway.gateway.reconfigure(gateway.settings.model_copy(update={"access": access}), gateway.upstreams)
        gateway["files"].disconnect()
        gateway["files"].connect()
        await listeners[1].hears(ResourceUpdated("files+file:///public/a"))
        assert ResourceUpdated("files+file:///public/a") not in listeners[0].changes


async def test_a_link_of_a_session_ends_with_it_though_its_upstream_is_denied_by_then() -> None:
    options = {"files": {"connection": "session"}}
    async with house(files(), access=ACCESS, options=options) as gateway:
        listener = gateway.listener(session="s", principal=READER)
        await gateway.call("tools/call", listener=listener, name="files__look")
        none = Settings.model_validate({"access": {"policy": {"default": "deny"}}}).access
        gateway.gateway.reconfigure(gateway.settings.model_copy(update={"access": none}), gateway.upstreams)
        gateway.gateway.leave(listener)
        assert gateway["files"].released == ["s"]


async def test_a_call_that_waits_for_its_client_is_not_carried_on_by_a_caller_that_may_not_make_it_any_more() -> None:
    upstream = Asking("files")
    upstream.lists[Kind.TOOLS] = [tool("look", **READ_ONLY)]
    async with house(upstream, access=ACCESS, bridge={"gather": 0}) as gateway:
        await gateway.ready()
        asks = {"roots": raw({})}
        call = partial(
            gateway.call, "tools/call", principal=READER, version=LATEST, capabilities=asks, name="files__look"
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wake_until_asked, gateway)
            paused = await call()
            tasks.cancel_scope.cancel()
        assert isinstance(paused, InputRequired)
        denied = Settings.model_validate({"access": {"policy": {"default": "deny"}}}).access
        gateway.gateway.reconfigure(gateway.settings.model_copy(update={"access": denied}), gateway.upstreams)
        answers = {key: {"roots": list[object]()} for key in paused.requests}
        refused = error(await call(requestState=paused.state, inputResponses=answers))
        assert (refused.code, refused.message) == (INVALID_PARAMS, "Unknown tool: files__look")
        assert upstream.answered == []


class Asking(FakeUpstream):
    """Its tools ask for the roots of their client."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.answered: list[Raw] = []

    async def __call__(self, call: Call) -> Outcome:
        if call.method != "tools/call":
            return await super().__call__(call)
        self.answered.append(await call.client.ask(InputRequest("roots/list", {})))
        return complete(content=[])


async def wake_until_asked(gateway: House) -> None:
    while True:
        gateway.sleeper.wake()
        await anyio.lowlevel.checkpoint()


# Endpoints


ENDPOINTS = {
    "team": {"upstreams": ["files"], "tools": ["look", "delete"], "roles": ["admin"]},
    "open": {"upstreams": ["hid*"]},
}


async def test_an_endpoint_shows_its_selection_and_nothing_else() -> None:
    async with house(files(), hidden(), endpoints=ENDPOINTS) as gateway:
        await gateway.ready()
        assert await gateway.listed(Kind.TOOLS, endpoint="/open") == ["hidden__x"]
        assert await gateway.listed(Kind.TOOLS, endpoint="/team", principal=ADMIN) == ["files__look", "files__delete"]
        assert await gateway.listed(Kind.RESOURCES, endpoint="/team", principal=ADMIN) == []
        unlisted = await gateway.call("resources/read", endpoint="/team", principal=ADMIN, uri="files+file:///public/a")
        assert isinstance(unlisted, Failed)


async def test_an_endpoint_exists_for_those_alone_who_have_one_of_its_roles() -> None:
    async with house(files(), hidden(), endpoints=ENDPOINTS) as gateway:
        await gateway.ready()
        assert gateway.gateway.exists("/team", ADMIN)
        assert not gateway.gateway.exists("/team", READER)
        assert gateway.gateway.exists("/open", ANONYMOUS)
        assert not gateway.gateway.exists("/nil", ADMIN)
        assert error(await gateway.call("tools/list", endpoint="/team", principal=READER)).code == METHOD_NOT_FOUND


async def test_the_endpoint_of_an_upstream_exists_for_callers_that_may_use_something_of_it() -> None:
    async with house(files(), hidden(), access=ACCESS) as gateway:
        assert gateway.gateway.exists("files", READER)
        assert not gateway.gateway.exists("hidden", READER)
        assert gateway.gateway.exists("hidden", ADMIN)
        assert gateway.gateway.exists("", GATEWAY_ITSELF)


async def test_a_uri_that_is_not_legal_is_refused_as_that() -> None:
    async with house(files()) as gateway:
        await gateway.ready()
        for uri in ("files+file:///a%00b", "files+file:///a\nb", "files+x:%ff"):
            assert error(await gateway.call("resources/read", uri=uri)).code == INVALID_PARAMS
        assert gateway["files"].count("resources/read") == 0
