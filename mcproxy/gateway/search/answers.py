"""Answers the gateway's own tools: `find_tools`, `describe_tools`, and calls through the callers that name no tool.

Everything comes from the caller's own view, in which nothing is that it may not use (R38). Keeps nothing for a caller
between its calls but, for metrics, what its last search found.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.call.calls import Call, Complete, Outcome
from mcproxy.call.errors import McpError
from mcproxy.catalog.argument_flaws import flaws
from mcproxy.catalog.search.own_tools import DESCRIBE, FIND, MAX_DESCRIBED, MAX_FOUND, SCHEMAS, effect_of
from mcproxy.catalog.search.signatures import signature
from mcproxy.concurrency.clock import Clock
from mcproxy.gateway.component import Component, Reconfiguration
from mcproxy.gateway.listings.fetcher import ListFetcher
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.gateway.search.follow_ups import FollowUps
from mcproxy.gateway.search.indexes import SearchableView, SearchIndexes
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    METHOD_NOT_FOUND,
    InvalidMessage,
    Params,
    first_level,
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
"""Bytes of a token, as an estimate."""

OwnAnswer = Callable[[Call, Params], Awaitable[Outcome]]

_SCHEMAS: Final = {name: raw(schema) for name, schema in SCHEMAS.items()}

_CALLED: Final = "called"
_NOT_CALLED: Final = "none"

_names = msgspec.json.Decoder(list[str])


class ToolSearch(Component):
    """`answer` is the handler of the gateway's own tools, by their names in `own_tools`."""

    goes_by = frozenset({"proxy"})

    def __init__(
        self,
        catalogue: Catalogue,
        fetcher: ListFetcher,
        settings: Settings,
        metrics: Metrics,
        now: Clock = time.monotonic,
    ) -> None:
        self._catalogue = catalogue
        self._fetcher = fetcher
        self._list_wait = settings.proxy.list_wait
        self._metrics = metrics
        self._indexes = SearchIndexes()
        self._follow_ups = FollowUps(now)
        self._answers: Final[dict[str, OwnAnswer]] = {FIND: self._find, DESCRIBE: self._describe}

    def reconfigure(self, change: Reconfiguration) -> None:
        self._list_wait = change.settings.proxy.list_wait

    def note_called(self, call: Call, tool: str) -> None:
        """Counts a search as followed by a call, where it is the first of a tool that it found."""
        if self._follow_ups.called(call.caller, tool):
            self._metrics.searches.labels(_CALLED).inc()

    async def answer(self, call: Call) -> Outcome:
        """The result of a tool of the gateway's own. Raises McpError where it is to be a task."""
        if TASK in call.params and CAPABILITY in self._catalogue.view(call.caller).capabilities:
            raise McpError(METHOD_NOT_FOUND, "the gateway's own tools cannot be called as tasks")
        name = parse_text(call.params.get("name", b"")) or ""
        try:
            arguments = parse_object(call.params.get("arguments", EMPTY_OBJECT))
        except InvalidMessage:
            return wrong(["the arguments must be an object"], _SCHEMAS[name])
        answer = self._answers.get(name)
        found = flaws(_SCHEMAS[name], arguments)
        if answer is None or found:
            # A caller comes this far only where its arguments name no tool: else it is a call of that tool.
            return wrong(found or ["the name of a tool is required"], _SCHEMAS[name])
        return await answer(call, arguments)

    async def _find(self, call: Call, arguments: Params) -> Outcome:
        query = parse_text(arguments["query"]) or ""
        view = await self._view(call)
        endpoint = view.view.layout.search
        settings = SearchSettings() if endpoint is None else endpoint.search
        ranked = view.words.search(query, _limit(arguments.get("limit"), settings.results))
        found = [view.tools[one.position] for one in ranked]
        lines, left = _within([_line(view, one.position) for one in ranked], settings.max_tokens * TOKEN)
        unfollowed = self._follow_ups.searched(call.caller, [shown.key for shown in found])
        if unfollowed:
            self._metrics.searches.labels(_NOT_CALLED).inc(unfollowed)
        if not lines:
            servers = ", ".join(space.upstream for space in view.view.layout.spaces)
            return told(f"No tool was found. Try other words, or the name of a server: {servers}.")
        more = [f"({left} more: ask for fewer, or with other words)"] if left else []
        return told("\n".join([*lines, *more]))

    async def _describe(self, call: Call, arguments: Params) -> Outcome:
        try:
            names = _names.decode(arguments["names"])
        except (msgspec.MsgspecError, RecursionError):
            names = []
        if not 0 < len(names) <= MAX_DESCRIBED:
            return wrong([f"'names' must be a list of 1 to {MAX_DESCRIBED} names"], _SCHEMAS[DESCRIBE])
        view = await self._view(call)
        by_name = {shown.key: shown for shown in view.tools}
        known = [by_name[name] for name in dict.fromkeys(names) if name in by_name]
        unknown = [name for name in dict.fromkeys(names) if name not in by_name]
        parts = [f"{effect_of(shown.entry).value}: {bytes(shown.entry).decode()}" for shown in known]
        parts += [f"Unknown tool: {name}" for name in unknown]
        return told("\n\n".join(parts), is_error=not known)

    async def _view(self, call: Call) -> SearchableView:
        """The caller's view, once the upstreams that are still connecting have listed, or `list_wait` is over."""
        await self._fetcher.fresh(call.caller, Kind.TOOLS, self._list_wait)
        return await self._indexes.of(self._catalogue.view(call.caller))


def told(text: str, *, is_error: bool = False) -> Complete:
    """A tool's result that is one text."""
    members: dict[str, object] = {"content": [{"type": "text", "text": text}]}
    return Complete(first_level({**members, "isError": True} if is_error else members), is_error=is_error)


def wrong(found: Iterable[str], schema: Raw) -> Complete:
    """The answer to wrong arguments: what is wrong, and the schema; an error that the model sees (CallToolResult)."""
    text = bytes(schema).decode(errors="replace")
    return told(f"Wrong arguments: {'; '.join(found)}. The input schema is: {text}", is_error=True)


def _line(view: SearchableView, position: int) -> str:
    """What is told of a tool that was found."""
    line = view.lines.get(position)
    if line is None:
        shown = view.tools[position]
        line = view.lines[position] = f"{signature(shown.key, shown.entry)} [{effect_of(shown.entry).value}]"
    return line


def _within(lines: list[str], most: int) -> tuple[list[str], int]:
    """The first lines that have at most so many bytes, one at the least; and how many are left out."""
    kept: list[str] = []
    size = 0
    for line in lines:
        size += len(line.encode()) + 1
        if kept and size > most:
            break
        kept.append(line)
    return kept, len(lines) - len(kept)


def _limit(value: Raw | None, default: int) -> int:
    """The number of tools to find; `value` is an integer, as far as it was given (`flaws`)."""
    return default if value is None else max(1, min(MAX_FOUND, int(msgspec.json.decode(value))))
