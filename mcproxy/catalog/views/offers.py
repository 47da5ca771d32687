"""The capabilities that an endpoint offers: the union of its upstreams', as far as they work for a client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from mcproxy.call.identity import Caller
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.catalog.instructions import JoinedInstructions
from mcproxy.catalog.naming import Layout
from mcproxy.catalog.skills import joined_settings
from mcproxy.protocol.capabilities import KNOWN_EXTENSIONS, fitting
from mcproxy.protocol.eras import STATELESS_VERSIONS, V2024_11_05, Era
from mcproxy.protocol.jsonrpc import InvalidMessage, Params, json_of, parse_object, raw
from mcproxy.protocol.methods import SKILLS
from mcproxy.protocol.tasks import EXTENSIONS, extension_settings, extensions, shared_tasks, with_extensions

SERVERS_ALONE: Final = frozenset({SKILLS})
"""Extensions that only servers declare: a client that does not know them sends nothing of them."""

_DELIVERED: Final[dict[str, dict[str, object]]] = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True},
    "prompts": {"listChanged": True},
}
"""Capabilities of the gateway itself, beside the upstreams': it notifies of changed lists (R19)."""

_EVERYTHING: Final[dict[str, dict[str, object]]] = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {"listChanged": True},
    "logging": {},
    "completions": {},
}
"""An upstream that was never connected counts as offering all of this: it may come, and clients ask once (R1)."""


def relayed(identity: ServerIdentity, version: str, *, owned: bool) -> ServerIdentity:
    """An upstream with what of its capabilities reaches a client of `version`, over a link of its own or not.

    Tasks pass between peers that have the same kind of them. Other extensions pass where the upstream hears what this
    client declares: with each request, or in a handshake for it alone (2026-07-28, versioning, Extension Negotiation).
    Those that no client declares always pass.
    """
    capabilities = shared_tasks(identity.capabilities, version, identity.version)
    if identity.era is Era.HANDSHAKE and not owned and extensions(capabilities):
        capabilities = with_extensions(capabilities, SERVERS_ALONE)
    return replace(identity, capabilities=capabilities)


def agreed_extensions(offered: Params, caller: Caller) -> Params:
    """The extensions that both sides declare, or that only servers declare.

    A stateless client may declare others with its next request.
    """
    if caller.version in STATELESS_VERSIONS:
        return offered
    return with_extensions(offered, extensions(caller.capabilities).keys() | SERVERS_ALONE)


def capabilities(identities: Sequence[ServerIdentity | None], *, kept_results: bool = False) -> Params:
    """The union of what upstreams offer, None standing for one that never connected.

    Objects are merged member by member, the first upstream's word standing; what the gateway does itself is set.
    """
    union: dict[str, dict[str, object]] = {"resources": {}} if kept_results else {}
    for identity in identities:
        for name, members in _offered(identity):
            merged = union.setdefault(name, {})
            for key, value in members.items():
                if json_of(merged.get(key, False)) == b"false":
                    merged[key] = value
    with_skills = [extension_settings(each.capabilities, SKILLS) for each in identities if each is not None]
    if settings := [each for each in with_skills if each is not None]:
        union[EXTENSIONS][SKILLS] = joined_settings(settings)
    return fitting({name: raw({**members, **_DELIVERED.get(name, {})}) for name, members in union.items()})


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


def working(layout: Layout, offered: Params, instructions: JoinedInstructions) -> Params:
    """The capabilities of upstreams that work here (`Space.passes_all` says where unknown extensions do)."""
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
