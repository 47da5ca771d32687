"""The twin of `mcproxy.gateway.listings.pagination`."""

from __future__ import annotations

import pytest

from mcproxy.call.calls import Complete, Failed, Outcome
from mcproxy.gateway.listings.pagination import FetchedPages, FetchPage, PageLimits, fetch_pages
from mcproxy.protocol.caching import UNSAID, Hints
from mcproxy.protocol.jsonrpc import METHOD_NOT_FOUND, Params, first_level, parse_text
from mcproxy.protocol.methods import Kind
from tests.fakes.upstream import complete, failed

pytestmark = pytest.mark.anyio

WIDE = PageLimits(pages=100, entries=1000, bytes=10**6)


def book(pages: dict[str | None, tuple[list[object], object]]) -> FetchPage:
    """Pages by the cursor that asks for them: the items, and the next cursor or ... for none."""

    async def send(params: Params) -> Outcome:
        items, after = pages[parse_text(params["cursor"]) if "cursor" in params else None]
        return complete(tools=items) if after is ... else complete(tools=items, nextCursor=after)

    return send


def always(outcome: Outcome) -> FetchPage:
    async def send(params: Params) -> Outcome:
        return outcome

    return send


async def fetched(send: FetchPage, bounds: PageLimits = WIDE) -> tuple[list[bytes], str | None]:
    found = await fetch_pages(send, Kind.TOOLS, bounds)
    assert isinstance(found, FetchedPages)
    return [bytes(item) for item in found.items], found.cut


async def test_r31_the_empty_cursor_continues() -> None:
    pages = book({None: ([1], ""), "": ([2], "x"), "x": ([3], ...)})
    assert await fetched(pages) == ([b"1", b"2", b"3"], None)


async def test_r31_a_cursor_of_null_ends() -> None:
    assert await fetched(book({None: ([1], None)})) == ([b"1"], None)


async def test_r31_a_cursor_that_comes_again_ends_with_a_warning() -> None:
    assert await fetched(book({None: ([1], "x"), "x": ([2], "x")})) == ([b"1", b"2"], "a cursor came again")


async def test_r31_too_many_pages_end_with_a_warning() -> None:
    async def endless(params: Params) -> Outcome:
        last = int(parse_text(params["cursor"]) or 0) if "cursor" in params else 0
        return complete(tools=[last], nextCursor=str(last + 1))

    items, cut = await fetched(endless, PageLimits(pages=3, entries=1000, bytes=10**6))
    assert (items, cut) == ([b"0", b"1", b"2"], "it has more than 3 pages")


@pytest.mark.parametrize("bounds", [PageLimits(9, 2, 10**6), PageLimits(9, 10, 5)])
async def test_too_many_entries_or_bytes_end_with_a_warning(bounds: PageLimits) -> None:
    items, cut = await fetched(book({None: ([11, 22, 33], "x")}), bounds)
    assert len(items) == min(bounds.entries, 3)
    assert cut is not None


async def test_a_list_that_is_announced_and_unknown_is_empty() -> None:
    assert await fetched(always(failed("unknown", METHOD_NOT_FOUND))) == ([], None)


async def test_a_page_that_fails_fails_the_list() -> None:
    async def second_fails(params: Params) -> Outcome:
        return failed("boom", METHOD_NOT_FOUND) if "cursor" in params else complete(tools=[1], nextCursor="x")

    outcome = await fetch_pages(second_fails, Kind.TOOLS, WIDE)
    assert isinstance(outcome, Failed)
    assert outcome.error.message == "boom"


@pytest.mark.parametrize("result", [{}, {"tools": {}}, {"tools": None}, {"resources": []}], ids=str)
async def test_what_holds_no_list_fails(result: dict[str, object]) -> None:
    outcome = await fetch_pages(always(Complete(first_level(result))), Kind.TOOLS, WIDE)
    assert isinstance(outcome, Failed)
    assert outcome.error.message == "tools/list: the result holds no list 'tools'"


async def test_r36_the_pages_of_a_list_last_together_as_long_as_the_first_to_go() -> None:
    pages = {
        None: complete(tools=[1], nextCursor="2", ttlMs=60_000, cacheScope="public"),
        "2": complete(tools=[2], ttlMs=5_000, cacheScope="public"),
    }

    async def send(params: Params) -> Outcome:
        return pages[parse_text(params["cursor"]) if "cursor" in params else None]

    found = await fetch_pages(send, Kind.TOOLS, WIDE)
    assert isinstance(found, FetchedPages)
    assert found.hints == Hints(5.0, public=True)


async def test_a_list_that_was_cut_is_good_for_no_time() -> None:
    found = await fetch_pages(always(complete(tools=[1, 2], ttlMs=5_000)), Kind.TOOLS, PageLimits(1, 1, 1000))
    assert isinstance(found, FetchedPages)
    assert found.hints == UNSAID
