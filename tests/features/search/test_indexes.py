"""The indexes of views: one for each, exact, and bounded by tools."""

from __future__ import annotations

import anyio
import pytest

from mcproxy.catalog.naming import Layout
from mcproxy.catalog.search.ranking import STEP, ToolIndex, ToolText, terms_of
from mcproxy.catalog.views.view import Shown, View
from mcproxy.features.search.indexes import SLICE, SearchableView, SearchIndexes, searched_text
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from tests.fakes.upstream import tool
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

LAYOUT = Layout("/agent", ())


def view(*names: str) -> View:
    shown = tuple(Shown(f"git__{name}", "git", name, raw(tool(f"git__{name}"))) for name in names)
    return View(LAYOUT, dict.fromkeys(Kind, ()), {}, unlisted=shown)


async def test_the_index_of_a_view_is_made_once() -> None:
    indexes, asked = SearchIndexes(), view("log", "push")
    assert await indexes.of(asked) is await indexes.of(asked)


@pytest.mark.parametrize("max_tools", [2, 1])
async def test_callers_that_ask_at_once_wait_for_one_index(max_tools: int) -> None:
    indexes, asked = SearchIndexes(max_tools), view("log", "push")
    found: list[SearchableView] = []

    async def ask() -> None:
        found.append(await indexes.of(asked))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(ask)
    assert len(found) == 3
    assert all(each is found[0] for each in found)


async def test_where_the_one_who_makes_an_index_gives_up_another_makes_it() -> None:
    indexes, asked = SearchIndexes(), view("log", "push")
    giving_up = anyio.CancelScope()

    async def give_up() -> None:
        with giving_up:
            await indexes.of(asked)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(give_up)
        await anyio.lowlevel.checkpoint()
        giving_up.cancel()
        with anyio.fail_after(GUARD):
            assert (await indexes.of(asked)).tools == asked.unlisted


async def test_an_index_counts_the_tools_of_its_view_alone() -> None:
    indexes, one, other = SearchIndexes(), view("log"), view("log", "log_all", "log_some")
    await indexes.of(other)
    assert (await indexes.of(one)).words.search("log", 5) == alone("log").search("log", 5)


def alone(name: str) -> ToolIndex:
    return ToolIndex([terms_of(ToolText(name, upstream="git"))])


async def test_a_view_of_many_tools_is_indexed_in_slices() -> None:
    names = [f"tool_{number}" for number in range(3 * SLICE)]
    found = await SearchIndexes().of(view(*names))
    assert found.words.search("74", 5) == [74]


async def test_other_calls_have_their_turn_while_an_index_is_made() -> None:
    tools, turns, is_made = 4 * STEP, 0, False

    async def count() -> None:
        nonlocal turns
        while not is_made:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        await SearchIndexes().of(view(*(f"tool_{number}" for number in range(tools))))
        is_made = True
    assert turns > tools // SLICE + tools // STEP  # of twice as many for the second


async def test_the_least_recently_used_index_goes_when_there_are_too_many_tools() -> None:
    indexes, one, other = SearchIndexes(3), view("a", "b"), view("c", "d")
    first = await indexes.of(one)
    await indexes.of(other)
    assert await indexes.of(one) is not first


async def test_a_view_with_more_tools_than_are_kept_is_searched_all_the_same() -> None:
    found = await SearchIndexes(1).of(view("log", "push"))
    assert found.words.search("push", 5) == [1]


async def test_the_words_of_a_tool_are_those_that_its_callers_see() -> None:
    properties = {"repo": {"type": "string", "description": "Where."}, "limit": {}}
    entry = tool("git__log", title="Log", description="Shows.", inputSchema={"properties": properties})
    assert searched_text(Shown("git__log", "git", "log", raw(entry))) == ToolText(
        "log", "Log", "Shows.", "repo limit", "Where.", "git"
    )
