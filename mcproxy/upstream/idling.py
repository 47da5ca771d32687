"""When a link is idle: what counts as a use of it, and how long it must be unused before it is ended.

A link is in use while a call runs over it, a call's request for input is unanswered, a task lives, or a resource is
subscribed to. Fetching lists is no use, or polling would keep a child running for ever. Ends no link itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import anyio
import msgspec
from msgspec import Raw

from mcproxy.call.calls import Call, Complete, InputRequired, Outcome
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.protocol.inputs import INPUT_RESPONSES, REQUEST_STATE
from mcproxy.protocol.jsonrpc import parse_text
from mcproxy.protocol.methods import Kind, Subject
from mcproxy.protocol.tasks import TASK_ID, created, dialect, is_spent, lifetime
from mcproxy.upstream.link import Link

MAX_TASKS: Final = 10_000
"""Tasks that keep a link in use; beyond that, the oldest no longer do."""

MAX_INPUTS: Final = 10_000
"""Calls waiting for input that keep a link in use; beyond that, the oldest no longer do."""

_ANSWERS: Final = frozenset({INPUT_RESPONSES, REQUEST_STATE})


class Recorded(msgspec.Struct, frozen=True):
    """An upstream's identity and lists, as last fetched."""

    identity: ServerIdentity
    lists: Mapping[Kind, tuple[Raw, ...]] = msgspec.field(default_factory=dict)


class Idling(msgspec.Struct, frozen=True):
    """The settings for idle links."""

    stop_after: float = 0
    """Seconds without a use after which the link is ended; 0 for never."""
    input_within: float = 0
    """Seconds that a client has to answer a call's request for input."""
    recorded: Recorded | None = None
    """The recorded identity and lists of an upstream that connects only when a call needs it."""

    @property
    def starts_idle(self) -> bool:
        return self.recorded is not None


NEVER_IDLE: Final = Idling()


class UsedLink:
    """A `Link` that records its uses. Times are seconds of the monotonic `clock`."""

    def __init__(self, link: Link, idling: Idling, clock: Callable[[], float] = anyio.current_time) -> None:
        self._link = link
        self._idling = idling
        self._clock = clock
        self._running = 0
        self._used_until = clock()
        """The time at which the last use ended or will end."""
        self._inputs: deque[tuple[int, float]] = deque(maxlen=MAX_INPUTS)
        """The question (`_question`) of each call that waits for input, and the time until which an answer may come."""
        self._tasks: dict[str, float] = {}
        """The time until which each task lives."""
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
        if self._inputs and not call.params.keys().isdisjoint(_ANSWERS):
            self._note_answer(_question(call, parse_text(call.params.get(REQUEST_STATE, b""))))
        outcome: Outcome | None = None
        try:
            outcome = await self._link(call)
            return outcome
        finally:
            self._running -= 1
            self._note(call, outcome)

    def seconds_left(self) -> float:
        """Seconds until the link may be ended if it is not used meanwhile; 0 or less if it may be ended now."""
        now = self._clock()
        self._tasks = {id: until for id, until in self._tasks.items() if until > now}
        while self._inputs and self._inputs[0][1] <= now:
            self._used_until = max(self._used_until, self._inputs.popleft()[1])
        if self._running or self._inputs or self._tasks or self._subscriptions:
            self._used_until = max(self._used_until, now)
        return self._used_until + self._idling.stop_after - now

    def _note(self, call: Call, outcome: Outcome | None) -> None:
        row, now = call.row, self._clock()
        if row.lists is not None:
            return
        self._used_until = max(self._used_until, now)
        if isinstance(outcome, InputRequired):
            self._inputs.append((_question(call, outcome.state), now + self._idling.input_within))
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

    def _note_answer(self, question: int) -> None:
        """Removes one of the calls that wait for this answer."""
        answered = next((waiting for waiting in self._inputs if waiting[0] == question), None)
        if answered is not None:
            self._inputs.remove(answered)


def _question(call: Call, state: str | None) -> int:
    """A hash that a question and its answer share: of the call's subject, and of the `requestState`, if any."""
    key = call.row.subject_key
    return hash((call.row.name, None if key is None else parse_text(call.params.get(key, b"")), state))
