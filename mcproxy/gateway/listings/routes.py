"""What callers of one standing see, and where the names in it lead: found out once, until something changes.

Whatever is the same for every call to a tool or prompt is in its `Way`, so that a call costs look-ups, however much
there is to know. Decides nothing: `catalogue` makes these from what it knows, and drops them when it knows better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Raw

from mcproxy.call.calls import Aim
from mcproxy.catalog.merging import Shown, View
from mcproxy.catalog.naming import Space
from mcproxy.protocol.methods import Kind


@dataclass(frozen=True, slots=True)
class Way:
    """Where a name of a tool or prompt leads."""

    space: Space
    shown: Shown
    aim: Aim
    own: Raw
    """The upstream's own name of it, as JSON."""
    label: tuple[str, str]
    """As in `Notes.label`."""
    repeatable: bool
    """As in `Call.repeatable`."""
    has_tasks: bool
    """Whether its upstream and those who look have the same kind of tasks."""
    deferred: bool
    """Whether a task may answer who does not ask for one."""


class Outlook:
    """`lead` finds out about what is shown."""

    def __init__(self, view: View, lead: Callable[[Kind, Shown], Way], *, for_all: bool) -> None:
        self.view = view
        self.for_all = for_all
        """Whether all callers may use the same there."""
        self._lead = lead
        self._ways: dict[Kind, dict[str, Way]] = {kind: {} for kind in Kind}
        """Of names that are shown alone."""

    def way(self, kind: Kind, name: str) -> Way | None:
        """None where there is nothing of that name to be seen."""
        way = self._ways[kind].get(name)
        if way is None and (shown := self.view.find(kind, name)) is not None:
            way = self._ways[kind][name] = self._lead(kind, shown)
        return way
