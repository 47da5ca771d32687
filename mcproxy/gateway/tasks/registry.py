"""The tasks that each session knows: who is told of a change, and whose list a task is in. Plain state; sends nothing.

A session knows the tasks that it made or asked for. An authenticated principal has those of all its sessions at the
same endpoint; an anonymous session has its own alone.
"""

from __future__ import annotations

from mcproxy.call.clients import Listener
from mcproxy.call.identity import Caller
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.gateway.resolving.task_ids import Task


class TaskRegistry:
    """At most `most` tasks of one listener; the oldest give way."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: dict[Listener, dict[Task, None]] = {}
        self._holders: dict[Task, dict[Listener, Task]] = {}
        """The tasks of each holder, with the tool that each came from."""

    def holders(self, task: Task) -> dict[Listener, Task]:
        """Each holder, with the task as it was added."""
        return dict(self._holders.get(task, {}))

    def of(self, listener: Listener) -> list[Task]:
        """A listener's tasks, oldest first."""
        return list(self._held.get(listener, ()))

    def over(self, link: LinkKey) -> frozenset[str]:
        """The ids of all tasks that are held of a link."""
        return frozenset(task.id for task in self._holders if task.link == link)

    def find(self, caller: Caller, listener: Listener | None, task: Task) -> Task | None:
        """The task as `caller`, whose listener this is, holds it; None if it does not."""
        holders = self._holders.get(task, {}).items()
        held = (held for holder, held in holders if holder is listener or _same(holder.caller, caller))
        return next(held, None)

    def add(self, listener: Listener, task: Task) -> None:
        """Adds a task to a listener's; beyond `most`, its oldest is dropped."""
        held = self._held.setdefault(listener, {})
        held.pop(task, None)
        held[task] = None
        self._holders.setdefault(task, {})[listener] = task
        while len(held) > self.most:
            self._let_go(listener, next(iter(held)))

    def discard(self, listener: Listener, task: Task) -> None:
        """Removes a task from a listener's. Idempotent."""
        if task in self._held.get(listener, {}):
            self._let_go(listener, task)

    def drop(self, listener: Listener) -> None:
        """Removes all tasks of a listener. Idempotent."""
        for task in list(self._held.get(listener, ())):
            self._let_go(listener, task)
        self._held.pop(listener, None)

    def _let_go(self, listener: Listener, task: Task) -> None:
        del self._held[listener][task]
        del self._holders[task][listener]
        if not self._holders[task]:
            del self._holders[task]


def _same(one: Caller, other: Caller) -> bool:
    return (
        not one.principal.is_anonymous and one.principal.name == other.principal.name and one.endpoint == other.endpoint
    )
