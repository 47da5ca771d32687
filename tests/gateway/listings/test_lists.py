"""The twin of `mcproxy.gateway.listings.lists`: pages of lists, and what is offered at all."""

from __future__ import annotations

import pytest

from mcproxy import __version__
from mcproxy.call.clients import ListChanged
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE, META_SERVER_INFO
from mcproxy.protocol.methods import Kind
from tests.fakes.upstream import FakeUpstream, House, complete, decoded, error, house, quiet, tool

pytestmark = pytest.mark.anyio

TWO_A_PAGE = {"page_size": 2}


def offering(name: str, *tools: str) -> FakeUpstream:
    upstream = FakeUpstream(name, tools={})
    upstream.lists[Kind.TOOLS] = [tool(each) for each in tools]
    return upstream


async def page(h: House, cursor: object = None) -> tuple[list[str], object]:
    """The names on a page, and the cursor of the next one."""
    params = {} if cursor is None else {"cursor": cursor}
    result = decoded(await h.call("tools/list", **params))  # type: ignore[arg-type]  # the params of the call
    assert isinstance(result["tools"], list)
    return [entry["name"] for entry in result["tools"]], result.get("nextCursor")


async def test_r31_pages_come_in_order_and_end_without_a_cursor() -> None:
    async with house(offering("a", "1", "2", "3"), offering("b", "4", "5"), naming=TWO_A_PAGE) as h:
        await h.ready()
        one, cursor = await page(h)
        two, cursor = await page(h, cursor)
        three, cursor = await page(h, cursor)
        assert (one, two, three, cursor) == (["a__1", "a__2"], ["a__3", "b__4"], ["b__5"], None)


async def test_r31_a_list_that_just_fits_is_one_page() -> None:
    async with house(offering("a", "1", "2"), naming=TWO_A_PAGE) as h:
        await h.ready()
        assert await page(h) == (["a__1", "a__2"], None)


async def test_a_list_that_changed_between_pages_goes_on_after_the_last_entry_seen() -> None:
    async with house(offering("a", "1", "2", "3", "4"), naming=TWO_A_PAGE) as h:
        await h.ready()
        listener = h.listener()
        _, cursor = await page(h)
        h["a"].list_changed(Kind.TOOLS, [tool(name) for name in ("0", "1", "2", "3", "4")])
        await listener.hears(ListChanged(Kind.TOOLS))
        assert (await page(h, cursor))[0] == ["a__3", "a__4"]


async def test_a_list_that_lost_the_last_entry_seen_goes_on_at_its_place() -> None:
    async with house(offering("a", "1", "2", "3", "4"), naming=TWO_A_PAGE) as h:
        await h.ready()
        listener = h.listener()
        _, cursor = await page(h)
        h["a"].list_changed(Kind.TOOLS, [tool(name) for name in ("1", "x", "3", "4")])
        await listener.hears(ListChanged(Kind.TOOLS))
        assert (await page(h, cursor))[0] == ["a__3", "a__4"]


@pytest.mark.parametrize("cursor", ["", "made up", 7, {}, "AAAA", "ü"])
async def test_a_cursor_that_is_not_ours_is_refused(cursor: object) -> None:
    async with house(offering("a", "1")) as h:
        await h.ready()
        assert error(await h.call("tools/list", cursor=cursor)).code == -32602


async def test_a_cursor_that_is_null_is_none() -> None:
    async with house(offering("a", "1")) as h:
        await h.ready()
        assert await h.listed(Kind.TOOLS, cursor=None) == ["a__1"]


async def test_a_cursor_serves_its_own_list_and_endpoint_alone() -> None:
    up = FakeUpstream("a", tools={}, prompts={})
    up.lists[Kind.TOOLS] = [tool(name) for name in "1234"]
    async with house(up, naming=TWO_A_PAGE) as h:
        await h.ready()
        _, cursor = await page(h)
        assert error(await h.call("prompts/list", cursor=cursor)).code == -32602
        assert error(await h.call("tools/list", endpoint="a", cursor=cursor)).code == -32602


async def test_discover_names_the_gateway_and_what_is_behind_it() -> None:
    async with house(FakeUpstream("a", tools={}, novel={"x": 1}), name="my gateway") as h:
        await h.ready()
        info = {"name": "my gateway", "version": __version__}
        assert decoded(await h.call("server/discover")) == {
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {"listChanged": True}, "novel": {"x": 1}},
            "serverInfo": info,
            "_meta": {META_SERVER_INFO: info},
        }


async def test_discover_at_an_upstreams_endpoint_speaks_of_that_upstream() -> None:
    async with house(FakeUpstream("a", tools={}), FakeUpstream("b", prompts={})) as h:
        await h.ready()
        capabilities = {
            endpoint: decoded(await h.call("server/discover", endpoint=endpoint))["capabilities"]
            for endpoint in ("a", "b", "")
        }
        tools, prompts = {"tools": {"listChanged": True}}, {"prompts": {"listChanged": True}}
        assert capabilities == {"a": tools, "b": prompts, "": {**tools, **prompts}}


async def test_a_lost_upstream_still_counts_with_what_it_offered() -> None:
    async with house(FakeUpstream("a", tools={})) as h:
        await h.ready()
        h["a"].disconnect()
        await h.sleeper.slept(1)
        h.sleeper.wake()
        assert decoded(await h.call("server/discover"))["capabilities"] == {"tools": {"listChanged": True}}


def hinting(name: str, ttl: int, scope: str = "public", **capability: object) -> FakeUpstream:
    """An upstream whose list of tools says how long it is good for."""
    upstream = FakeUpstream(name, tools=capability)
    upstream.lists[Kind.TOOLS] = [tool("x")]
    upstream.answers["tools/list"] = lambda call: complete(
        tools=upstream.lists[Kind.TOOLS], ttlMs=ttl, cacheScope=scope
    )
    return upstream


async def hints(h: House, **call: object) -> tuple[object, object]:
    result = decoded(await h.call("tools/list", **call))  # type: ignore[arg-type]  # the options of `call`
    return result["ttlMs"], result["cacheScope"]


async def test_r36_a_list_is_good_for_what_is_left_of_its_upstreams_time() -> None:
    async with house(hinting("a", 60_000)) as h:
        await h.ready()
        assert await hints(h) == (60_000, "public")
        h.clock.now += 20
        assert await hints(h) == (40_000, "public")


async def test_r36_a_list_of_many_is_good_for_the_least_of_its_parts() -> None:
    async with house(hinting("a", 60_000), hinting("b", 5_000, "private"), FakeUpstream("c", prompts={})) as h:
        await h.ready()
        assert await hints(h) == (5_000, "private")
        assert await hints(h, endpoint="a") == (60_000, "public")


async def test_a_list_with_a_part_that_says_nothing_is_private_and_good_for_no_time() -> None:
    async with house(hinting("a", 60_000), offering("old", "x")) as h:
        await h.ready()
        assert await hints(h) == (0, "private")


async def test_every_page_says_how_long_it_is_good_for() -> None:
    up = hinting("a", 60_000)
    up.lists[Kind.TOOLS] = [tool(name) for name in "123"]
    async with house(up, naming=TWO_A_PAGE) as h:
        await h.ready()
        _, cursor = await page(h)
        assert await hints(h, cursor=cursor) == (60_000, "public")


async def test_a_list_is_good_for_no_time_while_an_upstream_may_still_come_or_is_away() -> None:
    async with house(hinting("a", 60_000), offering("late"), list_wait=0.01) as h:
        h["a"].connect()
        await h["a"].called("tools/list")
        assert await hints(h) == (0, "public")
        h["a"].disconnect()
        assert await hints(h, endpoint="a") == (0, "private")


async def test_r36_a_list_that_was_announced_to_have_changed_is_good_for_no_time_until_it_is_known() -> None:
    async with house(hinting("a", 60_000, listChanged=True)) as h:
        await h.ready()
        h["a"].gate.shut()
        h["a"].announce(ListChanged(Kind.TOOLS))
        await h["a"].gate.holds(1)
        assert await hints(h) == (0, "private")
        h["a"].gate.open()
        await quiet()
        assert await hints(h) == (60_000, "public")


async def test_r35_a_list_that_changed_while_it_was_fetched_is_good_for_no_time() -> None:
    async with house(hinting("a", 60_000, listChanged=True)) as h:
        await h.ready()
        h["a"].gate.shut()
        h["a"].announce(ListChanged(Kind.TOOLS))
        await h["a"].gate.holds(1)
        h["a"].announce(ListChanged(Kind.TOOLS))
        h["a"].gate.open()
        h["a"].gate.shut()
        await quiet()
        assert await hints(h) == (0, "private")
        h.sleeper.wake()
        await h["a"].called("tools/list", 3)
        await h["a"].gate.holds(1)
        assert await hints(h) == (0, "private")


async def test_r36_a_reconnect_leaves_a_list_no_time_until_it_is_known_again() -> None:
    async with house(hinting("a", 60_000)) as h:
        await h.ready()
        h["a"].gate.shut()
        h["a"].disconnect()
        h["a"].connect()
        assert await hints(h) == (0, "private")


async def test_a_handshake_client_sees_no_output_schema_that_is_not_of_an_object() -> None:
    up = FakeUpstream("a", tools={})
    up.lists[Kind.TOOLS] = [
        tool("list", outputSchema={"type": "array"}),
        tool("map", outputSchema={"type": "object"}),
        tool("any", outputSchema={}),
    ]
    async with house(up) as h:
        await h.ready()

        async def schemas(version: str) -> dict[str, object]:
            listed = decoded(await h.call("tools/list", version=version))["tools"]
            assert isinstance(listed, list)
            return {each["name"]: each.get("outputSchema") for each in listed}

        assert await schemas(LATEST) == {"a__list": {"type": "array"}, "a__map": {"type": "object"}, "a__any": {}}
        assert await schemas(LATEST_HANDSHAKE) == {"a__list": None, "a__map": {"type": "object"}, "a__any": None}
