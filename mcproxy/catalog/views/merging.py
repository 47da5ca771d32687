"""Merge what upstreams list into the view of an endpoint: entries, capabilities and instructions.

Computed from exposures, in the order of the configuration. Fetches nothing and notifies no client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from mcproxy.call.upstreams import ServerIdentity
from mcproxy.catalog.instructions import INSTRUCTIONS_URI, JoinedInstructions, joined_instructions
from mcproxy.catalog.naming import GATEWAY, Layout
from mcproxy.catalog.search.own_tools import HINT
from mcproxy.catalog.views.exposure import Exposure
from mcproxy.catalog.views.offers import capabilities, working
from mcproxy.catalog.views.view import Shown, View
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind


def merge(
    layout: Layout,
    identities: Mapping[str, ServerIdentity | None],
    exposures: Mapping[str, Mapping[Kind, Exposure]],
    max_instructions: int = 2000,
) -> View:
    """The view of an endpoint from what each upstream in it is and lists to the caller, by the upstream's name.

    `max_instructions` are characters of instructions, where there are those of several upstreams.
    """
    known = [(space.upstream, identities.get(space.upstream)) for space in layout.spaces]
    instructions = _instructions(layout, known, max_instructions)
    parts = [exposures.get(space.upstream, {}) for space in layout.spaces]
    lists = [exposure for part in parts for exposure in part.values()]
    offered = capabilities([identity for _, identity in known], kept_results=_keeps_results(layout))
    return View(
        layout=layout,
        lists={kind: tuple(_distinct(_listed(parts, kind, instructions))) for kind in Kind},
        capabilities=working(layout, offered, instructions),
        instructions=instructions.shown,
        whole_instructions=instructions.whole,
        renamed=tuple(chain.from_iterable(exposure.renamed for exposure in lists)),
        refused=tuple(chain.from_iterable(exposure.refused for exposure in lists)),
        unreadable={
            kind: tuple(chain.from_iterable(part[kind].unreadable for part in parts if kind in part))
            for kind in {kind for part in parts for kind, exposure in part.items() if exposure.unreadable}
        },
    )


def _keeps_results(layout: Layout) -> bool:
    """Whether results may be kept as the gateway's own resources, which needs a declared capability."""
    return any(space.spec.limits_results for space in layout.spaces)


def _instructions(
    layout: Layout, known: Sequence[tuple[str, ServerIdentity | None]], max_characters: int
) -> JoinedInstructions:
    """The instructions: a single server's unchanged, else joined; before them the hint of a search."""
    told = [(name, identity.instructions) for name, identity in known if identity and identity.instructions]
    if len(layout.spaces) == 1 and layout.search is None:
        return JoinedInstructions(told[0][1] if told else None)
    before = "" if layout.search is None else HINT
    return joined_instructions([space.upstream for space in layout.spaces], told, max_characters, before)


def _listed(
    parts: Iterable[Mapping[Kind, Exposure]], kind: Kind, instructions: JoinedInstructions
) -> Iterator[tuple[Shown, ...]]:
    """The entries of a list; among resources first the gateway's own."""
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
    yield from (part[kind].shown for part in parts if kind in part)


def _distinct(parts: Iterable[tuple[Shown, ...]]) -> Iterator[Shown]:
    """All entries in order; if two have the same key, the upstream that the configuration names first keeps it."""
    taken: set[str] = set()
    for shown in chain.from_iterable(parts):
        if shown.key not in taken:
            taken.add(shown.key)
            yield shown
