"""Merge what upstreams list into the view of an endpoint: entries, capabilities and instructions.

A `Snapshot` is one upstream's lists, replaced whole; a `View` is computed from snapshots, in the order of the
configuration, and compared to learn whether a client must be told. Fetches nothing and notifies no client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Final

from msgspec import Raw

from mcproxy.call.identity import Caller
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.catalog.arguments import INPUT_SCHEMA, ArgumentRules, UnsupportedSchema, overridden
from mcproxy.catalog.freshness import Freshness
from mcproxy.catalog.instructions import INSTRUCTIONS_URI, JoinedInstructions, joined
from mcproxy.catalog.naming import GATEWAY, Layout, NameTable, RefusedEntry, Renamed, Space, name_table, to_all
from mcproxy.catalog.rewriting import Rewriter
from mcproxy.catalog.skills import InvalidSkill, files_of, joined_settings
from mcproxy.catalog.uri_matching import flaw
from mcproxy.catalog.uris import MAX_URI, canonical
from mcproxy.protocol.capabilities import KNOWN_EXTENSIONS
from mcproxy.protocol.eras import STATELESS_VERSIONS, V2024_11_05, Era
from mcproxy.protocol.headers import InvalidAnnotation, MirroredParameter, mirrored_parameters
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    InvalidMessage,
    Params,
    object_or_empty,
    parse_object,
    parse_text,
    raw,
)
from mcproxy.protocol.methods import SKILLS, Kind
from mcproxy.protocol.nesting import nests_deeper
from mcproxy.protocol.tasks import (
    EXTENSIONS,
    Support,
    extension_settings,
    extensions,
    shared,
    support,
    with_extensions,
    without_support,
)
from mcproxy.settings.upstreams.upstream import ToolOverride

OUTPUT_SCHEMA: Final = "outputSchema"
_NAMED: Final = frozenset({Kind.TOOLS, Kind.PROMPTS})

SERVERS_ALONE: Final = frozenset({SKILLS})
"""Extensions that servers alone declare: a client that does not know them sends nothing of them."""

_DELIVERED: Final[dict[str, dict[str, object]]] = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True},
    "prompts": {"listChanged": True},
}
"""Capabilities of the gateway itself, on top of the upstreams': it notifies of changed lists (R19)."""

_EVERYTHING: Final[dict[str, dict[str, object]]] = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {"listChanged": True},
    "logging": {},
    "completions": {},
}
"""An upstream that was never reached counts as offering all this: it may come, and clients ask once (R1)."""

_MOST_FOUND: Final = 64
"""URIs of which a view remembers where they lead; with one more it begins anew."""
_LONGEST_FOUND: Final = 512
"""Characters of such a URI."""

MAX_REFUSED: Final = 256
"""Characters that are told of a URI that is refused for its length."""

MAX_DEPTH: Final = 200
"""Levels of nesting of an entry: it is read again and again, wherever the stack is then."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of an upstream's list: its key in the upstream's own names, and all of it."""

    key: str
    data: Raw


@dataclass(frozen=True, slots=True)
class Listing:
    """One list of one upstream: its entries, and those refused."""

    entries: tuple[Entry, ...] = ()
    refused: tuple[RefusedEntry, ...] = ()


EMPTY: Final = Listing()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one upstream is and lists. A list that is not known yet is missing."""

    identity: ServerIdentity | None = None
    lists: Mapping[Kind, Listing] = field(default_factory=dict)
    freshness: Mapping[Kind, Freshness] = field(default_factory=dict)
    """How long each list is good for; one that is in doubt is missing."""

    def with_list(self, kind: Kind, listing: Listing) -> Snapshot:
        return replace(self, lists={**self.lists, kind: listing})

    def with_freshness(self, kind: Kind, freshness: Freshness) -> Snapshot:
        return replace(self, freshness={**self.freshness, kind: freshness})


@dataclass(frozen=True, slots=True)
class Shown:
    """One entry as callers see it, and what it is at its upstream."""

    key: str
    upstream: str
    own: str
    """The key in the upstream's own names."""
    entry: Raw
    task_support: Support = Support.FORBIDDEN
    """As the upstream says; a tool's alone."""
    mirrored: tuple[MirroredParameter, ...] = ()
    """What stateless clients send in headers too; a tool's alone."""
    is_login: bool = False
    """Whether it is the gateway's own tool, by which a caller logs in at the upstream."""
    arguments: ArgumentRules | None = field(default=None, compare=False)
    """What becomes of callers' arguments, where the settings override any."""
    files: tuple[str, ...] = ()
    """The upstream's own URIs of a skill's files: who may not read all of them is not shown the skill."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """One list of one upstream as one endpoint shows it."""

    shown: tuple[Shown, ...] = ()
    renamed: tuple[Renamed, ...] = ()
    refused: tuple[RefusedEntry, ...] = ()


@dataclass(frozen=True)
class View:
    """The entries that an endpoint shows a caller. Views with equal `lists` are the same to a client."""

    layout: Layout
    lists: Mapping[Kind, tuple[Shown, ...]]
    capabilities: Params
    instructions: str | None = None
    whole_instructions: str | None = None
    """Where `instructions` are cut: the text of the resource that has them in full."""
    renamed: tuple[Renamed, ...] = ()
    refused: tuple[RefusedEntry, ...] = ()
    unlisted: tuple[Shown, ...] = ()
    """Tools that are found by search, and called like those that are listed (`search_view`)."""
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
        """The entry that callers know as `key`."""
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

    def _look_for(self, uri: str) -> tuple[Space, str] | None:
        listed = self.find(Kind.RESOURCES, uri) or self.find(Kind.TEMPLATES, uri) or self._respelled(uri)
        if listed is not None:
            return self.layout.space(listed.upstream), listed.own
        located = self.layout.locate(uri)
        if located is None or flaw(located[1]) is not None or not located[0].shows(Kind.RESOURCES, located[1]):
            return None
        return None if (located[0].upstream, located[1]) in self._refused_templates else located

    def changed(self, before: View) -> list[Kind]:
        """The lists in which this view differs from an earlier one."""
        return [kind for kind in Kind if self.lists[kind] != before.lists[kind]]

    def _respelled(self, uri: str) -> Shown | None:
        return self._by_spelling.get(canonical(uri))

    @cached_property
    def logins(self) -> Mapping[str, str]:
        """The upstreams at which the caller has to log in, by the name of the tool for it."""
        return {shown.key: shown.upstream for shown in self.lists[Kind.TOOLS] if shown.is_login}

    @cached_property
    def _by_key(self) -> dict[Kind, dict[str, Shown]]:
        found = {
            kind: {shown.key: shown for shown in entries if not shown.is_login} for kind, entries in self.lists.items()
        }
        found[Kind.TOOLS].update((shown.key, shown) for shown in self.unlisted)
        return found

    @cached_property
    def _refused_templates(self) -> set[tuple[str, str]]:
        return {(entry.upstream, entry.name) for entry in self.refused if entry.kind is Kind.TEMPLATES}

    @cached_property
    def _by_spelling(self) -> dict[str, Shown | None]:
        """None marks a spelling that several resources share."""
        spellings: dict[str, Shown | None] = {}
        for shown in self.lists[Kind.RESOURCES]:
            spelling = canonical(shown.key)
            spellings[spelling] = None if spelling in spellings else shown
        return spellings


def read_listing(upstream: str, kind: Kind, items: Iterable[Raw]) -> Listing:
    """A list as it came in, without the entries that would break the list for clients, or the gateway (R1)."""
    entries: dict[str, Entry] = {}
    refused: list[RefusedEntry] = []
    for item in items:
        key = _key(kind, item) or ""
        flaw = _flaw(kind, key, item)
        if flaw is not None or key in entries:
            refused.append(RefusedEntry(upstream, kind, key, flaw or "it is listed twice"))
        else:
            entries[key] = Entry(key, item)
    return Listing(tuple(entries.values()), tuple(refused))


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
    return Exposure(tuple(shown), names.renamed, tuple(refused))


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
    """The names that the login tool may have: the next where the upstream's own tool has one."""
    exposed = map(space.expose_name, ("login", *(f"gateway_login{'_' * count}" for count in range(3))))
    return tuple(name for name in exposed if name is not None)


def for_handshake(exposure: Exposure) -> Exposure:
    """The same tools without output schemas that are not of objects (2025-11-25, schema, Tool).

    Handshake clients refuse a list that has others, and a result that lacks the content which a schema announces.
    """
    shown = tuple(map(_with_object_schema, exposure.shown))
    return exposure if shown == exposure.shown else replace(exposure, shown=shown)


def _with_object_schema(tool: Shown) -> Shown:
    if OUTPUT_SCHEMA.encode() not in bytes(tool.entry):
        return tool
    members = parse_object(tool.entry)
    schema = object_or_empty(members.get(OUTPUT_SCHEMA, EMPTY_OBJECT))
    if OUTPUT_SCHEMA not in members or parse_text(schema.get("type", b"")) == "object":
        return tool
    return replace(tool, entry=raw({key: value for key, value in members.items() if key != OUTPUT_SCHEMA}))


def _uri_table(space: Space, kind: Kind, uris: Iterable[str]) -> NameTable:
    """What each URI is exposed as, but for those that are too long for callers to use."""
    exposed = {uri: space.expose_uri(uri) for uri in uris}
    too_long = [uri for uri, shown in exposed.items() if len(shown) > MAX_URI]
    why = f"its URI has more than {MAX_URI} characters"
    refused = tuple(RefusedEntry(space.upstream, kind, exposed.pop(uri)[:MAX_REFUSED], why) for uri in too_long)
    return NameTable(exposed, refused=refused)


def merge(
    layout: Layout,
    identities: Mapping[str, ServerIdentity | None],
    exposures: Mapping[str, Mapping[Kind, Exposure]],
    max_instructions: int = 2000,
) -> View:
    """The view of an endpoint from what each upstream in it is and lists, by the upstream's name.

    `max_instructions` are characters of instructions, where there are those of several upstreams.
    """
    known = [(space.upstream, identities.get(space.upstream)) for space in layout.spaces]
    instructions = _instructions(layout, known, max_instructions)
    parts = [exposures.get(space.upstream, {}) for space in layout.spaces]
    lists = [exposure for part in parts for exposure in part.values()]
    offered = capabilities([identity for _, identity in known], kept_results=_keeps_results(layout))
    return View(
        layout=layout,
        lists={kind: tuple(_distinct(_listed(layout, parts, kind, instructions))) for kind in Kind},
        capabilities=_working(layout, offered, instructions),
        instructions=instructions.shown,
        whole_instructions=instructions.whole,
        renamed=tuple(chain.from_iterable(exposure.renamed for exposure in lists)),
        refused=tuple(chain.from_iterable(exposure.refused for exposure in lists)),
    )


def relayed(identity: ServerIdentity, version: str, *, owned: bool) -> ServerIdentity:
    """An upstream with what of its capabilities reaches a client of `version`, over a link of its own or not.

    Tasks pass between peers that have the same kind of them. Other extensions pass where the upstream hears what this
    client declares: with each request, or in a handshake for it alone (2026-07-28, versioning, Extension Negotiation).
    Those that no client declares always pass.
    """
    capabilities = shared(identity.capabilities, version, identity.version)
    if identity.era is Era.HANDSHAKE and not owned and extensions(capabilities):
        capabilities = with_extensions(capabilities, SERVERS_ALONE)
    return replace(identity, capabilities=capabilities)


def agreed(offered: Params, caller: Caller) -> Params:
    """Of extensions, those that both sides declare, or that servers alone do.

    A stateless client may declare others with its next request.
    """
    if caller.version in STATELESS_VERSIONS:
        return offered
    return with_extensions(offered, extensions(caller.capabilities).keys() | SERVERS_ALONE)


def _keeps_results(layout: Layout) -> bool:
    """Whether a result may be a resource of the gateway's own, which clients read where the capability is declared."""
    return any(space.spec.limits_results for space in layout.spaces)


def capabilities(identities: Sequence[ServerIdentity | None], *, kept_results: bool = False) -> Params:
    """The union of what upstreams offer, None standing for one that never connected.

    Objects are merged member by member, the first upstream's word standing; what the gateway does itself is set.
    """
    union: dict[str, dict[str, object]] = {"resources": {}} if kept_results else {}
    for identity in identities:
        for name, members in _offered(identity):
            merged = union.setdefault(name, {})
            for key, value in members.items():
                if bytes(raw(merged.get(key, False))) == b"false":
                    merged[key] = value
    with_skills = [extension_settings(each.capabilities, SKILLS) for each in identities if each is not None]
    if settings := [each for each in with_skills if each is not None]:
        union[EXTENSIONS][SKILLS] = joined_settings(settings)
    return {name: raw({**members, **_DELIVERED.get(name, {})}) for name, members in union.items()}


def _offered(identity: ServerIdentity | None) -> Iterator[tuple[str, Mapping[str, object]]]:
    if identity is None:
        yield from _EVERYTHING.items()
        return
    for name, value in identity.capabilities.items():
        try:
            yield name, parse_object(value)
        except InvalidMessage:
            continue
    if identity.version == V2024_11_05:
        # That revision has completion without a capability for it; what has no answer says so itself.
        yield "completions", {}


def _instructions(
    layout: Layout, known: Sequence[tuple[str, ServerIdentity | None]], max_characters: int
) -> JoinedInstructions:
    """Those of one server as it gave them; those of several joined."""
    told = [(name, identity.instructions) for name, identity in known if identity and identity.instructions]
    if all(space.transparent for space in layout.spaces):
        return JoinedInstructions(told[0][1] if told else None)
    return joined([space.upstream for space in layout.spaces], told, max_characters)


def _working(layout: Layout, offered: Params, instructions: JoinedInstructions) -> Params:
    """Of what upstreams offer what works here (`Space.passes_all` says of unknown extensions where they do)."""
    known = extensions(offered).keys()
    has_skills = extension_settings(offered, SKILLS) is not None
    usable = frozenset(known) if all(space.passes_all for space in layout.spaces) else KNOWN_EXTENSIONS
    if not has_skills:
        usable -= {SKILLS}
    if not known <= usable:
        offered = with_extensions(offered, usable)
    if (has_skills or instructions.whole is not None) and "resources" not in offered:
        offered = {**offered, "resources": raw(_DELIVERED["resources"])}
    return offered


def _flaw(kind: Kind, key: str, item: Raw) -> str | None:
    if not key:
        return f"an entry has no {kind.key}"
    if nests_deeper(item, MAX_DEPTH):
        return f"it nests deeper than {MAX_DEPTH} levels"
    if kind is Kind.SKILLS:
        try:
            files_of(item)
        except InvalidSkill as invalid:
            return str(invalid)
    return None


def _parts_of(kind: Kind, entry: Entry) -> tuple[str, ...]:
    """All that must be shown for an entry to be: of a skill its files, else the entry itself."""
    return files_of(entry.data) if kind is Kind.SKILLS else (entry.key,)


def _key(kind: Kind, item: Raw) -> str | None:
    try:
        return parse_text(parse_object(item).get(kind.key, b""))
    except InvalidMessage:
        return None


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


def _permitted(layout: Layout, parts: Iterable[Mapping[Kind, Exposure]], kind: Kind) -> Iterator[tuple[Shown, ...]]:
    """The entries of each upstream that the caller may use."""
    for space, part in zip(layout.spaces, parts, strict=True):
        shown = part[kind].shown if kind in part else ()
        if space.permits is to_all:
            yield shown
        else:
            yield tuple(entry for entry in shown if entry.is_login or _permits(space, kind, entry))


def _permits(space: Space, kind: Kind, entry: Shown) -> bool:
    return all(space.permits(kind, uri, None) for uri in entry.files) and space.permits(kind, entry.own, entry.entry)


def _listed(
    layout: Layout, parts: Iterable[Mapping[Kind, Exposure]], kind: Kind, instructions: JoinedInstructions
) -> Iterator[tuple[Shown, ...]]:
    """The entries that a caller may use; among resources first the gateway's own."""
    if kind is Kind.RESOURCES and instructions.whole is not None:
        entry = {
            "uri": INSTRUCTIONS_URI,
            "name": "instructions",
            "title": "Instructions of all servers",
            "description": "How to use each of the servers behind this gateway, in its own words and in full.",
            "mimeType": "text/markdown",
            "size": len(instructions.whole.encode()),
        }
        yield (Shown(INSTRUCTIONS_URI, GATEWAY, INSTRUCTIONS_URI, raw(entry)),)
    yield from _permitted(layout, parts, kind)


def _distinct(parts: Iterable[tuple[Shown, ...]]) -> Iterator[Shown]:
    """All entries in order; a key that is taken is left to the upstream that the configuration names first."""
    taken: set[str] = set()
    for shown in chain.from_iterable(parts):
        if shown.key not in taken:
            taken.add(shown.key)
            yield shown
