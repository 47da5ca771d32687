"""Whom an upstream may be asking for, on a connection that several clients share (requirement R26). Asks nobody.

A question is traced to a client only where no other can have caused it. Calls that ended here while their server
may still work on them stay suspects for a while: a question of theirs must not reach the next caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import anyio

from mcproxy.call.calls import Call
from mcproxy.protocol.jsonrpc import RequestId, parse_text

LINGER = 5.0
"""Seconds for which a call that we gave up remains a suspect, unless its server answers before."""


@dataclass(frozen=True, slots=True)
class Attributed:
    """One client, provably; `ids` are its requests in flight that may have caused it."""

    call: Call
    ids: tuple[RequestId, ...]


@dataclass(frozen=True, slots=True)
class Unsolicited:
    """No call in flight can have caused it."""


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """Several clients may have, or one that has left."""


Attribution = Attributed | Unsolicited | Ambiguous


class CallsInFlight:
    """The calls of one link, by the ids of their upstream requests."""

    def __init__(self, clock: Callable[[], float] = anyio.current_time) -> None:
        self._clock = clock
        self._calls: dict[RequestId, Call] = {}
        self._given_up: dict[RequestId, tuple[Call, float]] = {}

    def begin(self, request: RequestId, call: Call) -> None:
        self._calls[request] = call

    def end(self, request: RequestId) -> None:
        """Notes that nobody waits any more for what has not been answered."""
        call = self._calls.pop(request, None)
        if call is not None and call.row.may_ask:
            self._given_up[request] = (call, self._clock() + LINGER)

    def answered(self, id: RequestId | None) -> None:
        """Notes that the server is done with a call: what comes next is not of it."""
        if id is not None:
            self._calls.pop(id, None)
            if self._given_up:
                self._given_up.pop(id, None)

    def of(self, id: RequestId) -> Attribution:
        """Who caused what arrived on the response stream of request `id`."""
        call = self._calls.get(id)
        return Ambiguous() if call is None else Attributed(call, (id,))

    def of_task(self, task: str) -> Attribution:
        """Who waits for the result of a task: what belongs to it is for nobody else (2025-11-25, tasks)."""
        waiting = {id: call for id, call in self._calls.items() if _waits_for(call) == task}
        if not waiting:
            return Ambiguous()
        first = next(iter(waiting.values()))
        # The ids of tasks that clients know are theirs alone, so that whoever waits for one is its owner.
        return Attributed(first, tuple(waiting))

    def on_shared_stream(self) -> Attribution:
        """Who caused what arrived on a stream that all calls share."""
        now = self._clock()
        self._given_up = {id: entry for id, entry in self._given_up.items() if entry[1] > now}
        suspects = {id: call for id, call in self._calls.items() if call.row.may_ask}
        departed = [call for call, _ in self._given_up.values()]
        if not suspects:
            return Ambiguous() if departed else Unsolicited()
        first = next(iter(suspects.values()))
        if all(_same_client(first, other) for other in (*suspects.values(), *departed)):
            return Attributed(first, tuple(suspects))
        return Ambiguous()


def _waits_for(call: Call) -> str | None:
    row = call.row
    return parse_text(call.params[row.subject_key]) if row.waits and row.subject_key in call.params else None


def _same_client(one: Call, other: Call) -> bool:
    if one.caller.session is not None:
        return one.caller.session == other.caller.session
    return one.client is other.client
