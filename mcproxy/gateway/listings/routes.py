"""Routes by exposed name, for all callers with the same permissions; dropped when the catalogue changes.

An `ExposedRoute` holds all that is the same for every call of a tool or prompt, so that a call costs look-ups alone.
Decides nothing: the catalogue (`state`) makes routes, and drops them.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Raw

from mcproxy.call.calls import CallSubject
from mcproxy.catalog.naming import Space
from mcproxy.catalog.views.view import Shown, View
from mcproxy.protocol.methods import Kind


class ExposedRoute(msgspec.Struct, frozen=True):
    """The target of all calls to one tool or prompt, by its exposed name."""

    space: Space
    shown: Shown
    subject: CallSubject
    own: Raw
    """The upstream's own name of the tool or prompt, as JSON."""
    label: tuple[str, str]
    """As in `Notes.label`."""
    repeatable: bool
    """As in `Call.repeatable`."""
    has_tasks: bool
    """Whether upstream and caller have the same kind of tasks."""
    deferred: bool
    """Whether a call that requested no task may be answered by one."""
    may_need_approval: bool
    """Whether the policy has a person approve some calls."""
    looks_at_arguments: bool
    """Whether the policy, an override or an approval needs the arguments of each call."""


class RouteTable:
    """The routes of one view; each is made by `make_route` at its first use."""

    def __init__(self, view: View, make_route: Callable[[Kind, Shown], ExposedRoute], *, for_all: bool) -> None:
        self.view = view
        self.for_all = for_all
        """Whether the policy gives all callers the same there."""
        self._make_route = make_route
        self._routes_by_kind: dict[Kind, dict[str, ExposedRoute]] = {kind: {} for kind in Kind}
        """The routes made so far."""

    def find(self, kind: Kind, name: str) -> ExposedRoute | None:
        """The route of a name; None where the view shows no such name."""
        route = self._routes_by_kind[kind].get(name)
        if route is None and (shown := self.view.find(kind, name)) is not None:
            route = self._routes_by_kind[kind][name] = self._make_route(kind, shown)
        return route
