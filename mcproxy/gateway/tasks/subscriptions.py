"""Subscriptions to tasks (tasks extension, `subscriptions/listen`): what each upstream is asked to report.

A client's subscription covers its own tasks that their upstream reports on; others are left out of it like unknown
ones. An upstream is sent all that its clients listen for, one request at a time. Changes while it is down go
unreported: clients "MUST NOT rely" on notifications.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from mcproxy.call.calls import Call, Complete, Outcome
from mcproxy.call.clients import Listener
from mcproxy.call.errors import McpError
from mcproxy.call.upstreams import Connected, Disconnected, Idled, Retired, Upstream, UpstreamChanged, UpstreamEvent
from mcproxy.concurrency.coalescer import Coalescer
from mcproxy.gateway.component import LINK_EVENTS, Component, Reconfiguration
from mcproxy.gateway.listings.internal_calls import internal_call
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.gateway.listings.listeners import Listeners
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.gateway.resolving.task_ids import Task, TaskIds
from mcproxy.gateway.tasks.registry import TaskRegistry
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, InvalidMessage
from mcproxy.protocol.methods import LISTEN
from mcproxy.protocol.tasks import listened, listening_for
from mcproxy.settings.upstreams.upstream import UpstreamTimeouts

_NONE: frozenset[str] = frozenset()


class TaskSubscriptions(Component):
    """The tasks that stateless clients listen for, and those that upstreams agreed to report on."""

    goes_by = frozenset({"proxy"})
    heeds = LINK_EVENTS

    def __init__(
        self,
        catalogue: Catalogue,
        ids: TaskIds,
        registry: TaskRegistry,
        listeners: Listeners,
        upstreams: Mapping[str, Upstream],
        timeouts: Mapping[str, UpstreamTimeouts],
    ) -> None:
        self._catalogue = catalogue
        self._ids = ids
        self._registry = registry
        self._listeners = listeners
        self._upstreams = upstreams
        self._timeouts = timeouts
        self._agreed: dict[LinkKey, frozenset[str]] = {}
        """The tasks that each upstream agreed to report on, by its own ids, since it connected."""
        self._syncs: Coalescer[LinkKey] = Coalescer(self._sync)

    def reconfigure(self, change: Reconfiguration) -> None:
        self._registry.most = change.settings.proxy.limits.max_tasks_per_session

    async def run(self) -> None:
        """Asks upstreams until cancelled."""
        await self._syncs.run()

    async def listen(self, call: Call) -> Outcome:
        """The part of a filter that is agreed to, once upstreams answered.

        An upstream that is down is asked when it is up again.
        """
        listener, tasks = call.listener, self._own(call)
        if listener is None or listener not in self._listeners:
            raise McpError(INVALID_REQUEST, "this client has no stream on which it could hear of tasks")
        for task in tasks.values():
            self._registry.add(listener, task)
        await self._settle({task.link for task in tasks.values()})
        agreed = {id: task for id, task in tasks.items() if self._tells_of(task)}
        for id in tasks.keys() - agreed.keys():
            self._registry.discard(listener, tasks[id])
        return Complete(listening_for(agreed))

    def leave(self, listener: Listener) -> None:
        """Ends all subscriptions of a listener."""
        links = {task.link for task in self._registry.of(listener)}
        self._registry.drop(listener)
        for link in links:
            self._syncs.want(link)

    def on_event(self, event: UpstreamEvent) -> None:
        """Never blocks."""
        link = LinkKey(event.upstream, event.owner)
        match event:
            case Connected():
                self._agreed.pop(link, None)
                self._syncs.want(link)
            case Disconnected() | Idled() | Retired():
                self._agreed.pop(link, None)
            case UpstreamChanged():
                pass

    def _own(self, call: Call) -> dict[str, Task]:
        """The named tasks that are the caller's, under the one spelling of the id that its notifications will have."""
        try:
            named = listened(call.params)
        except InvalidMessage as error:
            raise McpError(INVALID_PARAMS, f"{error}") from error
        opened = {id: self._ids.open(id, call.caller) for id in named}
        return {id: task for id, task in opened.items() if task is not None and self._ids.seal(task, call.caller) == id}

    async def _settle(self, links: set[LinkKey]) -> None:
        for link in links:
            self._syncs.want(link)
        for link in links:
            await self._syncs.done(link)

    def _tells_of(self, task: Task) -> bool:
        away = task.link.owner is None and not self._catalogue.known.is_up(task.link)
        return away or task.id in self._agreed.get(task.link, _NONE)

    # What follows runs in the task group of `run`.

    async def _sync(self, link: LinkKey) -> None:
        if not self._catalogue.known.is_up(link) or self._catalogue.tasks(link, LATEST) is None:
            return
        wanted, agreed = self._registry.over(link), self._agreed.setdefault(link, _NONE)
        if wanted == agreed:
            return
        outcome = await self._asked(link, wanted)
        # A link that was lost meanwhile has no entry, though it may be up again: then it is asked once more.
        if link in self._agreed:
            self._agreed[link] = wanted & (_named(outcome) if isinstance(outcome, Complete) else agreed)

    async def _asked(self, link: LinkKey, ids: frozenset[str]) -> Outcome | None:
        """The upstream's answer to the filter; None if none came in time."""
        upstream = self._upstreams.get(link.upstream)
        if upstream is None:
            return None
        timeouts = self._timeouts[link.upstream]
        owner = self._listeners.of(link.owner) if link.owner is not None else None
        with anyio.move_on_after(timeouts.connect + timeouts.list):
            return await upstream(internal_call(link, LISTEN, listening_for(sorted(ids)), owner))
        return None


def _named(answer: Complete) -> frozenset[str]:
    try:
        return frozenset(listened(answer.result))
    except InvalidMessage:
        return _NONE
