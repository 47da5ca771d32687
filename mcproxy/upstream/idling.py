"""When a link is idle: what counts as a use of it, and for how long it must have had none before it is ended.

A link is in use while a call runs over it, a client has still to give the input that a call asked for, a task lives,
or a resource is subscribed to. Fetching lists does not count as a use, or polling would keep a child for ever. Ends no
link itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import anyio
import msgspec
from msgspec import Raw

from mcproxy.call.calls import Call, Complete, InputRequired, Outcome
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.protocol.jsonrpc import parse_text
from mcproxy.protocol.methods import Kind, Subject
from mcproxy.protocol.tasks import TASK_ID, created, dialect, is_spent, lifetime
from mcproxy.upstream.link import Link

MAX_TASKS: Final = 10_000
"""Tasks of one link that keep it in use; beyond it the oldest no longer do."""


class Recorded(msgspec.Struct, frozen=True):
    """What an upstream is, and its lists, as they were when it was asked last."""

    identity: ServerIdentity
    lists: Mapping[Kind, tuple[Raw, ...]] = msgspec.field(default_factory=dict)


class Idling(msgspec.Struct, frozen=True):
    """What the settings say of a link that nothing needs."""

    stop_after: float = 0
    """Seconds without a use; 0 for a link that is kept."""
    input_within: float = 0
    """Seconds that a client has to give the input that a call asked for."""
    recorded: Recorded | None = None
    """What is known of an upstream that is not connected before a call needs it."""

    @property
    def starts_idle(self) -> bool:
        return self.recorded is not None


NEVER_IDLE: Final = Idling()


class UsedLink:
    """A `Link` that notes its uses. Times are in seconds of `clock`, which only goes forward."""

    def __init__(self, link: Link, idling: Idling, clock: Callable[[], float] = anyio.current_time) -> None:
        self._link = link
        self._idling = idling
        self._clock = clock
        self._running = 0
        self._used_until = clock()
        """When the last use ended, or will have ended."""
        self._tasks: dict[str, float] = {}
        """Until when each task lives."""
        self._subscriptions: set[str | None] = set()

    @property
    def identity(self) -> ServerIdentity:
        return self._link.identity

    @property
    def is_closed(self) -> bool:
        return self._link.is_closed

    async def wait_closed(self) -> str:
        return await self._link.wait_closed()

    async def __call__(self, call: Call) -> Outcome:
        self._running += 1
        outcome: Outcome | None = None
        try:
            outcome = await self._link(call)
            return outcome
        finally:
            self._running -= 1
            self._note(call, outcome)

    def seconds_left(self) -> float:
        """Until it may be ended, where nothing uses it meanwhile; 0 or less where it may be now."""
        now = self._clock()
        self._tasks = {id: until for id, until in self._tasks.items() if until > now}
        if self._running or self._tasks or self._subscriptions:
            self._used_until = max(self._used_until, now)
        return self._used_until + self._idling.stop_after - now

    def _note(self, call: Call, outcome: Outcome | None) -> None:
        row, now = call.row, self._clock()
        if row.lists is not None:
            return
        self._used_until = max(self._used_until, now)
        if isinstance(outcome, InputRequired):
            self._used_until = max(self._used_until, now + self._idling.input_within)
        if not isinstance(outcome, Complete):
            return
        if row.subscribes is not None and row.subject_key is not None:
            uri = parse_text(call.params.get(row.subject_key, b""))
            (self._subscriptions.add if row.subscribes else self._subscriptions.discard)(uri)
        kind = dialect(self.identity.version)
        if kind is None:
            return
        if row.deferrable and (made := created(kind, outcome.result)) is not None:
            self._tasks[made] = now + lifetime(kind, outcome.result)
            while len(self._tasks) > MAX_TASKS:
                del self._tasks[next(iter(self._tasks))]
        elif row.subject is Subject.TASK and is_spent(kind, outcome.result, has_result=row.waits):
            self._tasks.pop(parse_text(call.params.get(TASK_ID, b"")) or "", None)
