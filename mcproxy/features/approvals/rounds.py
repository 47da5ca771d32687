"""Calls that were approved and whose upstream asked for input: each goes on once with it, and is not asked about again.

Bounded for each principal and in all, and in time; the oldest give way. A call that is not kept any more is asked about
like any other.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection

import msgspec

from mcproxy.features.approvals.approval import ApprovalSubject
from mcproxy.settings.access.approvals import ApprovalSettings


class _Round(msgspec.Struct, frozen=True):
    subject: ApprovalSubject
    expires: float


class ApprovedRounds:
    """`clock` gives a Unix time in seconds."""

    def __init__(self, settings: ApprovalSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._kept: dict[str, _Round] = {}
        """Oldest first."""

    def reconfigure(self, settings: ApprovalSettings, upstreams: Collection[str]) -> None:
        """Forgets the calls of upstreams that are not among `upstreams`."""
        self._settings = settings
        self._kept = {id: kept for id, kept in self._kept.items() if kept.subject.upstream in upstreams}

    def keep(self, subject: ApprovalSubject) -> str:
        """Keeps a call and returns the id by which it can continue.

        The principal's oldest gives way where there is no room.
        """
        now, limits = self._clock(), self._settings
        self._kept = {id: kept for id, kept in self._kept.items() if kept.expires > now}
        own = [id for id, kept in self._kept.items() if kept.subject.principal == subject.principal]
        for id in own[: max(0, len(own) + 1 - limits.max_waiting_per_principal)]:
            del self._kept[id]
        while len(self._kept) >= limits.max_waiting:
            del self._kept[next(iter(self._kept))]
        id = secrets.token_urlsafe(12)
        self._kept[id] = _Round(subject, now + limits.timeout)
        return id

    def take(self, id: str | None, subject: ApprovalSubject) -> bool:
        """Returns whether `id` was given for this very call; an id is good for one use."""
        kept = None if id is None else self._kept.pop(id, None)
        return kept is not None and kept.subject == subject and kept.expires > self._clock()
