"""One upstream's list as one endpoint shows it: filtered, named, rewritten and encoded.

One exposure serves all callers of an endpoint; a part of it, made by `permitting`, those who may not use everything.
Knows no caller and no role: the `Space` says what may be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Final

import msgspec

from mcproxy.catalog.arguments import INPUT_SCHEMA, ArgumentRules, UnsupportedSchema, overridden
from mcproxy.catalog.naming import NameTable, RefusedEntry, Renamed, Space, naming
from mcproxy.catalog.rewriting import Rewriter
from mcproxy.catalog.skills import files_of
from mcproxy.catalog.uri_matching import readings
from mcproxy.catalog.uris import MAX_URI
from mcproxy.catalog.views.derived import Derived, deriving
from mcproxy.catalog.views.entry_shapes import ENTRIES, HANDSHAKE_TOOLS, EntryRule
from mcproxy.catalog.views.snapshots import Entry, Listing
from mcproxy.catalog.views.view import Shown
from mcproxy.concurrency.turns import Steps
from mcproxy.protocol.headers import InvalidAnnotation, MirroredParameter, mirrored_parameters, unannotated
from mcproxy.protocol.jsonrpc import EMPTY_OBJECT, Params, object_or_empty, parse_object, parse_text, raw
from mcproxy.protocol.methods import Kind
from mcproxy.protocol.tasks import support, without_support
from mcproxy.settings.upstreams.upstream import ToolOverride

OUTPUT_SCHEMA: Final = "outputSchema"

_NAMED: Final = frozenset({Kind.TOOLS, Kind.PROMPTS})

WITHHELD: Final = "it is a file of a skill that is not approved"
MAX_REFUSED: Final = 256
"""Characters that are shown of a URI that is refused for its length."""


class ExposedEntry(msgspec.Struct, frozen=True):
    """What became of an entry: it is shown, refused, or hidden. One that is both refused and `shown` can be called."""

    shown: Shown | None = None
    refused: RefusedEntry | None = None


_HIDDEN: Final = ExposedEntry()


@dataclass(frozen=True, slots=True)
class Exposure:
    """One list of one upstream as one endpoint shows it."""

    shown: tuple[Shown, ...] = ()
    renamed: tuple[Renamed, ...] = ()
    refused: tuple[RefusedEntry, ...] = ()
    """Entries that are not shown to callers."""
    unreadable: tuple[Shown, ...] = ()
    """Refused entries that clients could not read: a call by name reaches them."""
    entries: Derived[ExposedEntry] = field(default=Derived(), repr=False, compare=False)
    """What became of each entry that has a name here."""
    names: NameTable = field(default=NameTable({}), repr=False, compare=False)


NOTHING: Final = Exposure()


def exposing(
    space: Space, kind: Kind, listing: Listing, earlier: Exposure = NOTHING, *, tasks: bool = False
) -> Steps[Exposure]:
    """One upstream's list as an endpoint shows it: filtered, named, rewritten and encoded.

    `tasks` says whether who is shown it may call tools as tasks; others are told nothing of that. What became of an
    entry is taken from `earlier`, the exposure of the list before, where that had the same entry.
    """
    shows = yield from deriving(
        listing.entries, lambda entry: all(space.shows(kind, uri) for uri in _parts_of(kind, entry))
    )
    visible = list(compress(listing.entries, shows.results))
    keys = [entry.key for entry in visible]
    found = yield from (naming(space, kind, keys) if kind in _NAMED else _uri_naming(space, kind, keys))
    names = NameTable(found.exposed, found.renamed, (*listing.refused, *found.refused))
    rewriter = Rewriter(space.expose_uri)

    def expose_entry(entry: Entry) -> ExposedEntry:
        try:
            shown = _shown(space, kind, rewriter, names.exposed[entry.key], entry, tasks=tasks)
        except UnsupportedSchema as why:
            sentence = f"its arguments cannot be as tools.overrides says: {why}"
            return ExposedEntry(refused=RefusedEntry(space.upstream, kind, entry.key, sentence))
        return _readable(shown, kind, ENTRIES[kind]) if kind in ENTRIES else ExposedEntry(shown)

    # A name that went to another entry may have been another's before: then each entry is exposed anew.
    same_names = all(earlier.names.exposed.get(own, name) == name for own, name in names.exposed.items())
    entries = yield from deriving(
        [entry for entry in visible if entry.key in names.exposed],
        expose_entry,
        earlier.entries if same_names else None,
        lambda entry: len(entry.data),
    )
    return _exposure(entries, names)


def _exposure(entries: Derived[ExposedEntry], names: NameTable) -> Exposure:
    refusals = tuple(each.refused for each in entries.results if each.refused is not None)
    return Exposure(
        shown=tuple(each.shown for each in entries.results if each.refused is None and each.shown is not None),
        renamed=names.renamed,
        refused=(*names.refused, *refusals),
        unreadable=tuple(each.shown for each in entries.results if each.refused is not None and each.shown is not None),
        entries=entries,
        names=names,
    )


def _readable(shown: Shown, kind: Kind, rule: EntryRule) -> ExposedEntry:
    """An entry, refused if clients would refuse the whole list for it: it is callable all the same."""
    entry, flaw = rule.checked(shown.entry)
    if flaw is not None:
        return ExposedEntry(shown, RefusedEntry(shown.upstream, kind, shown.own, flaw))
    return ExposedEntry(shown if entry is shown.entry else replace(shown, entry=entry))


def permitting(space: Space, kind: Kind, exposure: Exposure, earlier: Exposure = NOTHING) -> Steps[Exposure]:
    """The part of an exposure that callers may use, as `space.permits` says; `earlier` as in `exposing`."""

    def permit(entry: ExposedEntry) -> ExposedEntry:
        if entry.shown is None or _permits(space, kind, entry.shown):
            return entry
        return _HIDDEN if entry.refused is None else ExposedEntry(refused=entry.refused)

    entries = yield from deriving(exposure.entries.results, permit, earlier.entries, _size)
    return _exposure(entries, exposure.names)


def _permits(space: Space, kind: Kind, entry: Shown) -> bool:
    return all(space.permits(kind, uri, None) for uri in entry.files) and space.permits(kind, entry.own, entry.entry)


def _size(entry: ExposedEntry) -> int:
    return 0 if entry.shown is None else len(entry.shown.entry)


def without_files(exposure: Exposure, withheld: frozenset[str]) -> Exposure:
    """Resources without the files of unapproved skills; `withheld` are readings of their URIs."""
    hidden = {each.own for each in exposure.shown if not withheld.isdisjoint(readings(each.own))}
    refused = [
        RefusedEntry(each.upstream, Kind.RESOURCES, each.own, WITHHELD) for each in exposure.shown if each.own in hidden
    ]
    shown = tuple(each for each in exposure.shown if each.own not in hidden)
    return replace(exposure, shown=shown, refused=(*exposure.refused, *refused))


def with_login(space: Space, exposure: Exposure) -> Exposure:
    """The tools of an upstream, and the one by which a caller logs in there."""
    names = {shown.key for shown in exposure.shown}
    name = next(name for name in login_names(space) if name not in names)
    entry = {
        "name": name,
        "title": f"Log in to {space.upstream}",
        "description": f"Before the server {space.upstream!r} can be used, the user has to log in to it. "
        "Call this tool for the link to open in a browser, show it to the user, and continue after the login.",
        "inputSchema": {"type": "object", "properties": {}},
        "annotations": {"readOnlyHint": True, "idempotentHint": True},
    }
    return replace(exposure, shown=(*exposure.shown, Shown(name, space.upstream, "", raw(entry), is_login=True)))


def login_names(space: Space) -> tuple[str, ...]:
    """Names for the login tool: the next one, if the upstream's own tool has a name."""
    exposed = map(space.expose_name, ("login", *(f"gateway_login{'_' * count}" for count in range(3))))
    return tuple(name for name in exposed if name is not None)


def exposing_to_handshake(exposure: Exposure, earlier: Exposure = NOTHING) -> Steps[Exposure]:
    """The same tools as 2025-11-25 has them (schema, Tool), and without output schemas that are not of objects.

    Handshake clients refuse a list that has others, and a result that lacks the content which a schema announces.
    `earlier` as in `exposing`.
    """

    def expose_entry(entry: ExposedEntry) -> ExposedEntry:
        if entry.shown is None or entry.refused is not None:
            return entry
        shown = _with_object_schema(entry.shown)
        found = _readable(shown, Kind.TOOLS, HANDSHAKE_TOOLS)
        return entry if found.shown is entry.shown and found.refused is None else found

    entries = yield from deriving(exposure.entries.results, expose_entry, earlier.entries, _size)
    return _exposure(entries, exposure.names)


def _with_object_schema(tool: Shown) -> Shown:
    if OUTPUT_SCHEMA.encode() not in bytes(tool.entry):
        return tool
    members = parse_object(tool.entry)
    schema = object_or_empty(members.get(OUTPUT_SCHEMA, EMPTY_OBJECT))
    if OUTPUT_SCHEMA not in members or parse_text(schema.get("type", b"")) == "object":
        return tool
    return replace(tool, entry=raw({key: value for key, value in members.items() if key != OUTPUT_SCHEMA}))


def _uri_naming(space: Space, kind: Kind, uris: Sequence[str]) -> Steps[NameTable]:
    """What each URI is exposed as, except those too long for callers to use."""
    found = yield from deriving(uris, space.expose_uri)
    exposed = dict(zip(uris, found.results, strict=True))
    too_long = [uri for uri, shown in exposed.items() if len(shown) > MAX_URI]
    why = f"its URI has more than {MAX_URI} characters"
    refused = tuple(RefusedEntry(space.upstream, kind, exposed.pop(uri)[:MAX_REFUSED], why) for uri in too_long)
    return NameTable(exposed, refused=refused)


def _parts_of(kind: Kind, entry: Entry) -> tuple[str, ...]:
    """Everything that must be shown so that an entry may be: the files of a skill, else the entry itself."""
    return files_of(entry.data) if kind is Kind.SKILLS else (entry.key,)


def _shown(space: Space, kind: Kind, rewriter: Rewriter, key: str, entry: Entry, *, tasks: bool) -> Shown:
    before = parse_object(entry.data)
    override = space.spec.tools.overrides.get(entry.key) if kind is Kind.TOOLS else None
    after = {**rewriter.entry(kind, before, key), **_texts(override)}
    rules: ArgumentRules | None = None
    if override is not None and override.arguments:
        after[INPUT_SCHEMA], rules = overridden(before, override.arguments)
    if kind is Kind.TOOLS and not tasks:
        after = without_support(after)
    mirrored: tuple[MirroredParameter, ...] = ()
    if kind is Kind.TOOLS:
        try:
            mirrored = mirrored_parameters(after.get(INPUT_SCHEMA, EMPTY_OBJECT))
        except InvalidAnnotation:
            # streamable-http, Schema Extension: clients over HTTP must leave out such a tool. Its server gets no such
            # headers, else its link had left the tool out (`upstream.stateless`): without annotations it is the same.
            after[INPUT_SCHEMA] = unannotated(after[INPUT_SCHEMA])
    data = entry.data if key == entry.key and after == before else raw(after)
    if kind is Kind.SKILLS:
        return Shown(key, space.upstream, entry.key, data, files=_parts_of(kind, entry))
    if kind is not Kind.TOOLS:
        return Shown(key, space.upstream, entry.key, data)
    return Shown(key, space.upstream, entry.key, data, support(before), mirrored, arguments=rules)


def _texts(override: ToolOverride | None) -> Params:
    if override is None:
        return {}
    texts = {"title": override.title, "description": override.description}
    return {key: raw(text) for key, text in texts.items() if text is not None}
