"""Fetches all pages of one list of an upstream (requirement R31), bounded in pages, entries and bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
import msgspec
from msgspec import Raw

from mcproxy.call.calls import Complete, Failed, InputRequired, Outcome
from mcproxy.call.errors import Party
from mcproxy.protocol.caching import UNSAID, Hints, least, read_hints
from mcproxy.protocol.json.bounds import TooMany, first_items, parse_array
from mcproxy.protocol.jsonrpc import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    ErrorObject,
    Params,
    parse_text,
    raw,
)

FetchPage = Callable[[Params], Awaitable[Outcome]]
"""Requests one page; the params hold the cursor, if any."""


class Paged(Protocol):
    """A paginated list: `methods.Kind`, and tasks."""

    @property
    def member(self) -> str:
        """The member of a result that holds the entries."""

    @property
    def list_method(self) -> str:
        """The method that fetches a page."""


class PageLimits(msgspec.Struct, frozen=True):
    """The most that is fetched of one list."""

    pages: int
    entries: int
    bytes: int


class FetchedPages(msgspec.Struct, frozen=True):
    """All that was fetched of one list."""

    items: list[Raw]
    cut: str | None = None
    """The reason why further pages were not fetched, if so."""
    hints: Hints = UNSAID
    """The most restrictive caching hints of all pages."""


class _Page(msgspec.Struct, frozen=True):
    items: list[Raw]
    cursor: str | None
    hints: Hints
    excess: str | None
    """Why some of its items were not read, if so."""


class _Malformed(Exception):
    pass


async def fetch_pages(send: FetchPage, kind: Paged, bounds: PageLimits) -> FetchedPages | Failed:
    """The items of all pages, or the failure of the first page that failed."""
    items: list[Raw] = []
    hints: list[Hints] = []
    size = 0
    params: Params = {}
    cursors: set[str] = set()
    for _ in range(bounds.pages):
        outcome = await send(params)
        if _offers_none(outcome, first=not cursors):
            return FetchedPages([])
        try:
            page = await _read(outcome, kind, bounds.entries)
        except _Malformed as malformed:
            return outcome if isinstance(outcome, Failed) else _failed(f"{kind.list_method}: {malformed}")
        items += page.items
        hints.append(page.hints)
        size += sum(len(memoryview(item)) for item in page.items)
        if page.excess is not None:
            return FetchedPages(items[: bounds.entries], page.excess)
        if len(items) > bounds.entries or size > bounds.bytes:
            excess = f"it has more than {bounds.entries} entries or {bounds.bytes} bytes"
            return FetchedPages(items[: bounds.entries], excess)
        # pagination: any string is a valid cursor, the empty string too.
        if page.cursor is None:
            return FetchedPages(items, hints=least(hints))
        if page.cursor in cursors:
            return FetchedPages(items, "a cursor came again")
        cursors.add(page.cursor)
        params = {"cursor": raw(page.cursor)}
    return FetchedPages(items, f"it has more than {bounds.pages} pages")


def _offers_none(outcome: Outcome, *, first: bool) -> bool:
    """Whether the failure only means an empty list.

    Some servers declare `resources` and have no templates, or the other way round.
    """
    return first and isinstance(outcome, Failed) and outcome.error.code == METHOD_NOT_FOUND


async def _read(outcome: Outcome, kind: Paged, most: int) -> _Page:
    match outcome:
        case Complete(result=result):
            return await _read_page(result, kind, most)
        case InputRequired():
            raise _Malformed("a list may not ask for input")
        case Failed(error=error):
            raise _Malformed(error.message)


async def _read_page(result: Params, kind: Paged, most: int) -> _Page:
    excess = None
    try:
        try:
            items = parse_array(result[kind.member], most)
        except TooMany as error:
            # What says so, and what reads the first, are each a pass over a message that is as large as they come.
            await anyio.lowlevel.checkpoint()
            items, excess = first_items(result[kind.member]), f"a page of it {error}"
    except (KeyError, msgspec.MsgspecError, RecursionError) as error:
        raise _Malformed(f"the result holds no list {kind.member!r}") from error
    cursor = result.get("nextCursor", Raw(b"null"))
    return _Page(items, parse_text(cursor), read_hints(result), excess)


def _failed(sentence: str) -> Failed:
    return Failed(ErrorObject(INTERNAL_ERROR, sentence), Party.UPSTREAM)
