"""A `Snapshot`: one upstream's lists as it sent them, without unusable entries, such as one without a name.

It is replaced whole. Knows no endpoint: names are the upstream's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.upstreams import ServerIdentity
from mcproxy.catalog.freshness import Freshness
from mcproxy.catalog.naming import RefusedEntry
from mcproxy.catalog.skills import InvalidSkill, files_of
from mcproxy.catalog.views.derived import deriving
from mcproxy.concurrency.turns import Steps, at_once
from mcproxy.protocol.json.bounds import MAX_VALUES, has_more_values, parse_value
from mcproxy.protocol.json.nesting import nests_deeper
from mcproxy.protocol.json.repeated_members import repeats_member
from mcproxy.protocol.jsonrpc import InvalidMessage, parse_object, parse_text
from mcproxy.protocol.methods import Kind

MAX_DEPTH: Final = 200
"""Levels of nesting of an entry: it is parsed repeatedly, at any depth of the stack."""


MAX_ENTRY: Final = 4 * 1024 * 1024
"""Bytes of an entry: each is read many times, and nobody has a turn meanwhile."""


class Entry(msgspec.Struct, frozen=True):
    """One entry of an upstream's list: its key in the upstream's own names, and all of it."""

    key: str
    data: Raw


class Listing(msgspec.Struct, frozen=True):
    """One list of one upstream: its entries, and those refused."""

    entries: tuple[Entry, ...] = ()
    refused: tuple[RefusedEntry, ...] = ()


EMPTY: Final = Listing()


class Snapshot(msgspec.Struct, frozen=True):
    """What one upstream is and lists. A list that is not known yet is missing."""

    identity: ServerIdentity | None = None
    lists: Mapping[Kind, Listing] = msgspec.field(default_factory=dict)
    freshness: Mapping[Kind, Freshness] = msgspec.field(default_factory=dict)
    """How long each list may be cached; doubtful lists are missing."""

    def with_list(self, kind: Kind, listing: Listing) -> Snapshot:
        """The same with another list of that kind."""
        return replace(self, lists={**self.lists, kind: listing})

    def with_freshness(self, kind: Kind, freshness: Freshness) -> Snapshot:
        """The same with that list known to be good for so long."""
        return replace(self, freshness={**self.freshness, kind: freshness})


def read_listing(upstream: str, kind: Kind, items: Iterable[Raw]) -> Listing:
    """As `reading`, at once."""
    return at_once(reading(upstream, kind, items))


def reading(upstream: str, kind: Kind, items: Iterable[Raw], earlier: Listing = EMPTY) -> Steps[Listing]:
    """A list as it came in, without the entries that would break the list for clients, or the gateway (R1).

    An entry that the `earlier` list had too is the same object again, also if only its spelling is another: servers on
    Java's hash maps write its members in another order after each start.
    """
    known = {entry.key: entry for entry in earlier.entries}

    def read(item: Raw) -> Entry | RefusedEntry:
        if len(item) > MAX_ENTRY:
            return RefusedEntry(upstream, kind, "", f"an entry is larger than {MAX_ENTRY} bytes")
        key = entry_key(kind, item) or ""
        before = known.get(key)
        if before is not None and before.data == item:
            return before
        flaw = _flaw(kind, key, item)
        if flaw is not None:
            return RefusedEntry(upstream, kind, key, flaw)
        if before is not None and _are_equal(before.data, item):
            return before
        # A copy: the item is a part of its whole page, which would stay for as long as one entry of it does.
        return Entry(key, item.copy())

    found = yield from deriving(items, read, size=len)
    entries: dict[str, Entry] = {}
    refused: list[RefusedEntry] = []
    for each in found.results:
        if isinstance(each, RefusedEntry):
            refused.append(each)
        elif each.key in entries:
            refused.append(RefusedEntry(upstream, kind, each.key, "it is listed twice"))
        else:
            entries[each.key] = each
    return Listing(tuple(entries.values()), tuple(refused))


def _are_equal(one: Raw, other: Raw) -> bool:
    """Whether entries without flaws differ at most in how they are written: space, escapes, the order of members."""
    try:
        return _sorted(one) == _sorted(other)
    except (ValueError, RecursionError):
        return False  # A number that is too large, half a surrogate pair.


def _sorted(data: Raw) -> bytes:
    return msgspec.json.encode(parse_value(data), order="deterministic")


def _flaw(kind: Kind, key: str, item: Raw) -> str | None:
    if not key:
        return f"an entry has no {kind.key}"
    if has_more_values(item, MAX_VALUES):
        return f"it has more than {MAX_VALUES} values"
    if nests_deeper(item, MAX_DEPTH):
        return f"it nests deeper than {MAX_DEPTH} levels"
    if repeats_member(item):
        return "a member comes twice in it, of which clients may read either"
    if kind is Kind.SKILLS:
        try:
            files_of(item)
        except InvalidSkill as invalid:
            return str(invalid)
    return None


def entry_key(kind: Kind, item: Raw) -> str | None:
    """The key of a list's entry; None if it lacks that member."""
    try:
        return parse_text(parse_object(item).get(kind.key, b""))
    except InvalidMessage:
        return None
