"""Translate an upstream's names and URIs to those that callers see, and back: prefixes, filters and endpoints.

Everything here follows from the configuration alone: which upstreams are connected, and since when, changes no name
(requirement R29). URIs are told apart by their namespace, so templates and unlisted resources work (R28); names
are cut and cleaned on the way out, so their way back is a table (`views.exposure`), never splitting.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.call.identity import AGGREGATE
from mcproxy.catalog.uri_matching import matcher, readings
from mcproxy.concurrency.turns import Steps
from mcproxy.protocol.methods import URI_KINDS, Kind
from mcproxy.settings import NameFilter, UpstreamSettings
from mcproxy.settings.endpoints import Endpoint, key_of

SEPARATOR: Final = "__"
GATEWAY: Final = ""
"""Stands for an upstream's name if an entry is the gateway's own; no upstream has this name."""
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]")
_HASH_DIGITS: Final = 8
SLICE: Final = 1000
"""Names that are looked at before other tasks get a turn: about a millisecond."""
MAX_NAME: Final = 64
"""The most characters of the gateway's own names."""
_UI: Final = "ui://"
_TOOLS: Final = Kind.TOOLS
_PROMPTS: Final = Kind.PROMPTS

Permits = Callable[[Kind, str, Raw | None], bool]
"""Whether the caller may use an entry, by its own name; a tool's entry, if there is one, holds its annotations."""


def to_all(kind: Kind, own: str, entry: Raw | None) -> bool:
    """Permits everything (a `Permits`)."""
    return True


@dataclass(frozen=True, slots=True)
class Space:
    """One upstream's names at one endpoint. Without a prefix they pass unchanged."""

    spec: UpstreamSettings
    prefix: str
    slug: str
    """The namespace of its URIs: the prefix; for a bare upstream, one that escapes what others would claim."""
    others: frozenset[str]
    """The prefixes of the endpoint's other upstreams, in use or not: a bare upstream's names keep out of them."""
    max_name_length: int
    endpoint: Endpoint | None = None
    """The endpoint's selection of its entries; None for all."""
    permits: Permits = to_all
    """The test for entries that the caller may use."""
    passes_all: bool = False
    """Whether messages of extensions that the gateway does not know pass: it is alone at its endpoint, and callers may
    use all of it. Such a message may do anything, and no rule can speak of it."""
    upstream: str = field(init=False, compare=False)
    """Its name."""
    takes_credentials: bool = field(init=False, compare=False)
    """Whether it is called with callers' own credentials."""
    share_of_principal: int = field(init=False, compare=False)
    """Calls that one caller may have in flight there at once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "upstream", self.spec.name)
        object.__setattr__(self, "takes_credentials", bool(self.spec.credentials.forward))
        object.__setattr__(self, "share_of_principal", self.spec.share_of_principal)

    @property
    def transparent(self) -> bool:
        """Whether every URI passes unchanged."""
        return not self.slug

    def expose_name(self, name: str) -> str | None:
        """The name for callers; None if it could be taken for another upstream's."""
        if self.prefix:
            return _fitted(f"{self.prefix}{SEPARATOR}{name}", self.max_name_length)
        head, separator, _ = name.partition(SEPARATOR)
        return None if separator and head in self.others else name

    def may_own_name(self, exposed: str) -> bool:
        """Whether an exposed name that is in no table could be this upstream's, judged by its form."""
        if self.prefix:
            return exposed.startswith(f"{self.prefix}{SEPARATOR}")
        return exposed.partition(SEPARATOR)[0] not in self.others

    def expose_uri(self, uri: str) -> str:
        """The URI, or RFC 6570 template, for callers. `Layout.locate` reverses it byte for byte."""
        if not self.slug or (not self.prefix and not self._collides(uri)):
            return uri
        if uri.startswith(_UI):
            # Hosts insist on the scheme `ui` (requirement R27), so there the namespace becomes the authority.
            return f"{_UI}{self.slug}/{uri.removeprefix(_UI)}"
        return f"{self.slug}+{uri}"

    def shows(self, kind: Kind, own: str, entry: Raw | None = None) -> bool:
        """Whether callers see, and may use, what the upstream calls `own`."""
        return self.offers(kind, own) and self.permits(kind, own, entry)

    def offers(self, kind: Kind, own: str) -> bool:
        """Whether the configuration shows it to any caller here."""
        as_uri = kind in URI_KINDS
        if not admits(self._filter(kind), own, as_uri=as_uri):
            return False
        return self.endpoint is None or admits(NameFilter(include=self.endpoint.globs(kind)), own, as_uri=as_uri)

    def obstacle(self, kind: Kind, own: str) -> str | None:
        """The setting that hides an entry at this endpoint; None if none does."""
        if self.offers(kind, own):
            return None
        filter, as_uri, section = self._filter(kind), kind in URI_KINDS, f"{self.upstream}: {kind.capability}"
        for glob in filter.exclude:
            if not admits(NameFilter(exclude=(glob,)), own, as_uri=as_uri):
                return f"{section}.exclude has {glob!r}"
        if not admits(NameFilter(include=filter.include), own, as_uri=as_uri):
            return f"{section}.include has nothing for it"
        return f"the endpoint selects no such {kind.capability}"

    def wish(self, kind: Kind, own: str) -> str:
        """The name after the prefix: the configured one, else the upstream's own."""
        override = self.spec.tools.overrides.get(own) if kind is Kind.TOOLS else None
        return own if override is None or override.name is None else override.name

    def _filter(self, kind: Kind) -> NameFilter:
        if kind is _TOOLS:
            return self.spec.tools
        return self.spec.prompts if kind is _PROMPTS else self.spec.resources

    def _collides(self, uri: str) -> bool:
        """Whether a bare URI, or an expansion of a bare template, would be taken for one of a namespace."""
        literal, brace, _ = uri.lower().partition("{")
        claimed = (start for slug in (*self.others, self.slug) for start in (f"{slug}+", f"{_UI}{slug}/"))
        if brace:
            return any(literal.startswith(start) or start.startswith(literal) for start in claimed)
        # The slash is one that a client may add to an empty path (requirement R63).
        return any(f"{literal}/".startswith(start) for start in claimed)


_OWN_SPACE: Final = Space(UpstreamSettings(name=GATEWAY, prefix=""), "", "", frozenset(), MAX_NAME)
"""The names of the gateway's own entries."""


@dataclass(frozen=True)
class Layout:
    """The content of one endpoint: upstreams in the order of the configuration, each with its names there."""

    endpoint: str
    spaces: tuple[Space, ...]
    roles: tuple[str, ...] = ()
    """Roles of which a caller needs one to see the endpoint; if empty, every caller sees it."""
    search: Endpoint | None = None
    """The endpoint's settings, if its tools are found by search and not listed."""

    def restricted(self, permits: Mapping[str, Permits], wholly: Collection[str] = ()) -> Layout:
        """The layout for callers who may use only the upstreams named, and of them what `permits` says.

        They may use all that there is, or could be, of those in `wholly`.
        """
        left = [
            replace(
                space,
                permits=permits[space.upstream],
                passes_all=space.passes_all and space.upstream in wholly,
            )
            for space in self.spaces
            if space.upstream in permits
        ]
        return replace(self, spaces=tuple(left))

    def locate(self, uri: str) -> tuple[Space, str] | None:
        """The upstream that an exposed URI belongs to, and the upstream's own URI."""
        slug, own = _parted(uri)
        space = self._by_slug.get(slug) if slug is not None else None
        if space is not None:
            return space, own
        if self._bare is None or slug in self._bare.others:
            return None
        return self._bare, uri

    def space(self, upstream: str) -> Space:
        """The space of an upstream that it `shows`. Raises KeyError for another."""
        return self._by_upstream[upstream]

    def shows(self, upstream: str) -> bool:
        """Whether the endpoint shows anything of that upstream."""
        return upstream in self._by_upstream

    @cached_property
    def _by_upstream(self) -> dict[str, Space]:
        return {GATEWAY: _OWN_SPACE, **{space.upstream: space for space in self.spaces}}

    @cached_property
    def _by_slug(self) -> dict[str, Space]:
        return {space.slug: space for space in self.spaces if space.slug}

    @cached_property
    def _bare(self) -> Space | None:
        return next((space for space in self.spaces if not space.prefix), None)


class Renamed(msgspec.Struct, frozen=True):
    """A name that is shown otherwise than `{prefix}__{name}`."""

    upstream: str
    kind: Kind
    name: str
    exposed: str


class RefusedEntry(msgspec.Struct, frozen=True):
    """An entry that is not shown to callers, and a phrase with the reason."""

    upstream: str
    kind: Kind
    name: str
    why: str


class NameTable(msgspec.Struct, frozen=True):
    """The names of one upstream's entries of one kind: those that callers see, and those that are refused."""

    exposed: dict[str, str]
    """By the upstream's own name."""
    renamed: tuple[Renamed, ...] = ()
    refused: tuple[RefusedEntry, ...] = ()


def layouts(
    upstreams: Sequence[UpstreamSettings],
    max_name_length: int,
    endpoints: Mapping[str, Endpoint] | None = None,
    *,
    passing: bool = True,
) -> dict[str, Layout]:
    """Every endpoint's layout: all enabled upstreams under AGGREGATE, each alone and bare under its name, and
    selections of them as `endpoints` says.

    A disabled upstream's prefix stays taken: enabling it renames nothing. `passing` says whether messages of unknown
    extensions may pass anywhere.
    """
    enabled = [spec for spec in upstreams if spec.enabled]
    prefixes = frozenset(spec.prefix for spec in upstreams if spec.prefix)
    spaces = tuple(
        Space(spec, spec.prefix, spec.prefix or _free_slug(spec.name, prefixes), prefixes, max_name_length)
        for spec in enabled
    )
    alone = {spec.name: Layout(spec.name, (Space(spec, "", "", frozenset(), max_name_length),)) for spec in enabled}
    selected = {key_of(name): _selected(key_of(name), endpoint, spaces) for name, endpoint in (endpoints or {}).items()}
    found = {**alone, **selected, AGGREGATE: Layout(AGGREGATE, spaces)}
    return {key: _passing(layout) for key, layout in found.items()} if passing else found


def _passing(layout: Layout) -> Layout:
    """The layout; an upstream that is alone there, and shown whole and unchanged, passes everything."""
    if len(layout.spaces) != 1 or layout.search is not None or not _shows_everything(layout.spaces[0]):
        return layout
    return replace(layout, spaces=(replace(layout.spaces[0], passes_all=True),))


def _shows_everything(space: Space) -> bool:
    """Whether no setting hides or changes anything of an upstream."""
    filters = (space.spec.tools, space.spec.resources, space.spec.prompts)
    selections = [] if space.endpoint is None else [space.endpoint.globs(kind) for kind in Kind]
    return (
        not space.spec.tools.overrides
        and all(filter.include == ("*",) and not filter.exclude for filter in filters)
        and all("*" in globs for globs in selections)
    )


def _selected(key: str, endpoint: Endpoint, spaces: Iterable[Space]) -> Layout:
    chosen = [space for space in spaces if any(fnmatchcase(space.upstream, glob) for glob in endpoint.upstreams)]
    search = endpoint if endpoint.discovery == "search" else None
    return Layout(key, tuple(replace(space, endpoint=endpoint) for space in chosen), endpoint.roles, search)


def naming(space: Space, kind: Kind, names: Iterable[str]) -> Steps[NameTable]:
    """What each of an upstream's names is exposed as.

    Of names that come out the same the unchanged one wins, else the first in sorted order: one name, one tool (R29).
    """
    wishes: dict[str, str] = {}
    claims: dict[str, list[str]] = {}
    refused: list[RefusedEntry] = []
    for position, name in enumerate(names, 1):
        wishes[name] = wish = space.wish(kind, name)
        exposed = space.expose_name(wish)
        if exposed is None:
            refused.append(RefusedEntry(space.upstream, kind, name, "it reads as a name of another upstream's prefix"))
        else:
            claims.setdefault(exposed, []).append(name)
        if position % SLICE == 0:
            yield
    winners: dict[str, str] = {}
    renamed: list[Renamed] = []
    for position, (exposed, rivals) in enumerate(claims.items(), 1):
        winners[exposed] = winner = _winner(space, exposed, rivals)
        if len(rivals) > 1:
            why = f"it would be called {exposed!r}, as {winner!r} is"
            refused += [RefusedEntry(space.upstream, kind, name, why) for name in rivals if name != winner]
        if exposed != _unchanged(space, wishes[winner]):
            renamed.append(Renamed(space.upstream, kind, winner, exposed))
        if position % SLICE == 0:
            yield
    return NameTable({name: exposed for exposed, name in winners.items()}, tuple(renamed), tuple(refused))


def admits(filter: NameFilter, own: str, *, as_uri: bool) -> bool:
    """Whether a filter's globs let `own` through; exclude wins. Of a URI they must do so however it is read."""
    if filter.include == ("*",) and not filter.exclude:
        return True
    if not as_uri:
        return _matches(own, filter.include) and not _matches(own, filter.exclude)
    found = readings(own)
    included, excluded = matcher(filter.include), matcher(filter.exclude)
    return bool(found) and all(included(reading) and not excluded(reading) for reading in found)


def _matches(text: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs)


def _winner(space: Space, exposed: str, rivals: Iterable[str]) -> str:
    return min(rivals, key=lambda name: (exposed != _unchanged(space, name), name))


def _unchanged(space: Space, name: str) -> str:
    return f"{space.prefix}{SEPARATOR}{name}" if space.prefix else name


def _fitted(name: str, limit: int) -> str:
    legal = _ILLEGAL.sub("_", name)
    if len(legal) <= limit:
        return legal
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{legal[: limit - _HASH_DIGITS - 1]}_{digest}"


def _parted(uri: str) -> tuple[str | None, str]:
    """The namespace that an exposed URI begins with, if any, and the rest."""
    if uri[: len(_UI)].lower() == _UI:
        slug, _, rest = uri[len(_UI) :].partition("/")
        return slug.lower(), _UI + rest
    slug, plus, rest = uri.partition("+")
    return (slug.lower(), rest) if plus else (None, uri)


def _free_slug(name: str, taken: frozenset[str]) -> str:
    """A namespace for a bare upstream, made of its name: not a prefix, and no registered scheme."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    slug = f"{slug}-bare" if slug[:1].isalpha() else f"x{slug}-bare"
    while slug in taken:
        slug += "-bare"
    return slug
