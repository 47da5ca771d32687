"""A read at an upstream that several callers share: a singleflight (requirement R37).

The read goes on while any of them waits. Its outcome is shared only among callers that would have got the same: one
that depends on who asked is for the leader alone, the caller that began the read.
"""

from __future__ import annotations

import asyncio

import msgspec
from msgspec import Raw

from mcproxy.call.calls import Call, Complete, Failed, InputRequired, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError
from mcproxy.gateway.cache.store import CacheKey, ReaderKeys
from mcproxy.gateway.cache.watches import Watch
from mcproxy.protocol.jsonrpc import INVALID_REQUEST, Params
from mcproxy.protocol.methods import PROGRESS


class ReadWaiter(msgspec.Struct, frozen=True, eq=False):
    """A caller that waits until it is `released`."""

    call: Call
    keys: ReaderKeys
    released: asyncio.Future[None]


class SharedRead:
    """A read that `leader` began, found by others under its cache key. It is the upstream's `Client` meanwhile."""

    def __init__(self, key: CacheKey, leader: ReadWaiter, watch: Watch | None = None) -> None:
        self.key = key
        self.leader = leader
        self.watch = watch
        """The watch that has reported every change of the resource since before the read began, if any."""
        self.read: asyncio.Task[None] | None = None
        """The task that carries out the read, once it has begun."""
        self.public = False
        """Whether the outcome, once known, may be given to every caller."""
        self._waiting = {leader: None}
        self._outcome: Outcome | None = None
        self.asked = False
        """Whether the upstream asked the leader a question; the outcome then belongs to the leader alone."""

    @property
    def open(self) -> bool:
        """Whether further callers may join."""
        return bool(self._waiting) and not self.asked and self._outcome is None

    def join(self, waiter: ReadWaiter) -> None:
        """Adds a caller, which then has to `wait`; only while `open`."""
        self._waiting[waiter] = None

    async def wait(self, waiter: ReadWaiter) -> Outcome | None:
        """The outcome for a caller that joined; None where it must read for itself.

        When the last waiter leaves, the read ends.
        """
        try:
            await waiter.released
        finally:
            self._waiting.pop(waiter, None)
            if not self._waiting and self._outcome is None:
                self._end()
        return self._outcome if self._is_for(waiter) else None

    def finish(self, outcome: Outcome, *, public: bool) -> None:
        """Takes the outcome for all callers that may have it; `release` wakes them."""
        self._outcome = outcome
        self.public = public

    def release(self) -> None:
        """Wakes all waiters with the outcome so far."""
        for waiter in self._waiting:
            _release(waiter)

    def notify(self, method: str, params: Params) -> None:
        """Passes progress to all waiters, and log messages to the leader alone, whose log level was asked for."""
        for waiter in list(self._waiting):
            if method == PROGRESS or waiter is self.leader:
                waiter.call.client.notify(method, params)

    async def ask(self, request: InputRequest) -> Raw:
        """Asks the leader. The outcome then depends on its answer, so the other callers read for themselves."""
        self.asked = True
        for waiter in [waiter for waiter in self._waiting if waiter is not self.leader]:
            del self._waiting[waiter]
            _release(waiter)
        if not self._waiting:
            self._end()
            raise McpError(INVALID_REQUEST, "the client that began this read is gone")
        return await self.leader.call.client.ask(request)

    def _end(self) -> None:
        if self.read is not None:
            self.read.cancel()

    def _is_for(self, waiter: ReadWaiter) -> bool:
        if waiter is self.leader:
            return True
        same_reader = waiter.keys.own == self.leader.keys.own
        match self._outcome:
            case Complete():
                return not self.asked and (self.public or same_reader)
            case Failed():
                return not self.asked and same_reader and _declare_alike(waiter.call, self.leader.call)
            case InputRequired() | None:
                return False


def _release(waiter: ReadWaiter) -> None:
    # A cancelled waiter is still listed until its task has run.
    if not waiter.released.done():
        waiter.released.set_result(None)


def _declare_alike(one: Call, other: Call) -> bool:
    """Whether two callers declare the same capabilities, so that an upstream refuses both or neither."""
    return one.caller.capabilities == other.caller.capabilities and one.caller.version == other.caller.version
