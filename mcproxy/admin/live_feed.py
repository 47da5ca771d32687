"""A live feed of calls and upstream events for the status page. Costs a call one comparison if no page watches.

Contains names and durations alone, neither arguments nor results.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Final, assert_never

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectSendStream

from mcproxy.call.calls import Call, Complete, Failed, Handler, InputRequired, Outcome
from mcproxy.call.clients import ListChanged, Notice, ResourceUpdated
from mcproxy.call.upstreams import Connected, Disconnected, Idled, LoginAwaited, Retired, UpstreamChanged, UpstreamEvent
from mcproxy.protocol.jsonrpc import parse_text

BACKLOG: Final = 200
"""Entries that wait for one page; further ones are lost to it."""

MAX_TEXT: Final = 200
"""Largest text of a peer that is shown, in characters."""


class FeedEntry(msgspec.Struct, frozen=True):
    """One line of the feed. `time` is a Unix time; `seconds` is the duration of a call."""

    time: float
    kind: str
    subject: str
    outcome: str
    principal: str = ""
    seconds: float | None = None


class Feed:
    """Copies calls and events to each page that watches."""

    def __init__(self, max_watchers: int, clock: Callable[[], float] = time.time) -> None:
        self._max_watchers = max_watchers
        self._clock = clock
        self._watchers: set[MemoryObjectSendStream[FeedEntry]] = set()
        self._closed = False

    @property
    def is_full(self) -> bool:
        """Whether it takes no more watchers."""
        return self._closed or len(self._watchers) >= self._max_watchers

    def close(self) -> None:
        """Ends the feed for every watcher, and takes no more: the gateway shuts down (requirement R9)."""
        self._closed = True
        for watcher in self._watchers:
            watcher.close()

    @contextmanager
    def watched(self) -> Iterator[AsyncIterator[FeedEntry]]:
        """Yields the entries from now on, until the feed is closed."""
        sending, receiving = anyio.create_memory_object_stream[FeedEntry](BACKLOG)
        self._watchers.add(sending)
        try:
            with sending, receiving:
                yield receiving
        finally:
            self._watchers.discard(sending)

    def around(self, handler: Handler) -> Handler:
        """The outermost stage of the pipeline: copies each call to the feed."""

        async def observed(call: Call) -> Outcome:
            if not self._watchers:
                return await handler(call)
            began, outcome = time.perf_counter(), "cancelled"
            try:
                answer = await handler(call)
                outcome = _outcome(answer)
            finally:
                principal, seconds = call.caller.principal.name, time.perf_counter() - began
                self._publish(FeedEntry(self._clock(), call.method, _subject(call), outcome, principal, seconds))
            return answer

        return observed

    def on_event(self, event: UpstreamEvent) -> None:
        """Shows an upstream event on every page that watches. Never blocks: a page that reads too slowly misses it."""
        if self._watchers:
            kind, outcome = _described(event)
            self._publish(FeedEntry(self._clock(), kind, event.upstream, outcome))

    def _publish(self, entry: FeedEntry) -> None:
        for watcher in self._watchers:
            try:
                watcher.send_nowait(entry)
            except (anyio.WouldBlock, anyio.ClosedResourceError):
                continue


def _subject(call: Call) -> str:
    key = call.row.subject_key
    text = parse_text(call.params.get(key, b"")) if key else None
    return (text or "")[:MAX_TEXT]


def _outcome(outcome: Outcome) -> str:
    match outcome:
        case Complete(is_error=True):
            return "tool error"
        case Complete():
            return "ok"
        case InputRequired():
            return "needs input"
        case Failed(error=error, reason=reason):
            return f"{reason.value}: {error.message}"[:MAX_TEXT]
        case _:
            assert_never(outcome)


def _described(event: UpstreamEvent) -> tuple[str, str]:
    match event:
        case Connected(identity=identity):
            return "connected", identity.version
        case Disconnected(reason=reason):
            return "disconnected", reason[:MAX_TEXT]
        case Idled():
            return "idle", ""
        case Retired():
            return "retired", ""
        case LoginAwaited(awaited=awaited):
            return "login awaited" if awaited else "logged in", ""
        case UpstreamChanged(change=ListChanged(kind=kind)):
            return "list changed", kind.value
        case UpstreamChanged(change=ResourceUpdated(uri=uri)):
            return "updated", uri[:MAX_TEXT]
        case UpstreamChanged(change=Notice(method=method)):
            return "notice", method
        case UpstreamChanged():
            return "changed", ""
        case _:
            assert_never(event)
