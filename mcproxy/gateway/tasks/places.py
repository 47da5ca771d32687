"""The places that tasks hold in limits on calls at once (`access.limits`): a place is free once its task has ended.

A task has ended when its server says so, in whatever message, or no longer knows it; when its child process ended; or,
if its server cannot be asked, some time after it was last heard of. Servers are asked about tasks that nobody asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import anyio
import msgspec

from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.clients import TaskChanged
from mcproxy.call.errors import Party
from mcproxy.call.identity import Caller
from mcproxy.call.upstreams import Disconnected, Idled, Retired, Upstream, UpstreamChanged, UpstreamEvent
from mcproxy.concurrency.clock import Clock, Sleep
from mcproxy.concurrency.wakeup import Wakeup
from mcproxy.gateway.component import LINK_EVENTS, Component
from mcproxy.gateway.listings.internal_calls import internal_call
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.gateway.resolving.task_ids import Task
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, Params, raw
from mcproxy.protocol.tasks import TASK_GET, TASK_ID, Dialect, has_ended, lifetime, poll_interval
from mcproxy.settings.upstreams.upstream import UpstreamTimeouts

CHECK: Final = 5.0
"""Seconds between two looks at the tasks that hold places."""
UNSEEN: Final = 15.0
"""Seconds after which a server is asked about a task of which nothing was heard; more if it asks for that."""
LONGEST_UNSEEN: Final = 300.0
"""The most seconds that a server can ask for. Also those after which a task counts as lost if its server is away and
its `ttl` is over."""
LOST: Final = 3600.0
"""Seconds after which a task without a `ttl` counts as lost if its server is away."""
AT_ONCE: Final = 16
"""Questions to servers at a time."""

_ANY_TIME: Final = -math.inf


class _Place(msgspec.Struct, eq=False):
    caller: Caller
    free: Callable[[], None]
    in_child: bool
    """Whether the task ends with its link: it runs in a child process of this gateway's own."""
    expires: float
    """When its `ttl` is over; infinite if it has none."""
    period: float
    heard: float
    """When its server last said that it runs."""
    ask_at: float

    def is_lost(self, now: float) -> bool:
        """Whether too long ago; not by the `ttl` alone, which callers choose."""
        return now >= max(min(self.expires, self.heard + LOST), self.heard + LONGEST_UNSEEN)


class TaskPlaces(Component):
    """The places of tasks that run, in memory: those of each replica are its own."""

    heeds = LINK_EVENTS | {TaskChanged}

    def __init__(
        self,
        catalogue: Catalogue,
        upstreams: Mapping[str, Upstream],
        timeouts: Mapping[str, UpstreamTimeouts],
        sleep: Sleep,
        now: Clock,
    ) -> None:
        self._catalogue = catalogue
        self._upstreams = upstreams
        self._timeouts = timeouts
        self._sleep = sleep
        self._now = now
        self._held: dict[Task, _Place] = {}
        self._wanted = Wakeup()
        self._asking = anyio.CapacityLimiter(AT_ONCE)

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, task: Task, call: Call, kind: Dialect, result: Params, free: Callable[[], None]) -> None:
        """Calls `free` once the task, which that call's `result` describes, has ended."""
        earlier = self._held.pop(task, None)
        if earlier is not None:  # The server gave one id to two tasks: nobody can tell which of them ends.
            earlier.free()
        spec, now = self._catalogue.layout(call.caller).space(task.link.upstream).spec, self._now()
        in_child = bool(spec.command) and spec.placement != "one"
        period = min(max(UNSEEN, poll_interval(kind, result)), LONGEST_UNSEEN)
        self._held[task] = _Place(
            call.caller, free, in_child, now + lifetime(kind, result), period, heard=now, ask_at=now + period
        )
        self._wanted.notify_all()

    def note(self, task: Task, call: Call, outcome: Outcome) -> None:
        """Takes in the outcome of a caller's own call about a task."""
        if task not in self._held:
            return
        if isinstance(outcome, Complete) and (call.row.waits or has_ended(outcome.result)):
            self._free(task)
        elif not isinstance(outcome, Complete) or call.method != TASK_GET:
            self._held[task].ask_at = _ANY_TIME
        else:
            self._heard(task)

    def on_event(self, event: UpstreamEvent) -> None:
        """Never blocks."""
        link = LinkKey(event.upstream, event.owner)
        match event:
            case UpstreamChanged(change=TaskChanged() as change):
                task = Task(link, change.id)
                if has_ended(change.params):
                    self._free(task)
                else:
                    self._heard(task)
            case Disconnected() | Idled() | Retired():
                for task in [task for task, place in self._held.items() if task.link == link and place.in_child]:
                    self._free(task)
            case _:
                pass

    async def run(self) -> None:
        """Asks servers about tasks until cancelled."""
        while True:
            while not self._held:
                await self._wanted.wait()
            await self._sleep(CHECK)
            await self._check()

    async def _check(self) -> None:
        now = self._now()
        for task in [task for task, place in self._held.items() if place.is_lost(now)]:
            self._free(task)
        async with anyio.create_task_group() as questions:
            for task, place in self._held.items():
                if now >= place.ask_at and self._catalogue.known.is_up(task.link):
                    place.ask_at = now + place.period
                    questions.start_soon(self._ask, task, place)

    async def _ask(self, task: Task, place: _Place) -> None:
        async with self._asking:
            upstream = self._upstreams.get(task.link.upstream)
            if upstream is None or task not in self._held:
                return
            with anyio.move_on_after(self._timeouts[task.link.upstream].list):
                outcome = await upstream(
                    internal_call(task.link, TASK_GET, {TASK_ID: raw(task.id)}, owner=place.caller)
                )
                if _is_over(outcome):
                    self._free(task)
                elif isinstance(outcome, Complete):
                    self._heard(task)

    def _heard(self, task: Task) -> None:
        place = self._held.get(task)
        if place is not None:
            place.heard = self._now()
            place.ask_at = place.heard + place.period

    def _free(self, task: Task) -> None:
        place = self._held.pop(task, None)
        if place is not None:
            place.free()


def _is_over(outcome: Outcome) -> bool:
    match outcome:
        case Complete(result=state):
            return has_ended(state)
        case Failed(error=error, party=Party.UPSTREAM):
            # tasks, Protocol Errors: -32602 for a task that does not exist (any more).
            return error.code == INVALID_PARAMS
        case _:
            return False
