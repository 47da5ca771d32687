"""The catalogue: each caller's view of what upstreams list (`known_links`), and the routes in it. No I/O.

A caller with a link of its own to an upstream sees the lists of that link and, until they are known, those of the
shared link. Views leave out what the policy denies; callers with the same roles share one. Code that looks names up in
a view, or in the layout under it, therefore need not ask the policy again (requirement R38).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import msgspec
from cachetools import LRUCache
from msgspec import Raw

from mcproxy.access.pins import UNPINNED, Pins, same
from mcproxy.access.policy import Policy, PolicyItem, RoleSet
from mcproxy.call.calls import CallSubject, Decision
from mcproxy.call.identity import AGGREGATE, Caller, Principal, owner
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.catalog.annotations import is_destructive, is_read_only, is_repeatable
from mcproxy.catalog.freshness import NOT_LISTED, Freshness
from mcproxy.catalog.naming import GATEWAY, Layout, Space, layouts
from mcproxy.catalog.search.search_view import searchable
from mcproxy.catalog.uri_matching import matcher, readings
from mcproxy.catalog.views.exposure import Exposure, with_login, without_files
from mcproxy.catalog.views.merging import merge
from mcproxy.catalog.views.offers import agreed_extensions, relayed
from mcproxy.catalog.views.snapshots import entry_key
from mcproxy.catalog.views.view import Shown, View
from mcproxy.concurrency.turns import Steps, Turns
from mcproxy.gateway.listings.exposures import Exposures, Showing
from mcproxy.gateway.listings.keys import LinkKey, ListKey
from mcproxy.gateway.listings.known_links import KnownLinks
from mcproxy.gateway.listings.routes import ExposedRoute, RouteTable
from mcproxy.gateway.listings.vetted_lists import VettedLists
from mcproxy.protocol.capabilities import unknown_extensions
from mcproxy.protocol.eras import HANDSHAKE_VERSIONS
from mcproxy.protocol.jsonrpc import Params, raw
from mcproxy.protocol.methods import Kind
from mcproxy.protocol.tasks import Dialect, Support, dialect, offer, takes_tool_calls
from mcproxy.settings import Settings

RouteTableKey = tuple[str, RoleSet, tuple[str, ...], Dialect | None]
"""The endpoint, the roles, the keys of the caller's own links, and its kind of tasks."""

ViewKey = tuple[str, RoleSet | None, tuple[str, ...], Dialect | None]
"""The key of a view: as `RouteTableKey`, with None for roles that make no difference."""


class CatalogueRules(NamedTuple):
    """The settings that the catalogue goes by."""

    layouts: Mapping[str, Layout]
    policy: Policy
    max_views: int
    pins: Pins = UNPINNED
    max_instructions: int = 2000


def rules_of(settings: Settings) -> CatalogueRules:
    """The settings that the catalogue goes by."""
    # Neither pins nor hooks can judge messages of unknown extensions, which might do what pins or hooks forbid.
    enforced = settings.access.pins.mode == "enforce" or any(hook.mode == "enforce" for hook in settings.access.hooks)
    other_roles = [role for endpoint in settings.endpoints.values() for role in endpoint.roles]
    return CatalogueRules(
        layouts(settings.upstreams, settings.proxy.naming.max_name_length, settings.endpoints, passing=not enforced),
        Policy(settings.access.policy, readings=readings, matcher=matcher, others=other_roles),
        settings.access.policy.max_views,
        Pins(settings.access.pins),
        settings.proxy.instructions.max_characters,
    )


class Catalogue:
    """Views and routes for the upstreams in `layouts`; keeps at most `max_views` views and as many tables of routes."""

    def __init__(self, rules: CatalogueRules) -> None:
        self._layouts = rules.layouts
        self._policy = rules.policy
        self.refers_calls = rules.policy.refers_calls
        """Whether any call may need an operator's approval."""
        self.known = KnownLinks(self.has, self._changed)
        self.vetted = VettedLists(self.known, rules.pins)
        self.exposures = Exposures(self.known, self.vetted, self._layout, rules.max_views)
        self.turns: Final = Turns()
        """For what takes long about lists."""
        self._changes = 0
        """How often lists or settings changed."""
        self._max_instructions = rules.max_instructions
        self._max_views = rules.max_views
        self._route_tables: OrderedDict[RouteTableKey, RouteTable] = OrderedDict()
        """Most recently used last."""
        self._latest_routes: RouteTable
        """The table that was asked for last: one call asks for it several times."""
        self.latest_caller: Caller | None = None
        """The caller of that table, which is at hand as long as this stands here."""
        self._views: LRUCache[ViewKey, View] = LRUCache(rules.max_views)
        self._restricted: LRUCache[tuple[str, RoleSet], Layout] = LRUCache(rules.max_views)

    def reconfigure(self, rules: CatalogueRules) -> None:
        """Puts other rules in force. Retire links of removed upstreams first."""
        self._layouts = rules.layouts
        self._policy = rules.policy
        self.refers_calls = rules.policy.refers_calls
        self.vetted.reconfigure(rules.pins)
        self.exposures.reconfigure(rules.max_views)
        self._max_instructions = rules.max_instructions
        self._max_views = rules.max_views
        self.latest_caller = None
        self._changes += 1
        self._route_tables.clear()
        self._views = LRUCache(rules.max_views)
        self._restricted = LRUCache(rules.max_views)

    def configured(self, endpoint: str) -> Layout:
        """The layout of an endpoint without the policy; empty for an endpoint that does not exist."""
        return self._layouts.get(endpoint) or Layout(endpoint, ())

    def has(self, upstream: str) -> bool:
        """Whether there is such an upstream, whatever the policy says."""
        return upstream in self._layouts

    def layout(self, caller: Caller) -> Layout:
        """The layout of the caller's endpoint, without upstreams of which the caller may use nothing."""
        return self._layout(caller.endpoint, self._roles_of(caller))

    def exists(self, endpoint: str, principal: Principal) -> bool:
        """Whether there is an endpoint that `principal` may know of."""
        return endpoint == AGGREGATE or bool(self._layout(endpoint, self._policy.roles_of(principal)).spaces)

    def same_for_all(self, endpoint: str) -> bool:
        """Whether the policy gives all callers the same at this endpoint."""
        return self._policy.open and not self.configured(endpoint).roles

    def decision(self, caller: Caller, subject: CallSubject, arguments: Params) -> Decision:
        """The policy's decision on a call of `subject`, an entry of an upstream, with these arguments."""
        assert subject.kind is not None
        roles = self._policy.roles_of(caller.principal)
        return self._policy.decide(roles, _item(subject.upstream, subject.kind, subject.own, subject.entry), arguments)

    def judges_arguments(self, caller: Caller, subject: CallSubject) -> bool:
        """Whether the policy's decision on calls of `subject` depends on their arguments."""
        assert subject.kind is not None
        item = _item(subject.upstream, subject.kind, subject.own, subject.entry)
        return self._policy.verdict(self._policy.roles_of(caller.principal), item).unconditional() is None

    def link(self, space: Space, caller: Caller) -> LinkKey:
        """The link that serves `caller`."""
        return LinkKey(space.upstream, owner(space.spec, caller))

    def links(self, caller: Caller) -> list[LinkKey]:
        """The links that serve `caller`, one for each upstream in its layout."""
        return [self.link(space, caller) for space in self.layout(caller).spaces]

    def own_links(self, session: str) -> list[LinkKey]:
        """The links that a session may have of its own, also to upstreams that it may no longer use."""
        spaces = self.configured(AGGREGATE).spaces
        return [LinkKey(space.upstream, session) for space in spaces if space.spec.connection == "session"]

    def principal_links(self, key: str) -> list[LinkKey]:
        """The links that a principal, or what one of its tokens grants, may own."""
        spaces = self.configured(AGGREGATE).spaces
        return [LinkKey(space.upstream, key) for space in spaces if space.spec.connection == "principal"]

    def credential_links(self, key: str) -> list[LinkKey]:
        """The links that may have been made with certain credentials."""
        return [
            LinkKey(space.upstream, key)
            for space in self.configured(AGGREGATE).spaces
            if space.spec.credentials.forward
        ]

    def routes(self, caller: Caller) -> RouteTable:
        """The caller's routes. A look-up, unless something changed since the last call."""
        if self.latest_caller is not caller:
            self._latest_routes, self.latest_caller = self._routes_of(caller), caller
        return self._latest_routes

    def has_routes(self, caller: Caller) -> bool:
        """Whether the caller's routes are at hand; if not, `viewing` makes in turns what takes long of them."""
        if self.latest_caller is not caller:
            key = self._routes_key(caller)
            routes = self._route_tables.get(key)
            if routes is None:
                return False
            self._route_tables.move_to_end(key)
            self._latest_routes, self.latest_caller = routes, caller
        return True

    def _routes_of(self, caller: Caller) -> RouteTable:
        key = self._routes_key(caller)
        routes = self._route_tables.get(key)
        if routes is None:
            routes = self._route_tables[key] = self._make_routes(caller, key[1])
            if len(self._route_tables) > self._max_views:
                self._route_tables.popitem(last=False)
        self._route_tables.move_to_end(key)
        return routes

    def _routes_key(self, caller: Caller) -> RouteTableKey:
        roles = self._policy.roles_of(caller.principal)
        return caller.endpoint, roles, self._owners(caller), dialect(caller.version)

    def view(self, caller: Caller) -> View:
        """The caller's view. A look-up, like `routes`."""
        return self.routes(caller).view

    def whole_view(self, caller: Caller) -> View:
        """The view that `caller` would have if the policy allowed everything."""
        return self._view(caller, None)

    def passing(self, caller: Caller) -> Space | None:
        """The upstream for messages of extensions that the gateway does not know; None where they do not pass.

        It must be in the caller's layout, and the only upstream behind the endpoint (`Space.passes_all`).
        """
        view = self.view(caller)
        if len(view.layout.spaces) != 1 or not view.layout.spaces[0].passes_all:
            return None
        return view.layout.spaces[0] if unknown_extensions(agreed_extensions(view.capabilities, caller)) else None

    def may_read(self, caller: Caller, upstream: str, uri: str) -> bool:
        """Whether `caller` may read, and hear of, the resource that its upstream calls `uri`."""
        layout = self.layout(caller)
        if not layout.shows(upstream) or not layout.space(upstream).shows(Kind.RESOURCES, uri):
            return False
        skills = self._source(upstream, self._owners(caller), Kind.SKILLS)
        withheld = frozenset() if skills is None else self.vetted.withheld_files(skills)
        return not withheld or withheld.isdisjoint(readings(uri))

    def parts(self, caller: Caller, kind: Kind) -> list[Freshness]:
        """The freshness of each upstream's part of a list in the caller's view.

        An upstream without that list has no part.
        """
        spaces = self.layout(caller).spaces
        owners = self._owners(caller)
        sources = [self._source(space.upstream, owners, kind) for space in spaces]
        return [
            NOT_LISTED if source is None else self.known.freshness(source, kind)
            for source in sources
            if source is None or self.known.announces(source, kind)
        ]

    def tasks(self, link: LinkKey, version: str) -> Params | None:
        """The task capabilities that an upstream offers to clients of `version`; None if these have another kind."""
        identity = self.known.identity(link) or self.known.identity(LinkKey(link.upstream, None))
        if identity is None or dialect(version) is not dialect(identity.version):
            return None
        return offer(identity.version, identity.capabilities)

    def viewing(self, caller: Caller) -> Steps[View]:
        """As `view`; what takes long is worked out in turns."""
        while True:
            changes = self._changes
            for key, showing in self._showings_of(caller):
                yield from self.exposures.making(key, showing)
                if self._changes != changes:
                    break
            else:
                return self.view(caller)

    def is_as_listed(self, caller: Caller, skill: Raw) -> bool:
        """Whether a skill's entry (in the caller's names) needs no approval, or was approved and is listed just so.

        A server may describe a skill otherwise than it lists it, and may describe one that it does not list.
        """
        if not self.vetted.enforced:
            return True
        listed = self.view(caller).find(Kind.SKILLS, entry_key(Kind.SKILLS, skill) or "")
        return listed is not None and same(Kind.SKILLS, listed.entry, skill)

    def _changed(self, link: LinkKey, kinds: Collection[Kind]) -> None:
        """Drops views and routes that were made from a link's earlier lists."""
        if link not in self.known.snapshots:
            self.exposures.forget(link)
            self.vetted.forget(link)
        for kind in kinds:
            self.vetted.settle(ListKey(link, kind))
            self.exposures.settle(ListKey(link, kind))
        self._changes += 1
        self.latest_caller, owner = None, link.owner
        if owner is None:
            self._route_tables.clear()
            self._views.clear()
            return
        for routes in [key for key in self._route_tables if owner in key[2]]:
            del self._route_tables[routes]
        for view in [key for key in self._views if owner in key[2]]:
            del self._views[view]

    def _roles_of(self, caller: Caller) -> RoleSet | None:
        """The caller's roles; None where they make no difference."""
        return None if self.same_for_all(caller.endpoint) else self._policy.roles_of(caller.principal)

    def _owners(self, caller: Caller) -> tuple[str, ...]:
        """The keys under which the caller has links of its own."""
        return tuple(filter(self.known.owned.__contains__, caller.owners))

    def _make_routes(self, caller: Caller, roles: RoleSet) -> RouteTable:
        view = self._view(caller, self._roles_of(caller))
        make_route = partial(self._route, view.layout, roles, self._owners(caller), caller.version)
        return RouteTable(view, make_route, for_all=self.same_for_all(caller.endpoint))

    def _route(
        self, layout: Layout, roles: RoleSet, owners: tuple[str, ...], version: str, kind: Kind, shown: Shown
    ) -> ExposedRoute:
        if shown.upstream == GATEWAY:
            return _own_route(layout.space(GATEWAY), kind, shown)
        verdict = self._policy.verdict(roles, _item(shown.upstream, kind, shown.own, shown.entry))
        space, link = layout.space(shown.upstream), self._known(shown.upstream, owners)
        has_tasks = link is not None and self.tasks(link, version) is not None
        decision, rules = verdict.unconditional(), shown.arguments
        final, may_need_approval = None if rules is None else rules.final, verdict.may_need_approval()
        return ExposedRoute(
            space=space,
            shown=shown,
            subject=CallSubject(shown.upstream, kind, shown.own, shown.entry, decision, verdict.given, final),
            own=raw(shown.own),
            label=(shown.upstream, shown.key),
            repeatable=kind is Kind.TOOLS and is_repeatable(shown.entry),
            has_tasks=has_tasks,
            deferred=dialect(version) is not Dialect.CORE if has_tasks else shown.task_support is Support.REQUIRED,
            may_need_approval=may_need_approval,
            looks_at_arguments=kind is Kind.TOOLS and (decision is None or final is not None or may_need_approval),
        )

    def _view(self, caller: Caller, roles: RoleSet | None) -> View:
        owners = self._owners(caller)
        key = self._view_key(caller, roles, owners)
        try:
            return self._views[key]
        except KeyError:
            view = self._views[key] = self._merged(caller.endpoint, roles, owners, caller.version)
            return view

    def _view_key(self, caller: Caller, roles: RoleSet | None, owners: tuple[str, ...]) -> ViewKey:
        return caller.endpoint, roles, owners, dialect(caller.version)

    def _layout(self, endpoint: str, roles: RoleSet | None) -> Layout:
        configured = self.configured(endpoint)
        if roles is None or self.same_for_all(endpoint):
            return configured
        key = (endpoint, roles)
        if key not in self._restricted:
            self._restricted[key] = self._restrict(configured, roles)
        return self._restricted[key]

    def _restrict(self, layout: Layout, roles: RoleSet) -> Layout:
        if layout.roles and roles.isdisjoint(layout.roles):
            return Layout(layout.endpoint, ())
        upstreams = [space.upstream for space in layout.spaces if self._policy.reaches(roles, space.upstream)]
        wholly = [name for name in upstreams if self._policy.allows_all(roles, name)]
        return layout.restricted({name: partial(self._permits, roles, name) for name in upstreams}, wholly)

    def _permits(self, roles: RoleSet, upstream: str, kind: Kind, own: str, entry: Raw | None) -> bool:
        return self._policy.decide_listing(roles, _item(upstream, kind, own, entry)).allowed

    def _merged(self, endpoint: str, roles: RoleSet | None, owners: tuple[str, ...], version: str) -> View:
        layout = self._layout(endpoint, roles)
        identities: dict[str, ServerIdentity | None] = {}
        exposures: dict[str, dict[Kind, Exposure]] = {}
        withheld: dict[str, frozenset[str]] = {}
        for space in layout.spaces:
            known = self._known(space.upstream, owners)
            # A session's own link declares what its client declares, even before the link's lists are known.
            awaited = space.spec.connection == "session" and version in HANDSHAKE_VERSIONS
            identities[space.upstream] = self._relayed(known, version, owned=awaited)
            exposures[space.upstream] = {
                key.kind: self.exposures.of(key, showing)
                for key, showing in self._showings(space, endpoint, roles, owners, version)
            }
            skills = self._source(space.upstream, owners, Kind.SKILLS)
            if skills is not None and (files := self.vetted.withheld_files(skills)):
                withheld[space.upstream] = files
                resources = exposures[space.upstream].get(Kind.RESOURCES, Exposure())
                exposures[space.upstream][Kind.RESOURCES] = without_files(resources, files)
            if not self.known.awaiting_login.isdisjoint(_preferred(space.upstream, owners)):
                tools = exposures[space.upstream].get(Kind.TOOLS, Exposure())
                exposures[space.upstream][Kind.TOOLS] = with_login(space, tools)
        view = replace(merge(layout, identities, exposures, self._max_instructions), withheld=withheld)
        return view if layout.search is None else searchable(view, version)

    def _showings_of(self, caller: Caller) -> list[tuple[ListKey, Showing]]:
        """The lists in the caller's view; none if the view is made."""
        roles, owners = self._roles_of(caller), self._owners(caller)
        if self._view_key(caller, roles, owners) in self._views:
            return []
        spaces = self._layout(caller.endpoint, roles).spaces
        return [
            each for space in spaces for each in self._showings(space, caller.endpoint, roles, owners, caller.version)
        ]

    def _showings(
        self, space: Space, endpoint: str, roles: RoleSet | None, owners: tuple[str, ...], version: str
    ) -> list[tuple[ListKey, Showing]]:
        """The known lists of an upstream that count for such callers, and how these see them."""
        known = self._known(space.upstream, owners)
        tasks = known is not None and takes_tool_calls(self.tasks(known, version) or {})
        sources = {kind: self._source(space.upstream, owners, kind) for kind in Kind}
        as_tools = Showing(endpoint, roles, tasks, version in HANDSHAKE_VERSIONS)
        others = Showing(endpoint, roles)
        return [
            (ListKey(link, kind), as_tools if kind is Kind.TOOLS else others)
            for kind, link in sources.items()
            if link is not None
        ]

    def _relayed(self, link: LinkKey | None, version: str, *, owned: bool) -> ServerIdentity | None:
        identity = None if link is None else self.known.identity(link)
        if link is None or identity is None:
            return None
        if self.vetted.enforced and not self.vetted.has_approved_instructions(link):
            identity = msgspec.structs.replace(identity, instructions=None)
        return relayed(identity, version, owned=owned or link.owner is not None)

    def _known(self, upstream: str, owners: tuple[str, ...]) -> LinkKey | None:
        """The link whose identity counts for an upstream: the owner's, else the shared link."""
        return next((link for link in _preferred(upstream, owners) if self.known.identity(link) is not None), None)

    def _source(self, upstream: str, owners: tuple[str, ...], kind: Kind) -> LinkKey | None:
        """The link whose list counts: the owner's, else the shared link; None where neither list is known."""
        return next((link for link in _preferred(upstream, owners) if self.known.listing(link, kind) is not None), None)


def _own_route(space: Space, kind: Kind, shown: Shown) -> ExposedRoute:
    """The route of one of the gateway's own tools, to which no policy applies."""
    return ExposedRoute(
        space=space,
        shown=shown,
        subject=CallSubject(GATEWAY, kind, shown.own, shown.entry, Decision(allowed=True)),
        own=raw(shown.own),
        label=(GATEWAY, shown.key),
        repeatable=False,
        has_tasks=False,
        deferred=False,
        may_need_approval=False,
        looks_at_arguments=False,
    )


def _preferred(upstream: str, owners: tuple[str, ...]) -> list[LinkKey]:
    """An upstream's links that may serve a caller with these keys, most preferred first."""
    return [LinkKey(upstream, key) for key in (*owners, None)]


def _item(upstream: str, kind: Kind, own: str, entry: Raw | None) -> PolicyItem:
    if kind is not Kind.TOOLS or entry is None:
        return PolicyItem(upstream, kind, own)
    return PolicyItem(upstream, kind, own, is_read_only(entry), is_destructive(entry))
