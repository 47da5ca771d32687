"""Calls that wait upstream, alive, for the retries of their stateless clients: how many, how long, and whose turn.

A call never runs twice: a retry wakes the one that is there, or is refused. Calls are parked with no request of the
client's in sight, so their number and their time are bounded here, and nobody who is parked gives way to another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from mcproxy import settings
from mcproxy.call.calls import Call, Failed, Handler, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.concurrency.clock import Clock, Sleep
from mcproxy.concurrency.wakeup import Wakeup
from mcproxy.gateway.containment import contained
from mcproxy.gateway.input.parked_call import ParkedCall
from mcproxy.gateway.input.request_state import Parked, refused
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, ErrorObject
from mcproxy.protocol.methods import INPUT_CAPABILITIES
from mcproxy.telemetry.metrics import Metrics

AsksByResults = Callable[[Call], bool]
"""Whether the upstream of a call is known to ask by its results alone."""

ASKABLE: Final = frozenset(INPUT_CAPABILITIES.values())
"""Client capabilities by which a client can be asked something."""

STOPPED: Final = Failed(
    ErrorObject(INTERNAL_ERROR, "the gateway stopped while the call ran: its outcome is unknown"),
    Party.GATEWAY,
    Reason.UNAVAILABLE,
)


@dataclass(frozen=True, slots=True)
class Pause:
    """A call waits for its client, and for how long."""

    parked: Parked
    requests: dict[str, InputRequest]
    expires: float


class Parking:
    """`mint` makes the ids of calls: unguessable, and never the same again."""

    def __init__(
        self,
        limits: settings.BridgeSettings,
        asks_by_results: AsksByResults,
        metrics: Metrics,
        clock: Clock,
        sleep: Sleep,
        mint: Callable[[], str],
    ) -> None:
        self._limits = limits
        self._asks_by_results = asks_by_results
        self._clock = clock
        self._sleep = sleep
        self._mint = mint
        self._tasks: asyncio.TaskGroup | None = None
        self._places: dict[str, ParkedCall] = {}
        """All that were ever parked and are not over, those with a request attached too: they keep their place."""
        self._expiries: dict[str, float] = {}
        """Of those that wait, soonest first."""
        self._parked = Wakeup()
        self._metrics = metrics
        metrics.parked.set_function(self.__len__)

    def reconfigure(self, limits: settings.BridgeSettings) -> None:
        """For calls that begin, and those that are parked, from now on."""
        self._limits = limits

    def __len__(self) -> int:
        return len(self._places)

    async def run(self) -> None:
        """Carries calls, and ends those whose time is over, until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            try:
                await self._expire()
            finally:
                self._tasks = None

    def may_park(self, call: Call) -> bool:
        """Whether a call may have to wait for its client. Any other needs no task that may outlive its request.

        While this does not run nothing can be parked.
        """
        return (
            self._tasks is not None
            and not ASKABLE.isdisjoint(call.caller.capabilities)
            and not self._asks_by_results(call)
        )

    def begin(self, handler: Handler, call: Call) -> Awaitable[Outcome | Pause]:
        """A call from its start to its outcome or to its first pause. Raises McpError where it may not be parked."""
        assert self._tasks is not None, "see `may_park`"
        parked_call = ParkedCall(call, self._limits)
        parked_call.task = self._tasks.create_task(_carry(parked_call, handler, call), name=call.method)
        # A task that is cancelled before its first step never comes to its own end.
        parked_call.task.add_done_callback(lambda _: parked_call.finish(STOPPED))
        return self._accompany(parked_call)

    async def resume(self, parked: Parked, call: Call) -> Outcome | Pause:
        """A parked call from its client's retry to its outcome or to the next pause. Raises McpError."""
        parked_call = self._places.get(parked.parked_call)
        if parked_call is None or parked_call.round != parked.round:
            raise refused("was used before, or its call is over: each is good for one retry")
        parked_call.resume(call)
        self._metrics.parked_ends.labels("answered").inc()
        del self._expiries[parked.parked_call]
        return await self._accompany(parked_call)

    async def _accompany(self, parked_call: ParkedCall) -> Outcome | Pause:
        """Stays until there is something to tell the client. Its hang-up meanwhile cancels the call (R25)."""
        pause: Pause | None = None
        try:
            while parked_call.outcome is None:
                if not parked_call.requests:
                    await parked_call.stirred()
                    continue
                # What an upstream asks together goes in one answer; it arrives piece by piece.
                await self._sleep(self._limits.gather)
                if parked_call.requests and parked_call.outcome is None:
                    pause = self._park(parked_call)
                    return pause
            return parked_call.outcome
        finally:
            if pause is None:
                self._end(parked_call)

    def _park(self, parked_call: ParkedCall) -> Pause:
        if parked_call.id is None:
            self._check_room(parked_call)
            parked_call.id = self._mint()
            self._places[parked_call.id] = parked_call
        parked_call.park()
        expires = self._clock() + self._limits.park_ttl
        self._expiries[parked_call.id] = expires
        self._parked.notify_all()
        return Pause(Parked(parked_call.id, parked_call.round), parked_call.requests, expires)

    def _check_room(self, parked_call: ParkedCall) -> None:
        if len(self._places) >= self._limits.max_parked:
            raise _busy("max_parked")
        of_principal = sum(parked.principal.name == parked_call.principal.name for parked in self._places.values())
        if of_principal >= self._limits.max_parked_per_principal:
            raise _busy("max_parked_per_principal")

    def _end(self, parked_call: ParkedCall) -> None:
        parked_call.cancel()
        if parked_call.id is not None:
            self._places.pop(parked_call.id, None)
            self._expiries.pop(parked_call.id, None)

    async def _expire(self) -> None:
        while True:
            soonest = next(iter(self._expiries.values()), None)
            if soonest is None:
                await self._parked.wait()
                continue
            await self._sleep(max(0.0, soonest - self._clock()))
            now = self._clock()
            for id in [id for id, expires in self._expiries.items() if expires <= now]:
                self._end(self._places[id])
                self._metrics.parked_ends.labels("expired").inc()


async def _carry(parked_call: ParkedCall, handler: Handler, call: Call) -> None:
    parked_call.finish(await contained(handler)(replace(call, client=parked_call)))


def _busy(setting: str) -> McpError:
    return McpError(INTERNAL_ERROR, f"busy: too many calls wait for their clients (bridge.{setting})")
