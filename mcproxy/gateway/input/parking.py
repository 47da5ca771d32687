"""All parked calls: which retry resumes which call, how many there may be, and for how long each is kept.

A call never runs twice: a retry resumes the call that is there, or is refused. While a call is parked no connection of
its client is open, so that number and time are bounded here; a parked call never gives way to another.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import msgspec
from msgspec.structs import replace

from mcproxy import settings
from mcproxy.call.calls import Call, Failed, Handler, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.concurrency.clock import Clock, Sleep
from mcproxy.concurrency.wakeup import Wakeup
from mcproxy.gateway.component import Reconfiguration
from mcproxy.gateway.input.parked_call import ParkedCall, ParkedCallEvent, ParkedCallState
from mcproxy.gateway.input.request_state import Parked, state_refusal
from mcproxy.gateway.pipeline import contained
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, ErrorObject
from mcproxy.telemetry.metrics import Metrics

MAX_GATHERED: Final = 10
"""How often a further question may prolong the wait for more."""


STOPPED: Final = Failed(
    ErrorObject(INTERNAL_ERROR, "the gateway stopped while the call ran: its outcome is unknown"),
    Party.GATEWAY,
    Reason.UNAVAILABLE,
)


class Pause(msgspec.Struct, frozen=True):
    """The call was parked: the client is to answer `requests` before `expires`, a Unix time in seconds."""

    parked: Parked
    requests: dict[str, InputRequest]
    expires: float


class Parking:
    """`mint` makes the ids of parked calls: unguessable and unique."""

    def __init__(
        self,
        limits: settings.BridgeSettings,
        metrics: Metrics,
        clock: Clock,
        sleep: Sleep,
        mint: Callable[[], str],
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._sleep = sleep
        self._mint = mint
        self._tasks: asyncio.TaskGroup | None = None
        self.is_running = False
        """Whether calls can be parked, that is whether `run` runs."""
        self._calls: dict[str, ParkedCall] = {}
        """Calls that were parked at least once and are not over, by id, resumed ones included."""
        self._expiries: dict[str, float] = {}
        """The expiry of each call that is parked now."""
        self._soonest = math.inf
        """The expiry that `run` waits for."""
        self._waiting: anyio.CancelScope | None = None
        """The wait of `run`; a call that expires sooner cuts it short, as a reload may have shortened the time."""
        self._parked = Wakeup()
        self._metrics = metrics
        metrics.parked.set_function(self.__len__)

    def reconfigure(self, change: Reconfiguration) -> None:
        """Takes other limits, for calls that begin or are parked from now on."""
        self._limits = change.settings.proxy.bridge

    def __len__(self) -> int:
        return len(self._calls)

    async def run(self) -> None:
        """Owns the calls' tasks, and cancels calls that have expired, until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            self.is_running = True
            try:
                await self._expire()
            finally:
                self._tasks, self.is_running = None, False

    def keeps(self, parked: Parked) -> bool:
        """Whether there is such a call, in that round."""
        parked_call = self._calls.get(parked.id)
        return parked_call is not None and parked_call.round == parked.round

    def begin(self, handler: Handler, call: Call) -> Awaitable[Outcome | Pause]:
        """Starts a call; returns its outcome or its first pause. Raises McpError where the call may not be parked."""
        assert self._tasks is not None, "see `is_running`"
        parked_call = ParkedCall(call, self._limits)
        parked_call.task = self._tasks.create_task(_run(parked_call, handler, call), name=call.method)
        # A task that is cancelled before its first step never reaches its own end.
        parked_call.task.add_done_callback(lambda _: parked_call.end(STOPPED))
        return self._next(parked_call)

    async def resume(self, parked: Parked, call: Call) -> Outcome | Pause:
        """Resumes a parked call by its client's retry; returns its outcome or the next pause. Raises McpError."""
        parked_call = self._calls.get(parked.id)
        if parked_call is None or parked_call.round != parked.round:
            raise state_refusal("was used before, or its call is over: each is good for one retry")
        if not call.caller.rights.cover(parked_call.rights):
            raise state_refusal("was given to a request with other rights: make the call again, without it")
        parked_call.resume(call)
        self._metrics.parked_ends.labels("answered").inc()
        del self._expiries[parked.id]
        return await self._next(parked_call)

    async def _next(self, parked_call: ParkedCall) -> Outcome | Pause:
        """Waits for the outcome or for questions. If the client hangs up meanwhile, the call is cancelled (R25)."""
        pause: Pause | None = None
        try:
            while parked_call.outcome is None:
                if parked_call.state is ParkedCallState.REFERRED:
                    if await self._hold(parked_call):
                        pause = self._park(parked_call, ParkedCallEvent.HELD)
                        return pause
                    continue
                if parked_call.state is not ParkedCallState.ASKING:
                    await parked_call.changed()
                    continue
                await self._gather(parked_call)
                if parked_call.state is ParkedCallState.ASKING:
                    pause = self._park(parked_call)
                    return pause
            return parked_call.outcome
        finally:
            if pause is None:
                self._end(parked_call)

    async def _gather(self, parked_call: ParkedCall) -> None:
        """Waits until `gather` seconds pass without a further question, so that one answer carries all of them.

        Questions arrive one by one, and before 2026-07-28 nothing says how many there will be.
        """
        for _ in range(MAX_GATHERED):
            asked = parked_call.asked
            await self._sleep(self._limits.gather)
            if parked_call.asked == asked:
                return

    async def _hold(self, parked_call: ParkedCall) -> bool:
        """Waits for another person's decision. Returns True if `hold` seconds passed without one."""
        with anyio.move_on_after(self._limits.hold):
            await parked_call.changed()
        return parked_call.state is ParkedCallState.REFERRED

    def _park(self, parked_call: ParkedCall, event: ParkedCallEvent = ParkedCallEvent.GATHERED) -> Pause:
        if parked_call.id is None:
            self._check_room(parked_call)
            parked_call.id = self._mint()
            self._calls[parked_call.id] = parked_call
        parked_call.park(event)
        expires = self._clock() + self._limits.park_ttl
        self._expiries[parked_call.id] = expires
        self._parked.notify_all()
        if expires < self._soonest and self._waiting is not None:
            self._waiting.cancel()
        return Pause(Parked(parked_call.id, parked_call.round), parked_call.requests, expires)

    def _check_room(self, parked_call: ParkedCall) -> None:
        if len(self._calls) >= self._limits.max_parked:
            raise _busy("max_parked")
        of_principal = sum(other.principal.account == parked_call.principal.account for other in self._calls.values())
        if of_principal >= self._limits.max_parked_per_principal:
            raise _busy("max_parked_per_principal")

    def _end(self, parked_call: ParkedCall) -> None:
        parked_call.abandon()
        if parked_call.id is not None:
            self._calls.pop(parked_call.id, None)
            self._expiries.pop(parked_call.id, None)

    async def _expire(self) -> None:
        while True:
            self._soonest = min(self._expiries.values(), default=math.inf)
            if self._soonest == math.inf:
                await self._parked.wait()
                continue
            with anyio.CancelScope() as self._waiting:
                await self._sleep(max(0.0, self._soonest - self._clock()))
            now = self._clock()
            for id in [id for id, expires in self._expiries.items() if expires <= now]:
                self._end(self._calls[id])
                self._metrics.parked_ends.labels("expired").inc()


async def _run(parked_call: ParkedCall, handler: Handler, call: Call) -> None:
    parked_call.end(await contained(handler)(replace(call, client=parked_call)))


def _busy(setting: str) -> McpError:
    return McpError(INTERNAL_ERROR, f"busy: too many calls wait for their clients (bridge.{setting})")
