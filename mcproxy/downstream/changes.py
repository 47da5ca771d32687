"""What one client has still to be told between its calls: a set, so that storms coalesce (requirement R23).

Notices are no change of state; they go in order, and the oldest give way. An update that says much is told without what
it says; a task that does is left to be asked for. Sends nothing itself.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Final, assert_never

from mcproxy.backlog import Backlog
from mcproxy.call import Change, ListChanged, Notice, ResourceUpdated, TaskChanged
from mcproxy.protocol.jsonrpc import Notification, raw, size_of
from mcproxy.protocol.methods import RESOURCE_UPDATED, Kind
from mcproxy.settings import Limits

AT_ONCE: Final = 64
"""How many notifications are taken in one go: few enough to fit into what waits to be written."""

_SHARE: Final = 16
"""What part of the bytes that may wait to be written may wait for the client to listen; most have no stream open."""


State = ListChanged | ResourceUpdated | TaskChanged
"""Changes of which the latest says all."""


class Changes:
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
        if isinstance(change, ResourceUpdated) and size_of(change.params) > self._most_said:
            change = replace(change, params={})
        if isinstance(change, TaskChanged) and size_of(change.params) > self._most_said:
            return
        self._changes[change] = change
        if len(self._changes) > self._most:
            del self._changes[next(iter(self._changes))]

    def take(self) -> list[Notification]:
        """The next of them, at most AT_ONCE, as a client of the handshake eras is told."""
        notices = [self._notices.take() for _ in range(min(AT_ONCE, len(self._notices)))]
        changes = [self._changes.pop(key) for key in list(islice(self._changes, AT_ONCE - len(notices)))]
        told: dict[str, Notification] = {}
        rest: list[Notification] = []
        for change in (*notices, *changes):
            notification = as_notification(change)
            if isinstance(change, ListChanged):
                # Resources and their templates are two lists with one notification.
                told[notification.method] = notification
            else:
                rest.append(notification)
        return [*told.values(), *rest]


def as_notification(change: Change) -> Notification:
    match change:
        case ListChanged(kind=kind):
            return Notification(kind.changed, {})
        case ResourceUpdated(uri=uri, params=params):
            return Notification(RESOURCE_UPDATED, {**params, "uri": raw(uri)})
        case TaskChanged(method=method, params=params):
            return Notification(method, params)
        case Notice(method=method, params=params):
            return Notification(method, params)
        case _:
            assert_never(change)
