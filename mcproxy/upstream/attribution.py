"""Which client's call caused a server's message, on a link that several share; ended calls count for a while (R26).

Once a second principal has used the link, a message on the shared stream is attributed to no client, unless the message
itself names a request or a task (R77): its cause may be a call that was cancelled or answered long ago, or a background
task. While only one principal uses the link, a message is attributed to one of its clients only if no other can have
caused it. Sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio
import msgspec
from msgspec.structs import replace

from mcproxy.call.calls import Call
from mcproxy.protocol.jsonrpc import RequestId, parse_text
from mcproxy.protocol.methods import Answerer

LINGER = 5.0
"""Seconds for which a call that the gateway gave up may still cause messages, unless its server answers before."""

_UPSTREAM: Final = Answerer.UPSTREAM


class Attributed(msgspec.Struct, frozen=True):
    """Caused by one client, provably; `ids` are the requests in flight that may have caused it."""

    call: Call
    ids: tuple[RequestId, ...]


class Unsolicited(msgspec.Struct, frozen=True):
    """Caused by no call, as none is in flight."""


class Ambiguous(msgspec.Struct, frozen=True):
    """Caused by one of several clients, or by a call that has ended here."""


class SharedByPrincipals(msgspec.Struct, frozen=True):
    """Several principals have used the link: no message on the shared stream can be proved to be one principal's."""


Attribution = Attributed | Unsolicited | Ambiguous | SharedByPrincipals


class CallsInFlight:
    """The calls in flight on one link by their upstream request ids, and the principals that have used the link."""

    def __init__(self, clock: Callable[[], float] = anyio.current_time) -> None:
        self._clock = clock
        self._calls: dict[RequestId, Call] = {}
        self._given_up: dict[RequestId, tuple[Call, float]] = {}
        self.principal: str | None = None
        """The name of the only principal that has used the link; None before the first, and after a second."""
        self._is_shared = False

    def begin(self, request: RequestId, call: Call) -> None:
        """Adds a call that is sent upstream under the id `request`; `end` removes it."""
        self._calls[request] = call
        self.note_principal(call)

    def note_principal(self, call: Call) -> None:
        """Notes the principal of a call.

        Calls that the gateway makes for all callers (lists, subscriptions) have none.
        """
        if self._is_shared or call.row.answerer is not _UPSTREAM:
            return
        name = call.caller.principal.name
        if self.principal is None:
            self.principal = name
        elif self.principal != name:
            self.principal, self._is_shared = None, True
            self._given_up.clear()

    def end(self, request: RequestId) -> None:
        """Removes a call. One that the server has not answered is remembered for a while, without its params."""
        call = self._calls.pop(request, None)
        if call is not None and call.row.may_ask and not self._is_shared:
            now = self._clock()
            self._forget_expired(now)
            self._given_up[request] = (replace(call, params={}), now + LINGER)

    def _forget_expired(self, now: float) -> None:
        """Forgets calls given up more than LINGER ago; they are in the order of their expiry."""
        while self._given_up:
            oldest = next(iter(self._given_up))
            if self._given_up[oldest][1] > now:
                return
            del self._given_up[oldest]

    def answered(self, id: RequestId | None) -> Call | None:
        """Removes a call that the server answered: it causes no more messages. Returns it where it was in flight."""
        if id is None:
            return None
        if self._given_up:
            self._given_up.pop(id, None)
        return self._calls.pop(id, None)

    def of(self, id: RequestId) -> Attribution:
        """The cause of a message on the response stream of request `id`."""
        call = self._calls.get(id)
        return Ambiguous() if call is None else Attributed(call, (id,))

    def of_task(self, task: str) -> Attribution:
        """The cause of a message about a task: the call that waits for its result (2025-11-25, tasks)."""
        waiting = {id: call for id, call in self._calls.items() if _waits_for(call) == task}
        if not waiting:
            return Ambiguous()
        first = next(iter(waiting.values()))
        # Clients know only their own tasks' ids, so a caller that waits for a task owns it.
        return Attributed(first, tuple(waiting))

    def is_any_waiting(self) -> bool:
        """Whether a call waits for the result of a task: nothing may come of the server until it is there."""
        return any(call.row.waits for call in self._calls.values())

    def on_shared_stream(self, is_asking: Callable[[RequestId], bool] = lambda id: False) -> Attribution:
        """The cause of a message on a stream that all calls share.

        `is_asking` returns whether the server waits for input to a request already. Then another call is the likelier
        cause; and a call that was abandoned while it asked must not hold up other calls of its principal.
        """
        if self._is_shared:
            return SharedByPrincipals()
        self._forget_expired(self._clock())
        in_flight = {id: call for id, call in self._calls.items() if call.row.may_ask}
        suspects = {id: call for id, call in in_flight.items() if not is_asking(id)} or in_flight
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
