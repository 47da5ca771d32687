"""Answers `find_tools`, `describe_tools`, and calls of `call_read` and the like that name no tool.

Everything comes from the caller's own view, which contains nothing that the caller may not use (R38). Only what each
caller's last search found is kept between calls, for metrics.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcproxy.call.calls import Call, Complete, Outcome
from mcproxy.call.errors import McpError
from mcproxy.catalog.argument_flaws import flaws
from mcproxy.catalog.search.own_tools import DESCRIBE, FIND, MAX_DESCRIBED, MAX_FOUND, SCHEMAS
from mcproxy.concurrency.clock import Clock
from mcproxy.features.search.answer_texts import definitions_answer, told, wrong
from mcproxy.features.search.embeddings import ToolEmbeddings
from mcproxy.features.search.follow_ups import FollowUps
from mcproxy.features.search.found_lines import fitting
from mcproxy.features.search.indexes import SearchableView, SearchIndexes
from mcproxy.gateway.listings.fetcher import ListFetcher
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.protocol.json.bounds import parse_texts
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    METHOD_NOT_FOUND,
    InvalidObject,
    Params,
    parse_object,
    parse_text,
    raw,
)
from mcproxy.protocol.methods import Kind
from mcproxy.protocol.tasks import CAPABILITY, TASK
from mcproxy.settings import Settings
from mcproxy.settings.endpoints import SearchSettings
from mcproxy.telemetry.metrics import Metrics

TOKEN: Final = 4
"""Estimated bytes per token."""

MAX_START: Final = 1 << 40
"""The largest byte offset at which a piece of a definition may begin; no definition is as long."""
RECENT: Final = 1.0
"""Seconds before the lists behind an unchanged view are checked for freshness again."""

_SCHEMAS: Final = {name: raw(schema) for name, schema in SCHEMAS.items()}


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of `find_tools`."""

    query: str
    limit: int | UnsetType = UNSET


_find_arguments = msgspec.json.Decoder(_Asked)


class ToolSearch:
    """`answer` is the handler of the gateway's own tools, by their names in `own_tools`."""

    def __init__(
        self,
        catalogue: Catalogue,
        fetcher: ListFetcher,
        settings: Settings,
        metrics: Metrics,
        embeddings: ToolEmbeddings,
        now: Clock = time.monotonic,
    ) -> None:
        self._catalogue = catalogue
        self._fetcher = fetcher
        self._list_wait = settings.proxy.list_wait
        self._called = metrics.searches.labels("called")
        not_called = metrics.searches.labels("none")
        self._indexes = SearchIndexes()
        self._embeddings = embeddings
        self._follow_ups = FollowUps(now)
        metrics.searches.before_reading(lambda: not_called.inc(self._follow_ups.take_unfollowed()))
        self._now = now
        self._latest: tuple[SearchableView, float] | None = None
        """The view that was searched last, and the time until which its lists count as fresh."""

    def adopt(self, previous: ToolSearch) -> None:
        """Takes over the indexes, and each caller's last search."""
        self._indexes = previous._indexes
        self._follow_ups = previous._follow_ups
        self._embeddings = previous._embeddings

    def note_called(self, call: Call, tool: str) -> None:
        """Counts a search as followed by a call, at the first call of a tool that it found."""
        if self._follow_ups.called(call.caller, tool):
            self._called.inc()

    async def answer(self, call: Call) -> Outcome:
        """The result of one of the gateway's own tools. Raises McpError for a call that requests a task."""
        if TASK in call.params and CAPABILITY in self._catalogue.view(call.caller).capabilities:
            raise McpError(METHOD_NOT_FOUND, "the gateway's own tools cannot be called as tasks")
        name, given = parse_text(call.params.get("name", b"")) or "", call.params.get("arguments", EMPTY_OBJECT)
        if name == FIND and (asked := _asked(given)) is not None:
            return await self._find(call, asked.query, None if asked.limit is UNSET else asked.limit)
        try:
            arguments = parse_object(given)
        except InvalidObject as error:
            return wrong([f'the member "arguments" {error.flaw}'], _SCHEMAS[name], name)
        found = flaws(_SCHEMAS[name], arguments)
        if found:
            return wrong(found, _SCHEMAS[name], name)
        if name == FIND:
            limit = _number(arguments.get("limit"), 1, MAX_FOUND)
            return await self._find(call, parse_text(arguments["query"]) or "", limit)
        if name == DESCRIBE:
            return await self._describe(call, arguments)
        # `call_read` and the like get here only if their arguments name no tool; otherwise it is a call of that tool.
        return wrong(["the name of a tool is required"], _SCHEMAS[name], name)

    async def _find(self, call: Call, query: str, limit: int | None) -> Outcome:
        """`limit` is the largest number of tools to find; None if the caller gave none."""
        view = await self._view(call)
        endpoint = view.view.layout.search
        settings = SearchSettings() if endpoint is None else endpoint.search
        most = settings.results if limit is None else max(1, min(MAX_FOUND, limit))
        if self._embeddings.on:
            positions = await self._embeddings.ranked(view, query, most)
        else:
            positions = view.words.search(query, most)
        lines = map(view.lines.__getitem__, positions)
        names, texts, sizes = zip(*lines, strict=True) if positions else ((), (), ())
        self._follow_ups.searched(call.caller, names)
        if not positions:
            servers = ", ".join(space.upstream for space in view.view.layout.spaces)
            return told(f"No tool was found. Try other words, or the name of a server: {servers}.")
        shown = fitting(sizes, settings.max_tokens * TOKEN)
        if shown < len(texts):
            more = b"(%d more: ask for fewer, or with other words)" % (len(texts) - shown)
            texts = (*texts[:shown], more)
        return Complete({"content": Raw(b'[{"type":"text","text":"%b"}]' % b"\\n".join(texts))})

    async def _describe(self, call: Call, arguments: Params) -> Outcome:
        try:
            names = parse_texts(arguments["names"], MAX_DESCRIBED)
        except (msgspec.MsgspecError, RecursionError):
            names = []
        if not 0 < len(names) <= MAX_DESCRIBED:
            return wrong([f"'names' must be a list of 1 to {MAX_DESCRIBED} names"], _SCHEMAS[DESCRIBE], DESCRIBE)
        view = await self._view(call)
        by_name = {shown.key: shown for shown in view.tools}
        known = [by_name[name] for name in dict.fromkeys(names) if name in by_name]
        unknown = [name for name in dict.fromkeys(names) if name not in by_name]
        return definitions_answer(known, unknown, _number(arguments.get("start"), 0, MAX_START) or 0)

    async def _view(self, call: Call) -> SearchableView:
        """The caller's view, once upstreams that are still connecting have listed, or after `list_wait`."""
        found, now = self._latest, self._now()
        if found is not None and found[1] > now and found[0].view is self._catalogue.view(call.caller):
            return found[0]
        await self._fetcher.fresh(call.caller, Kind.TOOLS, self._list_wait)
        view = await self._indexes.of(self._catalogue.view(call.caller))
        self._latest = view, now + RECENT
        return view


def _asked(arguments: Raw) -> _Asked | None:
    """The arguments of `find_tools` if they are plainly valid; else None, and `flaws` says what is wrong."""
    try:
        asked = _find_arguments.decode(arguments)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return asked


def _number(value: Raw | None, least: int, most: int) -> int | None:
    """`value` within these bounds; `flaws` has checked that it is an integer if given."""
    if value is None:
        return None
    try:
        number = int(msgspec.json.decode(value))
    except msgspec.MsgspecError:  # 1e400
        number = least if bytes(value).startswith(b"-") else most
    return max(least, min(most, number))
