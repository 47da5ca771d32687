"""Whole lists exposed and named at once, where the package works on them in turns."""

from __future__ import annotations

from collections.abc import Iterable

from mcproxy.catalog.naming import NameTable, Space, naming
from mcproxy.catalog.views.exposure import Exposure, exposing, exposing_to_handshake
from mcproxy.catalog.views.snapshots import Listing
from mcproxy.concurrency.turns import at_once
from mcproxy.protocol.methods import Kind


def expose(space: Space, kind: Kind, listing: Listing, *, tasks: bool = False) -> Exposure:
    return at_once(exposing(space, kind, listing, tasks=tasks))


def for_handshake(exposure: Exposure) -> Exposure:
    return at_once(exposing_to_handshake(exposure))


def name_table(space: Space, kind: Kind, names: Iterable[str]) -> NameTable:
    return at_once(naming(space, kind, names))
