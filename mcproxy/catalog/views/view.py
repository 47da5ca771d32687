"""The entries that an endpoint shows a caller, and the look-ups in them.

A `View` is compared with the one before to learn whether a client must be told. Made by `merging`; changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from msgspec import Raw

from mcproxy.catalog.arguments import ArgumentRules
from mcproxy.catalog.naming import Layout, RefusedEntry, Renamed, Space
from mcproxy.catalog.uri_matching import readings, uri_flaw
from mcproxy.catalog.uris import MAX_URI, canonical
from mcproxy.protocol.headers import MirroredParameter
from mcproxy.protocol.jsonrpc import Params, raw
from mcproxy.protocol.methods import Kind
from mcproxy.protocol.tasks import Support

_RESOURCES: Final = Kind.RESOURCES
_TEMPLATES: Final = Kind.TEMPLATES

_MOST_FOUND: Final = 64
"""URIs whose targets a view remembers; beyond that it starts anew."""

_LONGEST_FOUND: Final = 512
"""Characters of a URI whose target is remembered."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One entry as callers see it, and its origin."""

    key: str
    upstream: str
    own: str
    """The key in the upstream's own names."""
    entry: Raw
    task_support: Support = Support.FORBIDDEN
    """As the upstream declares; for tools only."""
    mirrored: tuple[MirroredParameter, ...] = ()
    """Parameters that stateless clients also send in headers; for tools only."""
    is_login: bool = False
    """Whether it is the gateway's own tool for logging in at the upstream."""
    arguments: ArgumentRules | None = field(default=None, compare=False)
    """The rules for callers' arguments, if the settings override any."""
    files: tuple[str, ...] = ()
    """The upstream's own URIs of a skill's files: callers who may not read all of them are not shown the skill."""


@dataclass(frozen=True)
class View:
    """The entries that an endpoint shows a caller. Views with equal `lists` are the same to a client."""

    layout: Layout
    lists: Mapping[Kind, tuple[Shown, ...]]
    capabilities: Params
    instructions: str | None = None
    whole_instructions: str | None = None
    """If `instructions` are cut: the text of the resource that holds them in full."""
    renamed: tuple[Renamed, ...] = ()
    refused: tuple[RefusedEntry, ...] = ()
    unlisted: tuple[Shown, ...] = ()
    """Tools that are found by search, and called like listed ones (`search_view`)."""
    unreadable: Mapping[Kind, tuple[Shown, ...]] = field(default_factory=dict)
    """Entries that are called like listed ones, and would break the list for clients (`entry_shapes`)."""
    withheld: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Files that cannot be read as their skills are not approved: readings of URIs, by upstream."""
    _pages: dict[tuple[Kind, int, int], Raw] = field(default_factory=dict, init=False, repr=False, compare=False)
    _found: dict[str, tuple[Space, str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def page(self, kind: Kind, start: int, size: int) -> Raw:
        """So many entries of a list, from `start` on, as a result holds them. A look-up, once it was asked for.

        What is kept holds each entry once: pages that begin elsewhere than where they do from the start are not.
        """
        place = (kind, start, size)
        page = self._pages.get(place)
        if page is None:
            page = raw([shown.entry for shown in self.lists[kind][start : start + size]])
            if start % size == 0:
                self._pages[place] = page
        return page

    def find(self, kind: Kind, key: str) -> Shown | None:
        """The entry with the key that callers know."""
        return self._by_key[kind].get(key)

    def resource(self, uri: str) -> tuple[Space, str] | None:
        """The upstream that a URI belongs to, and its own URI there; None where the caller may use none.

        Not only of listed resources: templates have more. A listed one is found under every spelling that an SDK
        may have made of its URI, where only that one can be meant (R63).
        """
        if len(uri) > MAX_URI:
            return None
        found = self._found.get(uri)
        if found is None:
            found = self._look_for(uri)
            if found is not None and len(uri) <= _LONGEST_FOUND:
                if len(self._found) >= _MOST_FOUND:
                    self._found.clear()
                self._found[uri] = found
        return found

    def withholds(self, upstream: str, own: str) -> bool:
        """Whether the resource that an upstream calls `own` is a file of skills that are not approved."""
        withheld = self.withheld.get(upstream)
        return withheld is not None and not withheld.isdisjoint(readings(own))

    def _look_for(self, uri: str) -> tuple[Space, str] | None:
        found = self._owner(uri)
        return None if found is None or self.withholds(found[0].upstream, found[1]) else found

    def _owner(self, uri: str) -> tuple[Space, str] | None:
        listed = self.find(_RESOURCES, uri) or self.find(_TEMPLATES, uri) or self._respelled(uri)
        if listed is not None:
            return self.layout.space(listed.upstream), listed.own
        located = self.layout.locate(uri)
        if located is None:
            return None
        space, own = located
        is_refused = uri_flaw(own) is not None or (space.upstream, own) in self._refused_templates
        return None if is_refused or not space.shows(_RESOURCES, own) else located

    def changed(self, before: View) -> list[Kind]:
        """The lists in which this view differs from an earlier one."""
        return [kind for kind in Kind if self.lists[kind] != before.lists[kind]]

    def _respelled(self, uri: str) -> Shown | None:
        return self._by_spelling.get(canonical(uri))

    @cached_property
    def logins(self) -> Mapping[str, str]:
        """Upstreams at which the caller has to log in, by the name of the tool for that."""
        return {shown.key: shown.upstream for shown in self.lists[Kind.TOOLS] if shown.is_login}

    @cached_property
    def _by_key(self) -> dict[Kind, dict[str, Shown]]:
        found = {
            kind: {shown.key: shown for shown in (*self.unreadable.get(kind, ()), *entries) if not shown.is_login}
            for kind, entries in self.lists.items()
        }
        found[Kind.TOOLS].update((shown.key, shown) for shown in self.unlisted)
        return found

    @cached_property
    def _refused_templates(self) -> set[tuple[str, str]]:
        return {(entry.upstream, entry.name) for entry in self.refused if entry.kind is Kind.TEMPLATES}

    @cached_property
    def _by_spelling(self) -> dict[str, Shown | None]:
        """Resources by respelled URI; None marks a spelling that several share."""
        spellings: dict[str, Shown | None] = {}
        for shown in self.lists[Kind.RESOURCES]:
            spelling = canonical(shown.key)
            spellings[spelling] = None if spelling in spellings else shown
        return spellings
