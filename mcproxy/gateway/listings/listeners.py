"""The clients that listen between calls, which of them a link serves, and whose lists change. Keeps no subscription."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple, assert_never

import anyio

from mcproxy.call.clients import Change, ListChanged, Listener, Notice, ResourceUpdated, TaskChanged
from mcproxy.call.upstreams import PushChannel, UnannouncedLists, UpstreamChanged, UpstreamEvent
from mcproxy.catalog.views.view import View
from mcproxy.concurrency.clock import Sleep
from mcproxy.concurrency.wakeup import Wakeup
from mcproxy.gateway.component import Component
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.protocol.methods import Kind, is_audible
from mcproxy.telemetry.metrics import UNKNOWN, Metrics

MOST_COMPARED: Final = 64
"""Pairs of views whose differences are remembered while listeners are told; beyond that it starts anew."""

NEWS_PAUSE: Final = 1.0
"""Seconds without another new list until listeners are told of those: most clients are just asking for their lists."""
MOST_PAUSES: Final = 5
"""Such pauses one after the other, after which they are told all the same."""


class _Seen(NamedTuple):
    """A listener's view before a change, and the upstream of that."""

    upstream: str
    view: View


class Listeners(Component):
    """All clients between their calls: joined while they can be told of changes."""

    heeds = frozenset({ListChanged, ResourceUpdated, TaskChanged, Notice})

    def __init__(self, catalogue: Catalogue, metrics: Metrics, sleep: Sleep = anyio.sleep) -> None:
        self._catalogue = catalogue
        self._metrics = metrics
        self._sleep = sleep
        self._listeners: dict[Listener, None] = {}
        self._behind: dict[Listener, _Seen | None] = {}
        """The view that each listener was last compared with, where it may differ now; None where its view is to be
        made, so that it is at hand when something changes."""
        self._paused: dict[Listener, _Seen] = {}
        """The same of those that are not behind, where something became known for the first time."""
        self._news = 0
        """How often that happened."""
        self._wakeup = Wakeup()

    def __iter__(self) -> Iterator[Listener]:
        return iter(list(self._listeners))

    def __contains__(self, listener: Listener) -> bool:
        return listener in self._listeners

    def join(self, listener: Listener) -> None:
        self._listeners[listener] = None
        self._behind.setdefault(listener, None)
        self._wakeup.notify_all()

    def leave(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)
        self._behind.pop(listener, None)
        self._paused.pop(listener, None)

    def on_event(self, event: UpstreamEvent) -> None:
        """Counts the changes that upstreams announce, and passes on their notices.

        Other components tell listeners of other changes.
        """
        if not isinstance(event, UpstreamChanged) or isinstance(event.change, PushChannel | UnannouncedLists):
            return
        if self._catalogue.has(event.upstream):  # else the series of an upstream that is gone would come back (R52)
            self._metrics.upstream_notifications.labels(event.upstream, change_label(event.change)).inc()
        if isinstance(event.change, Notice):
            self.announce(LinkKey(event.upstream, event.owner), event.change)

    def of(self, owner: str) -> Listener | None:
        """A listener whose own links have the key `owner`."""
        return next((listener for listener in self._listeners if owner in listener.caller.owners), None)

    def served_by(self, link: LinkKey) -> list[Listener]:
        """The listeners that this link serves, at an endpoint that shows its upstream."""
        return [listener for listener in self._listeners if self._is_served(listener, link)]

    def announce(self, link: LinkKey, notice: Notice) -> None:
        """Passes an upstream's notice to all listeners that its link serves and whose log level admits it."""
        for listener in self.served_by(link):
            if notice.principal not in (None, listener.caller.principal.name):
                continue
            if notice.level is None or is_audible(notice.level, listener.caller.log_level):
                self.signal(listener, link.upstream, notice)

    def signal(self, listener: Listener, upstream: str, change: Change) -> None:
        """Tells one listener of a change at `upstream`, and counts that. Never blocks."""
        listener.signal(change)
        self.count(upstream, change, 1)

    def count(self, upstream: str, change: Change, told: int) -> None:
        """Counts listeners that were told of a change of that kind."""
        self._metrics.notifications.labels(upstream, change_label(change)).inc(told)

    @contextmanager
    def telling_list_changes(self, upstream: str, *, is_new: bool = False) -> Iterator[None]:
        """Has those listeners told whose view differs after the `with` block from what it was before.

        The block must not await. They are told in turns, and once of what changes meanwhile; after a pause where what
        changes `is_new`: the upstream, or a list of it, becomes known for the first time.
        """
        for listener in self._listeners:
            if self._behind.get(listener) is None:
                paused = self._paused.pop(listener, None)
                seen = paused or _Seen(upstream, self._catalogue.view(listener.caller))
                if is_new:
                    self._paused[listener] = seen
                    self._behind[listener] = None
                else:
                    self._behind[listener] = seen
        yield
        self._news += is_new
        self._wakeup.notify_all()

    def note_fetched(self, listener: Listener, kind: Kind, view: View) -> None:
        """Takes note that a listener is given the list of `kind` in `view`: it need not be told of what changed before.

        Python's SDK 1 over stdio fails where anything comes while its client is closed, as some do with the answer.
        """
        for waiting in (self._behind, self._paused):
            seen = waiting.get(listener)
            if seen is not None:
                lists = {**seen.view.lists, kind: view.lists[kind]}
                waiting[listener] = seen._replace(view=replace(seen.view, lists=lists))

    async def run(self) -> None:
        """Tells listeners of changed lists until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_pauses)
            while True:
                await self._tell_all()
                await self._wakeup.wait()

    async def _end_pauses(self) -> None:
        """Has listeners told of what is new once nothing else was for a while."""
        while True:
            while not self._paused:
                await self._wakeup.wait()
            for _ in range(MOST_PAUSES):
                known = self._news
                await self._sleep(NEWS_PAUSE)
                if self._news == known:
                    break
            self._behind.update(self._paused)
            self._paused.clear()
            self._wakeup.notify_all()

    async def _tell_all(self) -> None:
        compare = _comparison()
        while self._behind:
            listener = next(iter(self._behind))
            view = await self._catalogue.turns.take(self._catalogue.viewing(listener.caller))
            # As of now: there may have been a change for one that was not behind, and any may have left.
            seen = self._behind.pop(listener, None)
            if seen is not None:
                # Else the series of an upstream that is gone by now would come back (R52).
                upstream = seen.upstream if self._catalogue.has(seen.upstream) else UNKNOWN
                for kind in compare(seen.view, view):
                    self.signal(listener, upstream, ListChanged(kind))
            await anyio.lowlevel.checkpoint()

    def _is_served(self, listener: Listener, link: LinkKey) -> bool:
        caller = listener.caller
        layout = self._catalogue.layout(caller)
        return layout.shows(link.upstream) and self._catalogue.link(layout.space(link.upstream), caller) == link


def change_label(change: Change) -> str:
    """The metric label for a kind of change."""
    match change:
        case ListChanged(kind=kind):
            return kind.value
        case ResourceUpdated():
            return "updated"
        case TaskChanged():
            return "task"
        case Notice():
            return "notice"
        case _:
            assert_never(change)


def _comparison() -> Callable[[View, View], list[Kind]]:
    """Compares two views; a pair once as a rule, since most listeners share theirs."""
    found: dict[tuple[int, int], tuple[View, View, list[Kind]]] = {}
    """By the identities of the views, which are kept for as long."""

    def compare(before: View, after: View) -> list[Kind]:
        pair = (id(before), id(after))
        if pair not in found:
            if len(found) >= MOST_COMPARED:  # changes may come faster than all are told
                found.clear()
            found[pair] = before, after, after.changed(before)
        return found[pair][2]

    return compare
