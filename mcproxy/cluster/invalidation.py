"""What this replica forgets, or looks up again, when another one reports that it may be stale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, assert_never

from mcproxy.call.upstreams import UpstreamChanged
from mcproxy.cluster.events import (
    ClusterEvent,
    GrantChanged,
    SessionEnded,
    StaleAccess,
    StaleAll,
    StaleList,
    StaleReads,
    StaleResource,
    upstream_change,
)


class Memories(Protocol):
    """The gateway's caches (`gateway.gateway.Gateway`)."""

    def take_note(self, change: UpstreamChanged) -> None:
        """Takes in a change that another replica heard of. Tells clients nothing, and never blocks."""

    def forget_reads(self, upstream: str | None = None) -> None:
        """Drops what the cache holds of an upstream, or of all (None)."""


class GrantMemory(Protocol):
    """What this replica remembers of shared grants."""

    def on_change(self, upstream: str, principal: str) -> None:
        """Another replica stored or revoked a grant."""

    def on_gap(self) -> None:
        """Changes of grants may have been missed."""


class Invalidation:
    """Implements `events.Hearer`.

    `write_again` writes the records of sessions again: a store that lost events may have lost those as well.
    `judge_again` has all streams, and the senders of requests, judged again. `reload` reads the configuration again.
    """

    def __init__(
        self,
        memories: Memories,
        judge_again: Callable[[], None],
        reload: Callable[[], None],
        forget_session: Callable[[str], None],
        write_again: Callable[[], None],
        grants: GrantMemory,
    ) -> None:
        self._grants = grants
        self._memories = memories
        self._judge_again = judge_again
        self._reload = reload
        self._forget_session = forget_session
        self._write_again = write_again

    def on_cluster_event(self, event: ClusterEvent) -> None:
        match event:
            case StaleResource() | StaleList():
                self._memories.take_note(upstream_change(event))
            case StaleReads(upstream=upstream):
                self._memories.forget_reads(upstream)
            case StaleAccess():
                self._reload()
                self._judge_again()
            case SessionEnded(key=key):
                self._forget_session(key)
            case GrantChanged(upstream=upstream, principal=principal):
                self._grants.on_change(upstream, principal)
            case StaleAll():
                self.on_gap()
            case _:
                assert_never(event)

    def on_gap(self) -> None:
        """Events may have been missed: treats as stale all that they could have reported."""
        self._write_again()
        self._grants.on_gap()
        self._memories.forget_reads()
        self._reload()
        self._judge_again()
