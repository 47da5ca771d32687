"""Explains why a caller may make a call or not: each check that decides it, in order (`mcproxy explain`).

For operators, who may see everything; callers are never shown any of it. Asks no upstream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.calls import CallSubject, Decision
from mcproxy.call.errors import McpError
from mcproxy.call.identity import AGGREGATE, Caller
from mcproxy.call.upstreams import Upstream
from mcproxy.catalog.arguments import ArgumentRules
from mcproxy.catalog.naming import GATEWAY, Layout, Space
from mcproxy.catalog.search.own_tools import FIND
from mcproxy.catalog.views.exposure import WITHHELD
from mcproxy.catalog.views.snapshots import Listing
from mcproxy.catalog.views.view import Shown, View
from mcproxy.configuration.references import suggestion
from mcproxy.gateway.legible import masked
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import Params, raw
from mcproxy.protocol.methods import METHODS, Kind, Subject
from mcproxy.settings.endpoints import is_key


class Step(msgspec.Struct, frozen=True):
    """One check; the first that fails refuses the call."""

    what: str
    passes: bool
    why: str


class Explanation(msgspec.Struct, frozen=True):
    """A decision, and the checks up to the first that failed."""

    allowed: bool
    steps: tuple[Step, ...]


def kind_of(method: str, subject: str) -> Kind:
    """The kind of entry that a call of `method` names. Raises ValueError where it names none."""
    row = METHODS.get(method)
    match row.subject if row else None:
        case Subject.TOOL:
            return Kind.TOOLS
        case Subject.PROMPT:
            return Kind.PROMPTS
        case Subject.RESOURCE:
            return Kind.RESOURCES
        case Subject.REFERENCE:
            return Kind.RESOURCES if ":" in subject else Kind.PROMPTS
        case _:
            known = [name for name, row in METHODS.items() if row.subject is not None]
            hint = suggestion(method, known)
            raise ValueError(f"{method!r} is no method that is about a tool, a resource or a prompt{hint}")


def explain(
    catalogue: Catalogue,
    upstreams: Mapping[str, Upstream],
    caller: Caller,
    kind: Kind,
    subject: str,
    arguments: Params,
    mask: Callable[[str], str],
) -> Explanation:
    """Explains whether `caller` may use an entry with these arguments. Decides as for a call, and sends nothing.

    `mask` conceals secrets in arguments that the settings add (requirement R44).
    """
    steps: list[Step] = []
    for step in _Walk(catalogue, upstreams, caller, mask).steps(kind, subject, arguments):
        steps.append(step)
        if not step.passes:
            break
    return Explanation(all(step.passes for step in steps), tuple(steps))


def _path(endpoint: str) -> str:
    """The path of an endpoint, as `mcproxy explain --endpoint` takes it."""
    return f"/mcp{endpoint}" if endpoint == AGGREGATE or is_key(endpoint) else f"/servers/{endpoint}"


class _Found(msgspec.Struct, frozen=True):
    """The upstream and its own name for the subject."""

    space: Space
    own: str
    entry: Raw | None = None
    arguments: ArgumentRules | None = None

    def is_shown_as(self, shown: Shown) -> bool:
        return (shown.upstream, shown.own) == (self.space.upstream, self.own)


class _Walk(msgspec.Struct, frozen=True):
    catalogue: Catalogue
    upstreams: Mapping[str, Upstream]
    caller: Caller
    mask: Callable[[str], str]

    def steps(self, kind: Kind, subject: str, arguments: Params) -> Iterator[Step]:
        layout = self.catalogue.configured(self.caller.endpoint)
        yield self._endpoint(layout)
        found = self._found(layout, kind, subject)
        if found is None:
            owners = self._owners(layout, kind, subject)
            yield from map(self._upstream, owners)
            unnamed = [phrase for space in owners for phrase in self._unnamed(space, kind)]
            yield Step("name", False, "; ".join([f"{subject!r} is not listed, as far as is known", *unnamed]))
            return
        if found.space.upstream == GATEWAY:
            yield Step("name", True, "an entry of the gateway's own, for all callers of the endpoint")
            return
        yield self._upstream(found.space)
        yield _filter(found.space, kind, found.own)
        yield from self._pin(found, kind)
        yield self._name(found, kind)
        yield from self._list(found, kind)
        if found.arguments is not None:
            try:
                arguments = found.arguments.final(arguments, self.caller.principal)
            except McpError as refusal:
                yield Step("arguments", False, refusal.message)
                return
            shown = raw(masked(arguments, found.arguments.fixed.keys(), self.mask))
            yield Step("arguments", True, f"{found.space.upstream} gets {bytes(shown).decode()}")
        decision = self.catalogue.decision(
            self.caller, CallSubject(found.space.upstream, kind, found.own, found.entry), arguments
        )
        yield Step("policy", decision.allowed, _reason(decision))

    def _owners(self, layout: Layout, kind: Kind, subject: str) -> list[Space]:
        """The upstreams whose prefix the name has."""
        return [space for space in layout.spaces if kind is not Kind.RESOURCES and space.may_own_name(subject)]

    def _endpoint(self, layout: Layout) -> Step:
        name = _path(layout.endpoint)
        if layout.endpoint != AGGREGATE and not layout.spaces:
            return Step("endpoint", False, f"{name} has nothing, or does not exist")
        if not self.catalogue.exists(layout.endpoint, self.caller.principal):
            who = f"for {', '.join(layout.roles)} alone, and " if layout.roles else ""
            return Step("endpoint", False, f"{name} is {who}for those who may use something of it")
        return Step("endpoint", True, name)

    def _upstream(self, space: Space) -> Step:
        """The upstream's state. It decides nothing here: a call would make one attempt to connect."""
        status = self.upstreams[space.upstream].status
        era = f", {status.identity.era.value} era ({status.identity.version})" if status.identity else ""
        return Step("upstream", True, f"{space.upstream}: {status.state.value}{era}")

    def _pin(self, found: _Found, kind: Kind) -> Iterator[Step]:
        """Whether the entry is as approved; decides only where pins are enforced."""
        if kind is Kind.RESOURCES and self.catalogue.whole_view(self.caller).withholds(found.space.upstream, found.own):
            yield Step("pin", False, WITHHELD)
        unapproved = self.catalogue.vetted.unapproved(LinkKey(found.space.upstream, None), kind)
        for entry in unapproved:
            if entry.name == found.own:
                yield Step("pin", not self.catalogue.vetted.enforced, entry.why)

    def _unnamed(self, space: Space, kind: Kind) -> Iterator[str]:
        """Counts the entries that the upstream lists without a name: one of them may be the one in question."""
        listing = self.catalogue.known.listing(LinkKey(space.upstream, None), kind)
        count = sum(not refused.name for refused in listing.refused) if listing else 0
        if count:
            yield f"{space.upstream} lists {count} of its {kind.value} without a {kind.key}"

    def _name(self, found: _Found, kind: Kind) -> Step:
        own = f"{found.space.upstream} calls it {found.own!r}"
        if found.entry is not None or kind in (Kind.RESOURCES, Kind.TEMPLATES):
            return Step("name", True, own)
        why = _refusal(self.catalogue.whole_view(self.caller), found, kind)
        return Step("name", False, f"{own}, and {why or 'does not list it'}")

    def _list(self, found: _Found, kind: Kind) -> Iterator[Step]:
        """Says why an entry is left out of lists. Decides nothing: a call by its name reaches it."""
        for version, lists in ((LATEST, "all lists"), (LATEST_HANDSHAKE, "the lists of handshake clients")):
            view = self.catalogue.whole_view(replace(self.caller, version=version))
            if any(map(found.is_shown_as, view.lists[kind])):
                continue
            if kind is Kind.TOOLS and any(map(found.is_shown_as, view.unlisted)):
                yield Step("list", True, f"left out, to be found by {FIND}")
            elif (why := _refusal(view, found, kind)) is not None:
                yield Step("list", True, f"left out of {lists}: {why}")
            return

    def _found(self, layout: Layout, kind: Kind, subject: str) -> _Found | None:
        view = self.catalogue.whole_view(self.caller)
        if kind is Kind.RESOURCES:
            located = view.resource(subject) or layout.locate(subject)
            return None if located is None else _Found(*located)
        shown = view.find(kind, subject)
        if shown is not None:
            return _Found(layout.space(shown.upstream), shown.own, shown.entry, shown.arguments)
        return next(self._hidden(layout.spaces, kind, subject), None)

    def _hidden(self, spaces: Iterable[Space], kind: Kind, subject: str) -> Iterator[_Found]:
        """Entries that are listed upstream and would have this name if they were shown."""
        for space in spaces:
            listing = self.catalogue.known.listing(LinkKey(space.upstream, None), kind) or Listing()
            names = (*(entry.key for entry in listing.entries), *(refused.name for refused in listing.refused))
            for name in filter(None, names):
                if space.expose_name(space.wish(kind, name)) == subject:
                    yield _Found(space, name)


def _refusal(view: View, found: _Found, kind: Kind) -> str | None:
    """The reason why the view refuses to show an entry, if it does."""
    sought = (found.space.upstream, kind, found.own)
    return next((each.why for each in view.refused if (each.upstream, each.kind, each.name) == sought), None)


def _filter(space: Space, kind: Kind, own: str) -> Step:
    obstacle = space.obstacle(kind, own)
    return Step("filter", obstacle is None, obstacle or "shown")


def _reason(decision: Decision) -> str:
    verb = "allowed" if decision.allowed else "denied"
    if decision.approve is not None:
        verb += f", once {'its caller' if decision.approve == 'caller' else 'an operator'} approves each call,"
    return f"{verb} by {decision.rule or 'default: no rule speaks of it'}"
