"""Answers `tasks/list` (2025-11-25, tasks): from the lists of all upstreams, the tasks that are the caller's own.

Over a shared link an upstream lists the tasks of all callers; each caller is shown only its own (`registry`). Lists are
fetched each time; an upstream that fails is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import anyio
import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.errors import McpError
from mcproxy.call.upstreams import Upstream
from mcproxy.catalog.views.derived import deriving
from mcproxy.concurrency.turns import Steps, in_turns
from mcproxy.gateway.listings.internal_calls import GATEWAY_ITSELF
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.gateway.listings.lists import cursor_of
from mcproxy.gateway.listings.pagination import Paged, PageLimits, fetch_pages
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.gateway.resolving.task_ids import Task, TaskIds
from mcproxy.gateway.tasks.registry import TaskRegistry
from mcproxy.gateway.tasks.states import TaskStates
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, Params, first_level, object_or_empty, parse_text
from mcproxy.protocol.tasks import TASK_ID, TASK_LIST
from mcproxy.settings import Proxy
from mcproxy.settings.upstreams.upstream import UpstreamTimeouts


class _Tasks(msgspec.Struct, frozen=True):
    member: str = "tasks"
    list_method: str = TASK_LIST


_TASKS: Final[Paged] = _Tasks()


class _Listed(msgspec.Struct, frozen=True):
    """`id` is the caller's id."""

    id: str
    task: Params


class TaskLists:
    """Answers `tasks/list`, which the stateless era no longer has; keeps nothing between calls."""

    def __init__(
        self,
        catalogue: Catalogue,
        ids: TaskIds,
        states: TaskStates,
        registry: TaskRegistry,
        upstreams: Mapping[str, Upstream],
        timeouts: Mapping[str, UpstreamTimeouts],
        proxy: Proxy,
    ) -> None:
        self._catalogue = catalogue
        self._ids = ids
        self._states = states
        self._registry = registry
        self._upstreams = upstreams
        self._timeouts = timeouts
        self._proxy = proxy

    async def answer(self, call: Call) -> Outcome:
        """One page, in the order of the configuration. Raises McpError."""
        links = [link for link in self._catalogue.links(call.caller) if self._has_list(link, call)]
        found: dict[LinkKey, list[_Listed]] = {}

        async def fetch(link: LinkKey) -> None:
            found[link] = await in_turns(self._of_caller(link, call, await self._fetched(link, call)))

        async with anyio.create_task_group() as tasks:
            for link in links:
                tasks.start_soon(fetch, link)
        return Complete(self._page(call, [listed for link in links for listed in found[link]]))

    def _has_list(self, link: LinkKey, call: Call) -> bool:
        return self._catalogue.known.is_up(link) and "list" in (self._catalogue.tasks(link, call.caller.version) or {})

    async def _fetched(self, link: LinkKey, call: Call) -> list[Raw]:
        upstream, request = self._upstreams.get(link.upstream), replace(call, client=GATEWAY_ITSELF)
        if upstream is None:
            return []  # A reload took it away before this task had its turn.
        spec, limits = self._catalogue.configured(link.upstream).space(link.upstream).spec, self._proxy.limits
        bounds = PageLimits(limits.max_list_pages, limits.max_list_entries, spec.max_message_bytes)
        with anyio.move_on_after(self._timeouts[link.upstream].list):
            fetched = await fetch_pages(lambda params: upstream(request.with_params(params)), _TASKS, bounds)
            return [] if isinstance(fetched, Failed) else fetched.items
        return []

    def _of_caller(self, link: LinkKey, call: Call, tasks: list[Raw]) -> Steps[list[_Listed]]:
        def read(task: Raw) -> _Listed | None:
            state = object_or_empty(task)
            known = self._registry.find(call.caller, call.listener, Task(link, _id(state)))
            if known is None or not self._ids.reaches(call.caller, known):
                return None
            return _Listed(self._ids.seal(known, call.caller), self._states.told(known, call.caller, state))

        found = yield from deriving(tasks, read, size=len)
        return [listed for listed in found.results if listed is not None]

    def _page(self, call: Call, listed: list[_Listed]) -> Params:
        """One page. Its cursor is the last id of the previous page: ids are sealed for this caller alone."""
        start, size = _start(call, listed), self._proxy.naming.page_size
        page = listed[start : start + size]
        members: dict[str, object] = {_TASKS.member: [entry.task for entry in page]}
        if start + size < len(listed):
            members["nextCursor"] = page[-1].id
        return first_level(members)


def _start(call: Call, listed: list[_Listed]) -> int:
    cursor = cursor_of(call)
    if cursor is None:
        return 0
    last = parse_text(cursor)
    start = next((place + 1 for place, entry in enumerate(listed) if entry.id == last), None)
    if start is None:
        # tasks, Protocol Errors: -32602 for a cursor that is invalid or not there (any more).
        raise McpError(INVALID_PARAMS, "unknown cursor: list again from the start")
    return start


def _id(task: Params) -> str:
    return parse_text(task.get(TASK_ID, b"")) or ""
