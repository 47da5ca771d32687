"""The event streams that tell clients of changes: how many each principal has open, and whether it still may.

A stream outlasts the request that opened it, so its credentials are judged again after each reload and when they
expire; a stream that would be refused now is ended (R54, R38). Streams that answer a call are not counted: calls have
limits of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Final

import anyio.lowlevel

from mcproxy.access.identity import Identified
from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import Principal
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.responses import Refusal
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR

JUDGED_AT_ONCE: Final = 100
"""Streams that are judged before other tasks of the loop get a turn."""
RETRY: Final = 10.0
"""Seconds until a stream is judged again whose principal cannot be determined now."""

IdentifyAgain = Callable[[], Awaitable[Identified]]
"""Judges the credentials of a stream's request again. Raises Refusal."""


class TooManyStreams(McpError):
    """All callers together, or this one, already have `most` streams open."""

    def __init__(self, whose: str, most: int, setting: str) -> None:
        sentence = f"{whose} {most} event streams are in use (limits.{setting}); end one, or try again later"
        super().__init__(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)


class OpenStream:
    """One open stream. `end` ends it as its transport does; `adopt` takes the principal's present roles and scopes.

    Without `adopt`, a stream whose principal has other roles is ended too: its client opens another.
    """

    __slots__ = ("_open", "_timer", "adopt", "end", "identified", "identify_again")

    def __init__(
        self,
        open_streams: OpenStreams,
        identified: Identified,
        identify_again: IdentifyAgain,
        end: Callable[[], None],
        adopt: Callable[[Principal], None] | None,
    ) -> None:
        self.identified = identified
        self.identify_again = identify_again
        self.end = end
        self.adopt = adopt
        self._open: OpenStreams | None = open_streams
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether the stream still counts as open."""
        return self._open is not None

    def close(self) -> None:
        """Counts the stream no more. Idempotent."""
        if self._open is not None:
            self._open.discard(self)
            self._open = None
            self.judge_in(None)

    def judge_in(self, seconds: float | None) -> None:
        """Has the stream judged again after so many seconds, or (None) only after a reload."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None and self._open is not None:
            loop = asyncio.get_running_loop()
            # In an empty context: the timer outlives the request that opened the stream.
            self._timer = loop.call_later(max(0, seconds), self._open.judge_soon, self, context=Context())


class OpenStreams:
    """`wall` is a Unix time in seconds."""

    def __init__(self, context: TransportContext, wall: Callable[[], float] = time.time) -> None:
        self._context = context
        self._wall = wall
        self._streams: set[OpenStream] = set()
        self._of_account: Counter[str] = Counter()
        """Streams by the account of their principal."""
        self._anonymous = 0
        """Streams of all callers without authentication."""
        self._none_open = asyncio.Event()

    def open(
        self,
        identified: Identified,
        identify_again: IdentifyAgain,
        end: Callable[[], None],
        adopt: Callable[[Principal], None] | None = None,
    ) -> OpenStream:
        """Counts a stream until it is closed. Raises TooManyStreams."""
        self._check_room(identified.principal)
        self._of_account[identified.principal.account] += 1
        self._anonymous += identified.principal.is_anonymous
        stream = OpenStream(self, identified, identify_again, end, adopt)
        self._streams.add(stream)
        self._await_expiry(stream)
        return stream

    def _check_room(self, principal: Principal) -> None:
        limits = self._context.proxy.limits
        if principal.is_anonymous and self._anonymous >= limits.max_sessions:
            raise TooManyStreams("all", limits.max_sessions, "max_sessions")
        if not principal.is_several and self._of_account[principal.account] >= limits.max_streams_per_principal:
            raise TooManyStreams("all your", limits.max_streams_per_principal, "max_streams_per_principal")

    def discard(self, stream: OpenStream) -> None:
        """Used by `OpenStream.close`."""
        self._streams.discard(stream)
        principal = stream.identified.principal
        self._of_account[principal.account] -= 1
        if not self._of_account[principal.account]:
            del self._of_account[principal.account]
        self._anonymous -= principal.is_anonymous
        if not self._streams:
            self._none_open.set()

    async def wait_closed(self) -> None:
        """Returns once no stream is open."""
        while self._streams:
            self._none_open.clear()
            await self._none_open.wait()

    async def judge_after_reloads(self) -> None:
        """Judges all streams after each reload, until cancelled."""
        judged = self._context.generation
        while True:
            while judged is self._context.generation:
                await self._context.reloaded.wait()
            judged = self._context.generation
            for number, stream in enumerate(list(self._streams), 1):
                await self._judge(stream)
                if number % JUDGED_AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()

    def judge_soon(self, stream: OpenStream) -> None:
        """Used by the timer of a stream."""
        self._context.tasks.start_soon(self._judge, stream)

    async def _judge(self, stream: OpenStream) -> None:
        if not stream.is_open:
            return
        try:
            found = await stream.identify_again()
        except Refusal as refusal:
            if refusal.status == 503:
                stream.judge_in(RETRY)
            else:
                stream.end()
            return
        known = stream.identified.principal
        if found.principal.name != known.name or (found.principal != known and stream.adopt is None):
            stream.end()
            return
        stream.identified = found
        if stream.adopt is not None and found.principal != known:
            stream.adopt(found.principal)
        self._await_expiry(stream)

    def _await_expiry(self, stream: OpenStream) -> None:
        until = stream.identified.until
        stream.judge_in(until - self._wall() if until < float("inf") else None)
