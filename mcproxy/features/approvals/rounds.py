"""Approved calls whose upstream asked for input: each may continue once, without a second approval.

Bounded in number, for each principal and in total, and in time; the oldest are dropped first. A dropped call needs
approval again.
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
        """Keeps a call and returns the id with which it can continue.

        If there is no room, the principal's oldest call is dropped.
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
        """Returns whether `id` was issued for exactly this call. An id can be used only once."""
        kept = None if id is None else self._kept.pop(id, None)
        return kept is not None and kept.subject == subject and kept.expires > self._clock()
