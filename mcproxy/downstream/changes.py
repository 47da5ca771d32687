"""What one client has still to be told between its calls: a set, so that storms coalesce (requirement R23).

Notices are no change of state; they go in order, and the oldest give way. An update that says much is told without what
it says; a task that does is left to be asked for. Sends nothing itself.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, assert_never

from mcproxy.backlog import Backlog
from mcproxy.call import Change, ListChanged, Notice, ResourceUpdated, TaskChanged
from mcproxy.protocol.jsonrpc import Notification, encode, raw, size_of
from mcproxy.protocol.methods import RESOURCE_UPDATED, Kind
from mcproxy.settings import Limits

AT_ONCE: Final = 64
"""How many notifications are taken in one go: few enough to fit into what waits to be written."""

_SHARE: Final = 16
"""What part of the bytes that may wait to be written may wait for the client to listen; most have no stream open."""


State = ListChanged | ResourceUpdated | TaskChanged
"""Changes of which the latest says all."""

_TOLD_AS: Final = {kind.changed: kind for kind in Kind}
"""Resources and their templates are two lists with one notification."""


class Changes:
    __slots__ = ("_changes", "_most", "_most_said", "_notices")

    def __init__(self, limits: Limits) -> None:
        self._most = limits.max_subscriptions_per_session + limits.max_tasks_per_session + len(Kind)
        self._changes: dict[State, State] = {}
        most_bytes = limits.max_queued_bytes // _SHARE
        self._most_said = most_bytes // self._most
        """Bytes of `params` that an update may bring."""
        self._notices: Backlog[Notice] = Backlog(limits.max_queued_messages, most_bytes)

    def __len__(self) -> int:
        return len(self._changes) + len(self._notices)

    def note(self, change: Change) -> None:
        if isinstance(change, Notice):
            self._notices.put(change, size_of(change.params))
            return
        match change:
            case ResourceUpdated() if change.size > self._most_said:
                change = ResourceUpdated(change.uri)
            case TaskChanged(params=params) if size_of(params) > self._most_said:
                return
            case ListChanged(kind=kind):
                change = ListChanged(_TOLD_AS[kind.changed])
            case _:
                pass
        self._changes[change] = change
        if len(self._changes) > self._most:
            del self._changes[next(iter(self._changes))]

    def take(self) -> list[Change]:
        """The next of them, at most AT_ONCE."""
        notices = [self._notices.take() for _ in range(min(AT_ONCE, len(self._notices)))]
        changes = [self._changes.pop(key) for key in list(islice(self._changes, AT_ONCE - len(notices)))]
        return [*notices, *changes]


def encoded(change: Change) -> bytes:
    """The notification that tells of a change."""
    return change.notification if isinstance(change, ResourceUpdated) else encode(as_notification(change))


def as_notification(change: Change) -> Notification:
    match change:
        case ListChanged(kind=kind):
            return Notification(kind.changed, {})
        case ResourceUpdated(uri=uri, params=params):
            return Notification(RESOURCE_UPDATED, {**params, "uri": raw(uri)})
        case TaskChanged(method=method, params=params) | Notice(method=method, params=params):
            return Notification(method, params)
        case _:
            assert_never(change)
