"""Changes that wait to be sent to one client: a set, so that repeated changes coalesce (requirement R23).

Notices are no changes of state; they are sent in order, and when there are too many the oldest are dropped. A resource
update with large `params` is sent without them; a large task update is dropped, since the client can ask for the task.
Sends nothing itself.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, assert_never

from mcproxy.call.clients import Change, ListChanged, Notice, ResourceUpdated, TaskChanged
from mcproxy.concurrency.bounded_queue import BoundedQueue
from mcproxy.protocol.jsonrpc import Notification, encode, size_of
from mcproxy.protocol.methods import Kind
from mcproxy.settings import LimitSettings

BATCH: Final = 64
"""Notifications that are taken at a time: few enough to fit into a send buffer."""

_SHARE: Final = 16
"""The share of `max_queued_bytes` that may wait for a client without an open stream, as most clients are."""

StateChange = ListChanged | ResourceUpdated | TaskChanged
"""Changes of which only the latest matters."""

_LIST_OF: Final = {kind.changed: kind for kind in Kind}
"""The kind of list for each notification: resources and templates are two lists with one notification."""


class PendingChanges:
    """The pending changes of one client; at most as many as it may have subscriptions and tasks."""

    __slots__ = ("_changes", "_limits", "_max_params", "_most", "_notices")

    def __init__(self, limits: LimitSettings) -> None:
        self._most = limits.max_subscriptions_per_session + limits.max_tasks_per_session + len(Kind)
        self._changes: dict[str | ListChanged | TaskChanged, StateChange] = {}
        """Changes by key: an update by its URI, whose hash is cached; other changes by themselves."""
        self._max_params = limits.max_queued_bytes // _SHARE // self._most
        """Bytes of `params` that an update may carry."""
        self._notices: BoundedQueue[Notice] | None = None
        """Made with the first notice: most clients get none."""
        self._limits = limits

    def __len__(self) -> int:
        return len(self._changes) + len(self._notices or ())

    def note(self, change: Change) -> None:
        """Adds a change; it replaces one of the same resource, list or task. Beyond the limit the oldest goes."""
        # An update may go to thousands of clients, and `match` takes several times as long.
        if isinstance(change, ResourceUpdated):
            self._changes[change.uri] = change if change.size <= self._max_params else ResourceUpdated(change.uri)
        elif isinstance(change, ListChanged):
            listed = ListChanged(_LIST_OF[change.kind.changed])
            self._changes[listed] = listed
        elif isinstance(change, Notice):
            if self._notices is None:
                self._notices = BoundedQueue(self._limits.max_queued_messages, self._limits.max_queued_bytes // _SHARE)
            self._notices.put(change, size_of(change.params))
        elif size_of(change.params) <= self._max_params:
            self._changes[change] = change
        if len(self._changes) > self._most:
            del self._changes[next(iter(self._changes))]

    def keep_lists_only(self) -> None:
        """Drops all changes that are about more than a whole list."""
        self._changes = {key: change for key, change in self._changes.items() if isinstance(change, ListChanged)}
        self._notices = None

    def take(self) -> list[Change]:
        """Removes and returns the next changes, at most BATCH."""
        if self._notices is None and len(self._changes) <= BATCH:
            changes: list[Change] = list(self._changes.values())
            self._changes.clear()
            return changes
        taken: list[Change] = []
        while self._notices and len(taken) < BATCH:
            taken.append(self._notices.take())
        if len(taken) + len(self._changes) <= BATCH:
            taken += self._changes.values()
            self._changes.clear()
        else:
            taken += map(self._changes.pop, list(islice(self._changes, BATCH - len(taken))))
        return taken


def encoded(change: Change) -> bytes:
    """The encoded notification of a change."""
    return change.notification if isinstance(change, ResourceUpdated) else encode(as_notification(change))


def as_notification(change: Change) -> Notification:
    """The notification of a change, in its hearer's own names."""
    match change:
        case ListChanged(kind=kind):
            return Notification(kind.changed, {})
        case ResourceUpdated():
            return change.told
        case TaskChanged(method=method, params=params) | Notice(method=method, params=params):
            return Notification(method, params)
        case _:
            assert_never(change)
