"""The filter of a `subscriptions/listen` request: the lists, URIs and tasks whose changes are wanted or agreed to."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from mcproxy.catalog.uris import canonical
from mcproxy.protocol.capabilities import tells_changes
from mcproxy.protocol.json.bounds import parse_texts
from mcproxy.protocol.jsonrpc import EMPTY_OBJECT, InvalidMessage, Params, nonnull, parse_object, raw
from mcproxy.protocol.methods import LISTEN_FLAGS, LISTEN_URIS, Kind
from mcproxy.protocol.tasks import LISTEN_TASKS, listened

SPARE: Final = 1000
"""Names that an acknowledgement may have beyond twice the requested ones; one with more is not read."""


class FilterEntry(NamedTuple):
    """One name in a filter: `member` is LISTEN_URIS or LISTEN_TASKS."""

    member: str
    name: str


class ListenFilter(msgspec.Struct, frozen=True):
    """The notifications that a stream requests, or has agreed to."""

    flags: frozenset[str] = frozenset()
    """A subset of `LISTEN_FLAGS`."""
    uris: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()

    @classmethod
    def of(cls, flags: frozenset[str], named: Collection[FilterEntry]) -> ListenFilter:
        """The filter with these flags, and with the URIs and tasks in `named`."""
        uris = frozenset(name for member, name in named if member == LISTEN_URIS)
        return cls(flags, uris, frozenset(name for member, name in named if member == LISTEN_TASKS))

    def __bool__(self) -> bool:
        return bool(self.flags or self.named)

    @property
    def named(self) -> frozenset[FilterEntry]:
        """The URIs and tasks, one entry each."""
        uris = frozenset(FilterEntry(LISTEN_URIS, uri) for uri in self.uris)
        return uris | {FilterEntry(LISTEN_TASKS, id) for id in self.tasks}

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The lists that the flags stand for."""
        return tuple(kind for flag, kinds in LISTEN_FLAGS.items() if flag in self.flags for kind in kinds)

    def params(self) -> Params:
        """The params of a `subscriptions/listen` request (2026-07-28, subscriptions)."""
        members: dict[str, object] = dict.fromkeys(sorted(self.flags), True)
        if self.uris:
            members[LISTEN_URIS] = sorted(self.uris)
        if self.tasks:
            members[LISTEN_TASKS] = sorted(self.tasks)
        return {"notifications": raw(members)}

    def agreed(self, params: Params) -> ListenFilter:
        """The part of this filter that an acknowledgement honours.

        A URI may come back spelt differently (requirement R63).
        """
        try:
            members = nonnull(parse_object(params.get("notifications", EMPTY_OBJECT)))
            uris = parse_texts(members.get(LISTEN_URIS, b"[]"), 2 * len(self.uris) + SPARE)
            named = set(map(canonical, uris))
            tasks = self.tasks.intersection(listened(params, 2 * len(self.tasks) + SPARE))
        except (InvalidMessage, msgspec.MsgspecError, RecursionError):
            return ListenFilter()
        flags = frozenset(flag for flag in self.flags if bytes(members.get(flag, b"")) == b"true")
        return ListenFilter(flags, frozenset(uri for uri in self.uris if canonical(uri) in named), tasks)


def announced(capabilities: Params) -> frozenset[str]:
    """The flags for the lists whose changes a server declares that it announces."""
    return frozenset(flag for flag, kinds in LISTEN_FLAGS.items() if tells_changes(capabilities, kinds[0].capability))
