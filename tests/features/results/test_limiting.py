"""The twin of `mcproxy.features.results.limiting`, through all of the gateway and in both eras."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec import Raw

from mcproxy.call.calls import Complete
from mcproxy.call.clients import TaskChanged
from mcproxy.call.identity import Principal
from mcproxy.features.results.shortening import compact
from mcproxy.features.results.structured import STEP
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE, V2025_03_26
from mcproxy.protocol.jsonrpc import first_level, raw, size_of
from mcproxy.protocol.methods import Kind
from mcproxy.protocol.tasks import TASK_NOTIFICATION
from mcproxy.settings import Settings
from mcproxy.settings.upstreams.upstream import ResultLimit
from tests.depth import examples
from tests.fakes.upstream import FakeUpstream, House, complete, decoded, error, house, quiet, tool
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

LIMIT = 4096
LONG = "".join(f"line {number}\n" for number in range(2000))
SCHEMA = {"type": "object", "properties": {"rows": {"type": "array", "items": {"type": "integer"}, "minItems": 3}}}
LIMITED: Mapping[str, Mapping[str, object]] = {"up": {"results": {"max_bytes": LIMIT}}}


def server(result: Mapping[str, object], **members: object) -> FakeUpstream:
    upstream = FakeUpstream("up", tools={})
    upstream.lists[Kind.TOOLS] = [tool("get", **members), tool("other")]
    upstream.answers["tools/call"] = lambda call: complete(**result)
    return upstream


async def ready(h: House) -> None:
    await h.ready()
    await quiet()


async def got(h: House, version: str = LATEST, name: str = "up__get") -> Any:
    return decoded(await h.call("tools/call", version=version, name=name))


def text(value: str) -> dict[str, object]:
    return {"type": "text", "text": value}


def counted(h: House, verdict: str) -> float:
    labels = {"upstream": "up", "verdict": verdict}
    return h.metrics.registry.get_sample_value("mcproxy_large_results_total", labels) or 0


@pytest.mark.parametrize("version", [LATEST, LATEST_HANDSHAKE])
async def test_a_long_text_is_head_tail_and_a_link_by_which_its_caller_reads_the_whole(version: str) -> None:
    async with house(server({"content": [text(LONG)]}), options=LIMITED) as h:
        await ready(h)
        shown, link = (await got(h, version))["content"]
        assert shown["text"].startswith("line 0\nline 1\n")
        assert shown["text"].endswith("line 1999\n")
        assert f"the whole is the resource {link['uri']}, its first" in shown["text"]
        assert len(shown["text"]) < LIMIT + 400
        assert (link["type"], link["size"]) == ("resource_link", len(LONG))
        whole: Any = decoded(await h.call("resources/read", version=version, uri=link["uri"]))["contents"]
        assert whole == [{"uri": link["uri"], "mimeType": "text/plain", "text": LONG}]
        part: Any = decoded(await h.call("resources/read", version=version, uri=link["uri"] + "/7-14"))["contents"]
        assert part[0]["text"] == "line 1\n"
        other = await h.call("resources/read", version=version, principal=Principal("bob"), uri=link["uri"])
        assert "is no longer kept, or is another caller's" in error(other).message
        assert counted(h, "shortened") == 1


def access_of(*rules: Mapping[str, object]) -> dict[str, Any]:
    """`dev` may read everything and call by these rules; `ops` may do anything."""
    return {"policy": {"roles": {"dev": {"allow": [{"resources": ["*"]}, *rules]}, "ops": {"allow": [{}]}}}}


async def test_r81_a_kept_result_is_judged_at_each_read_by_the_rights_of_then() -> None:
    calls: Mapping[str, object] = {"tools": ["get"], "arguments": {"path": {"equals": "/a"}}}
    async with house(server({"content": [text(LONG)]}), options=LIMITED, access=access_of(calls)) as h:
        await ready(h)
        dev, ops = Principal("ann", frozenset({"dev"})), Principal("ann", frozenset({"dev", "ops"}))

        async def kept(who: Principal, path: str) -> str:
            arguments = {"path": path, "large": ["x" * 70_000]}
            answer = await h.call("tools/call", principal=who, name="up__get", arguments=arguments)
            content: Any = decoded(answer)["content"]
            return str(content[1]["uri"])

        async def reads(who: Principal, uri: str) -> bool:
            return isinstance(await h.call("resources/read", principal=who, uri=uri), Complete)

        allowed, denied = await kept(dev, "/a"), await kept(ops, "/b")
        assert await reads(dev, allowed)
        assert await reads(dev, allowed + "/0-9")
        assert await reads(ops, allowed)
        assert await reads(ops, denied)
        assert not await reads(dev, denied)
        others = {**calls, "arguments": {"path": {"equals": "/b"}}}
        for rule, may in (({"tools": ["other"]}, False), (calls, True), (others, False)):
            access = Settings.model_validate({"access": access_of(rule)}).access
            h.gateway.reconfigure(h.settings.model_copy(update={"access": access}), h.upstreams)
            assert [await reads(dev, uri) for uri in (allowed, allowed + "/0-9")] == [may, may]


@pytest.mark.parametrize("version", [LATEST, LATEST_HANDSHAKE, V2025_03_26])
async def test_r81_of_many_small_blocks_a_caller_gets_the_ends_and_reads_all(version: str) -> None:
    blocks = [text(f"{number} " + "x" * 1000) for number in range(999)]
    async with house(server({"content": blocks}), options={"up": {"results": {"max_bytes": 65536}}}) as h:
        await ready(h)
        result = await got(h, version)
        assert 60_000 < len(raw(result)) <= 65536
        places = {shown["text"].split()[0]: shown for shown in result["content"] if "text" in shown}
        assert list(places)[:2] == ["0", "1"]
        note = places.pop("[...")["text"]
        assert list(places)[-2:] == ["997", "998"]
        assert f"{999 - len(places)} of 999 blocks are left out" in note
        uri = note.split("the resource ")[1].split(",")[0]
        assert [shown["uri"] for shown in result["content"] if "uri" in shown] == [uri] * (version != V2025_03_26)
        whole: Any = decoded(await h.call("resources/read", version=version, uri=uri))["contents"]
        assert (whole[0]["mimeType"], json.loads(whole[0]["text"])) == ("application/json", blocks)
        other = await h.call("resources/read", version=version, principal=Principal("bob"), uri=uri)
        assert "is no longer kept, or is another caller's" in error(other).message
        assert counted(h, "shortened") == 1


async def test_clients_of_revisions_without_links_find_the_uri_in_the_text() -> None:
    async with house(server({"content": [text(LONG)]}), options=LIMITED) as h:
        await ready(h)
        (shown,) = (await got(h, V2025_03_26))["content"]
        assert "mcproxy-result:" in shown["text"]


async def test_clients_are_told_that_there_may_be_resources_where_no_upstream_has_any() -> None:
    async with house(server({}), options=LIMITED) as h:
        await ready(h)
        assert "resources" in decoded(await h.call("server/discover", version=LATEST))["capabilities"]  # type: ignore[operator]  # it is an object
        assert await h.listed(Kind.RESOURCES) == []


@pytest.mark.parametrize("result", [{"content": [text("short")]}, {"content": [], "structuredContent": {"rows": [1]}}])
async def test_a_result_within_the_limit_is_the_very_result(result: dict[str, object]) -> None:
    async with house(server(result), options=LIMITED) as h:
        await ready(h)
        assert await got(h) == result


async def test_images_and_blobs_pass_with_the_texts_that_there_is_room_for_and_are_counted() -> None:
    image = {"type": "image", "data": "A" * 10_000, "mimeType": "image/png"}
    blob = {"type": "resource", "resource": {"uri": "up+file:///a", "blob": "A" * 10_000}}
    async with house(server({"content": [image, text("short"), blob]}), options=LIMITED) as h:
        await ready(h)
        shown = (await got(h))["content"]
        assert (shown[:2], shown[2]["resource"]["blob"]) == ([image, text("short")], "A" * 10_000)
        assert counted(h, "shortened") == 0
        assert counted(h, "uncut") == 1


@pytest.mark.parametrize(("schema", "least"), [({"outputSchema": SCHEMA}, 3), ({}, 0)], ids=["schema", "none"])
async def test_arrays_of_structured_content_are_cut_as_far_as_the_output_schema_allows(
    schema: dict[str, object], least: int
) -> None:
    rows = list(range(5000))
    async with house(server({"content": [], "structuredContent": {"rows": rows}}, **schema), options=LIMITED) as h:
        await ready(h)
        result = await got(h)
        shown = result["structuredContent"]["rows"]
        assert least <= len(shown) < 5000
        assert shown == rows[: len(shown)]
        note, link = result["content"]
        assert link["uri"] in note["text"]
        whole: Any = decoded(await h.call("resources/read", version=LATEST, uri=link["uri"]))["contents"]
        assert whole[0]["mimeType"] == "application/json"
        assert whole[0]["text"].startswith('{"rows":[0,1,2,')


async def structured(value: Raw) -> dict[str, Raw]:
    """What a caller gets of a result with that structured content."""
    async with house(server({"content": [], "structuredContent": value}), options=LIMITED) as h:
        await ready(h)
        outcome = await h.call("tools/call", version=LATEST, name="up__get")
        assert isinstance(outcome, Complete)
        return dict(outcome.result)


@hypothesis_settings(max_examples=examples(20))
@given(st.lists(st.integers() | st.text(max_size=20) | st.just({"a": [1, {}]}), max_size=400), st.integers(0, 9))
@example(["x"] * 800, 4)
@example(["x"] * 1200, 9)
def test_white_space_counts_nothing_and_what_is_not_cut_is_the_very_bytes(rows: list[object], indent: int) -> None:
    pretty = Raw(json.dumps({"rows": rows}, indent=indent).encode())
    plain = compact(pretty)
    shown, of_plain = asyncio.run(structured(pretty)), asyncio.run(structured(plain))
    if bytes(of_plain["structuredContent"]) == bytes(plain):
        assert bytes(shown["structuredContent"]) == bytes(pretty)
        assert bytes(shown["content"]) == b"[]"
    else:
        assert bytes(shown["structuredContent"]) == bytes(of_plain["structuredContent"])
        assert len(shown["structuredContent"]) <= LIMIT
        link = json.loads(bytes(shown["content"]))[1]
        assert link["size"] == len(pretty)


async def test_r78_others_have_their_turn_while_a_large_result_is_shortened() -> None:
    value = {f"a{number}": [1] * 90_000 for number in range(40)}
    async with house(server({"content": [], "structuredContent": value}), options=LIMITED) as h:
        await ready(h)
        shown: list[object] = []
        turns = 0
        with anyio.fail_after(GUARD):
            async with anyio.create_task_group() as tasks:

                async def call() -> None:
                    shown.append(await got(h))

                tasks.start_soon(call)
                while not shown:
                    turns += 1
                    await anyio.lowlevel.checkpoint()
        assert turns >= len(raw(value)) // STEP
        assert len(raw(shown[0])) < LIMIT + 1000


async def test_structured_content_that_its_schema_keeps_from_being_cut_passes_whole_and_is_counted() -> None:
    schema = {"type": "object", "properties": {"rows": {"type": "array", "contains": {"const": 4999}}}}
    rows = list(range(5000))
    async with house(
        server({"content": [], "structuredContent": {"rows": rows}}, outputSchema=schema), options=LIMITED
    ) as h:
        await ready(h)
        assert (await got(h))["structuredContent"] == {"rows": rows}
        assert counted(h, "structured") == 1


async def test_what_is_larger_than_can_be_kept_passes_whole_and_is_counted() -> None:
    async with house(
        server({"content": [text(LONG)]}), options=LIMITED, results={"max_bytes_per_principal": 1000}
    ) as h:
        await ready(h)
        assert (await got(h))["content"] == [text(LONG)]
        assert counted(h, "unkept") == 1


@pytest.mark.parametrize(
    ("result", "members"),
    [
        ({"content": [text(LONG)]}, {"_meta": {"anthropic/maxResultSizeChars": 100_000}}),
        ({"content": [text(LONG)], "_meta": {"anthropic/maxResultSizeChars": 100_000}}, {}),
    ],
    ids=["of the tool", "of the result"],
)
async def test_a_hint_that_hosts_show_so_much_raises_the_limit_and_a_limit_of_the_tool_itself_goes_before(
    result: dict[str, object], members: dict[str, object]
) -> None:
    async with house(server(result, **members), options=LIMITED) as h:
        await ready(h)
        assert (await got(h))["content"] == [text(LONG)]
    own = {"up": {"tools": {"overrides": {"get": {"results": {"max_bytes": LIMIT}}}}}}
    async with house(server(result, **members), options=own) as h:
        await ready(h)
        assert len((await got(h))["content"]) == 2
        assert (await got(h, name="up__other"))["content"] == [text(LONG)]


async def test_the_result_of_a_task_has_the_limit_of_its_tool() -> None:
    up = server({"task": {"taskId": "1", "status": "working", "createdAt": "now", "lastUpdatedAt": "now", "ttl": None}})
    up.identity = FakeUpstream("up", tools={}, tasks={"requests": {"tools": {"call": {}}}}).identity
    up.lists[Kind.TOOLS] = [tool("get", execution={"taskSupport": "optional"})]
    up.answers["tasks/result"] = lambda call: complete(content=[text(LONG)])
    async with house(up, options=LIMITED) as h:
        await ready(h)
        listener = h.listener()
        made: Any = decoded(await h.call("tools/call", listener=listener, name="up__get", task={}))
        result = decoded(await h.call("tasks/result", listener=listener, taskId=made["task"]["taskId"]))
        assert size_of({}) < len(str(result)) < LIMIT + 1500


@pytest.mark.parametrize(("long", "told"), [(False, True), (True, False)], ids=["within", "over"])
async def test_a_result_over_its_limit_comes_by_a_call_alone(long: bool, told: bool) -> None:
    state = {"taskId": "1", "status": "completed", "createdAt": "now", "lastUpdatedAt": "now", "ttl": None}
    result = {"content": [text(LONG if long else "short")]}
    up = server({"task": {**state, "status": "working"}})
    up.identity = FakeUpstream("up", tools={}, tasks={"list": {}, "requests": {"tools": {"call": {}}}}).identity
    up.lists[Kind.TOOLS] = [tool("get", execution={"taskSupport": "optional"})]
    up.answers["tasks/list"] = lambda call: complete(tasks=[{**state, "result": result}])
    async with house(up, options=LIMITED) as h:
        await ready(h)
        listener = h.listener()
        made: Any = decoded(await h.call("tools/call", listener=listener, name="up__get", task={}))
        expected = {**state, "taskId": made["task"]["taskId"], **({"result": result} if told else {})}
        assert decoded(await h.call("tasks/list", listener=listener))["tasks"] == [expected]
        up.announce(TaskChanged("1", TASK_NOTIFICATION, first_level({**state, "result": result})))
        heard = [decoded(change.params) for change in listener.changes if isinstance(change, TaskChanged)]
        assert heard == [expected] * told


async def test_a_limit_that_a_reload_brings_or_takes_away_is_in_force_at_once() -> None:
    async with house(server({"content": [text(LONG)]})) as h:
        await ready(h)
        (spec,) = h.settings.upstreams
        for limit, blocks in ((LIMIT, 2), (None, 1)):
            limited = spec.model_copy(update={"results": ResultLimit(max_bytes=limit)})
            h.gateway.reconfigure(h.settings.model_copy(update={"upstreams": (limited,)}), dict(h.upstreams))
            assert len((await got(h))["content"]) == blocks


async def test_without_a_limit_there_is_no_stage() -> None:
    async with house(server({"content": [text(LONG)]})) as h:
        await ready(h)
        assert (await got(h))["content"] == [text(LONG)]
        assert "kept" not in error(await h.call("resources/read", uri="mcproxy-result:x")).message
