"""One upstream's list as one endpoint shows it: filtered, named, rewritten and encoded.

Does not ask which callers may use an entry: one exposure serves all callers of an endpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from mcproxy.catalog.arguments import INPUT_SCHEMA, ArgumentRules, UnsupportedSchema, overridden
from mcproxy.catalog.naming import NameTable, RefusedEntry, Renamed, Space, name_table
from mcproxy.catalog.rewriting import Rewriter
from mcproxy.catalog.skills import files_of
from mcproxy.catalog.uri_matching import readings
from mcproxy.catalog.uris import MAX_URI
from mcproxy.catalog.views.entry_shapes import ENTRIES, HANDSHAKE_TOOLS, EntryRule
from mcproxy.catalog.views.snapshots import Entry, Listing
from mcproxy.catalog.views.view import Shown
from mcproxy.protocol.headers import InvalidAnnotation, MirroredParameter, mirrored_parameters
from mcproxy.protocol.jsonrpc import EMPTY_OBJECT, Params, object_or_empty, parse_object, parse_text, raw
from mcproxy.protocol.methods import Kind
from mcproxy.protocol.tasks import support, without_support
from mcproxy.settings.upstreams.upstream import ToolOverride

OUTPUT_SCHEMA: Final = "outputSchema"

_NAMED: Final = frozenset({Kind.TOOLS, Kind.PROMPTS})

WITHHELD: Final = "it is a file of a skill that is not approved"
MAX_REFUSED: Final = 256
"""Characters that are shown of a URI that is refused for its length."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """One list of one upstream as one endpoint shows it."""

    shown: tuple[Shown, ...] = ()
    renamed: tuple[Renamed, ...] = ()
    refused: tuple[RefusedEntry, ...] = ()
    """Entries that are not shown to callers."""
    unreadable: tuple[Shown, ...] = ()
    """Refused entries that clients could not read: a call by name reaches them."""


def expose(space: Space, kind: Kind, listing: Listing, *, tasks: bool = False) -> Exposure:
    """One upstream's list as an endpoint shows it: filtered, named, rewritten and encoded.

    `tasks` says whether who is shown it may call tools as tasks; others are told nothing of that.
    """
    visible = [entry for entry in listing.entries if all(space.shows(kind, uri) for uri in _parts_of(kind, entry))]
    keys = [entry.key for entry in visible]
    names = name_table(space, kind, keys) if kind in _NAMED else _uri_table(space, kind, keys)
    rewriter = Rewriter(space.expose_uri)
    shown: list[Shown] = []
    refused = [*listing.refused, *names.refused]
    for entry in visible:
        if entry.key in names.exposed:
            try:
                shown.append(_shown(space, kind, rewriter, names.exposed[entry.key], entry, tasks=tasks))
            except UnsupportedSchema as why:
                sentence = f"its arguments cannot be as tools.overrides says: {why}"
                refused.append(RefusedEntry(space.upstream, kind, entry.key, sentence))
    exposure = Exposure(tuple(shown), names.renamed, tuple(refused))
    return _readable(exposure, kind, ENTRIES[kind]) if kind in ENTRIES else exposure


def _readable(exposure: Exposure, kind: Kind, rule: EntryRule) -> Exposure:
    """`exposure` without the entries that clients would refuse the whole list for: these are callable all the same."""
    shown: list[Shown] = []
    unreadable: list[Shown] = []
    refused: list[RefusedEntry] = []
    for each in exposure.shown:
        entry, flaw = rule.checked(each.entry)
        if flaw is None:
            shown.append(each if entry is each.entry else replace(each, entry=entry))
        else:
            unreadable.append(each)
            refused.append(RefusedEntry(each.upstream, kind, each.own, flaw))
    return replace(
        exposure,
        shown=tuple(shown),
        refused=(*exposure.refused, *refused),
        unreadable=(*exposure.unreadable, *unreadable),
    )


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


def for_handshake(exposure: Exposure) -> Exposure:
    """The same tools as 2025-11-25 has them (schema, Tool), and without output schemas that are not of objects.

    Handshake clients refuse a list that has others, and a result that lacks the content which a schema announces.
    """
    shown = tuple(map(_with_object_schema, exposure.shown))
    found = _readable(replace(exposure, shown=shown), Kind.TOOLS, HANDSHAKE_TOOLS)
    return exposure if found == exposure else found


def _with_object_schema(tool: Shown) -> Shown:
    if OUTPUT_SCHEMA.encode() not in bytes(tool.entry):
        return tool
    members = parse_object(tool.entry)
    schema = object_or_empty(members.get(OUTPUT_SCHEMA, EMPTY_OBJECT))
    if OUTPUT_SCHEMA not in members or parse_text(schema.get("type", b"")) == "object":
        return tool
    return replace(tool, entry=raw({key: value for key, value in members.items() if key != OUTPUT_SCHEMA}))


def _uri_table(space: Space, kind: Kind, uris: Iterable[str]) -> NameTable:
    """What each URI is exposed as, except those too long for callers to use."""
    exposed = {uri: space.expose_uri(uri) for uri in uris}
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
    data = entry.data if key == entry.key and after == before else raw(after)
    if kind is Kind.SKILLS:
        return Shown(key, space.upstream, entry.key, data, files=_parts_of(kind, entry))
    if kind is not Kind.TOOLS:
        return Shown(key, space.upstream, entry.key, data)
    return Shown(key, space.upstream, entry.key, data, support(before), _mirrored(after), arguments=rules)


def _mirrored(tool: Params) -> tuple[MirroredParameter, ...]:
    try:
        return mirrored_parameters(tool.get(INPUT_SCHEMA, EMPTY_OBJECT))
    except InvalidAnnotation:
        # Clients must not use such a tool, so there is nothing to compare with ("Schema Extension").
        return ()


def _texts(override: ToolOverride | None) -> Params:
    if override is None:
        return {}
    texts = {"title": override.title, "description": override.description}
    return {key: raw(text) for key, text in texts.items() if text is not None}
