"""What one client has still to be told between its calls: a set, so that storms coalesce (requirement R23).

Notices are no change of state; they go in order, and the oldest give way. An update that says much is told without what
it says; a task that does is left to be asked for. Sends nothing itself.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, assert_never

from mcproxy.call.clients import Change, ListChanged, Notice, ResourceUpdated, TaskChanged
from mcproxy.concurrency.bounded_queue import BoundedQueue
from mcproxy.protocol.jsonrpc import Notification, encode, size_of
from mcproxy.protocol.methods import Kind
from mcproxy.settings import LimitSettings

AT_ONCE: Final = 64
"""How many notifications are taken in one go: few enough to fit into what waits to be written."""

_SHARE: Final = 16
"""What part of the bytes that may wait to be written may wait for the client to listen; most have no stream open."""


State = ListChanged | ResourceUpdated | TaskChanged
"""Changes of which the latest says all."""

_TOLD_AS: Final = {kind.changed: kind for kind in Kind}
"""Resources and their templates are two lists with one notification."""


class PendingChanges:
    __slots__ = ("_changes", "_limits", "_most", "_most_said", "_notices")

    def __init__(self, limits: LimitSettings) -> None:
        self._most = limits.max_subscriptions_per_session + limits.max_tasks_per_session + len(Kind)
        self._changes: dict[str | ListChanged | TaskChanged, State] = {}
        """By what they are changes of: an update by its URI, whose hash is at hand, the others by themselves."""
        self._most_said = limits.max_queued_bytes // _SHARE // self._most
        """Bytes of `params` that an update may bring."""
        self._notices: BoundedQueue[Notice] | None = None
        """Most hear of none."""
        self._limits = limits

    def __len__(self) -> int:
        return len(self._changes) + len(self._notices or ())

    def note(self, change: Change) -> None:
        # An update may concern thousands, and `match` takes several times as long.
        if isinstance(change, ResourceUpdated):
            self._changes[change.uri] = change if change.size <= self._most_said else ResourceUpdated(change.uri)
        elif isinstance(change, ListChanged):
            told = ListChanged(_TOLD_AS[change.kind.changed])
            self._changes[told] = told
        elif isinstance(change, Notice):
            if self._notices is None:
                self._notices = BoundedQueue(self._limits.max_queued_messages, self._limits.max_queued_bytes // _SHARE)
            self._notices.put(change, size_of(change.params))
        elif size_of(change.params) <= self._most_said:
            self._changes[change] = change
        if len(self._changes) > self._most:
            del self._changes[next(iter(self._changes))]

    def take(self) -> list[Change]:
        """The next of them, at most AT_ONCE."""
        if self._notices is None and len(self._changes) <= AT_ONCE:
            changes: list[Change] = list(self._changes.values())
            self._changes.clear()
            return changes
        taken: list[Change] = []
        while self._notices and len(taken) < AT_ONCE:
            taken.append(self._notices.take())
        if len(taken) + len(self._changes) <= AT_ONCE:
            taken += self._changes.values()
            self._changes.clear()
        else:
            taken += map(self._changes.pop, list(islice(self._changes, AT_ONCE - len(taken))))
        return taken


def encoded(change: Change) -> bytes:
    """The notification that tells of a change."""
    return change.notification if isinstance(change, ResourceUpdated) else encode(as_notification(change))


def as_notification(change: Change) -> Notification:
    match change:
        case ListChanged(kind=kind):
            return Notification(kind.changed, {})
        case ResourceUpdated():
            return change.told
        case TaskChanged(method=method, params=params) | Notice(method=method, params=params):
            return Notification(method, params)
        case _:
            assert_never(change)
