"""The twin of `mcproxy.catalog.views.offers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import pytest
from msgspec import Raw

from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.catalog.naming import layouts
from mcproxy.catalog.views.merging import merge
from mcproxy.catalog.views.offers import agreed_extensions, capabilities, relayed
from mcproxy.protocol.eras import (
    V2024_11_05,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
)
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import SKILLS
from tests.catalog.views.samples import identity
from tests.fakes.upstream import settings_of

KNOWN: Final[dict[str, object]] = {f"io.modelcontextprotocol/{name}": {} for name in ("ui", "tasks", "skills")}
"""Extensions that work with any number of upstreams."""


def union(*identities: ServerIdentity | None) -> object:
    return msgspec.json.decode(raw(capabilities(identities)))


def test_r20_capabilities_are_the_union_with_what_the_gateway_does_itself() -> None:
    one = identity({"tools": {}, "resources": {"subscribe": False}})
    two = identity({"resources": {"subscribe": True}, "logging": {}})
    assert union(one, two) == {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "logging": {},
    }


def test_r20_subscribing_is_offered_only_where_an_upstream_offers_it() -> None:
    assert union(identity({"resources": {}})) == {"resources": {"listChanged": True}}


def test_r1_an_upstream_that_never_connected_counts_as_offering_everything() -> None:
    assert union(None) == {
        "tools": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "prompts": {"listChanged": True},
        "logging": {},
        "completions": {},
    }


def test_unknown_capabilities_pass_and_are_merged() -> None:
    one = identity({"extensions": {"io.a/x": {"v": 1}}, "novel": {"p": True}})
    two = identity({"extensions": {"io.a/x": {"v": 2}, "io.b/y": {}}, "experimental": {"e": {}}})
    assert union(one, two) == {
        "extensions": {"io.a/x": {"v": 1}, "io.b/y": {}},
        "novel": {"p": True},
        "experimental": {"e": {}},
    }


EXTENDED: Final[dict[str, object]] = {"io.modelcontextprotocol/tasks": {}, "io.a/x": {}}


TASKED: Final[dict[str, object]] = {"tasks": {"list": {}}, "extensions": EXTENDED}


@pytest.mark.parametrize(
    ("version", "client", "kept"),
    [
        (V2025_11_25, V2025_11_25, {"tasks": {"list": {}}, "extensions": {"io.a/x": {}}}),
        (V2025_11_25, V2025_06_18, {"extensions": {"io.a/x": {}}}),
        (V2025_11_25, V2026_07_28, {"extensions": {"io.a/x": {}}}),
        (V2026_07_28, V2026_07_28, {"extensions": EXTENDED}),
        (V2026_07_28, V2025_11_25, {"extensions": {"io.a/x": {}}}),
        (V2025_06_18, V2025_06_18, {"extensions": {"io.a/x": {}}}),
    ],
)
def test_tasks_are_shown_to_clients_of_their_own_kind_alone(version: str, client: str, kept: object) -> None:
    assert union(relayed(identity(TASKED, version=version), client, owned=True)) == kept


def test_extensions_are_shown_where_the_upstream_hears_what_the_client_declares() -> None:
    handshaken, stateless = identity(TASKED, version=V2025_06_18), identity(TASKED, version=V2026_07_28)
    assert union(relayed(handshaken, V2025_06_18, owned=False)) == {}
    assert union(relayed(handshaken, V2025_06_18, owned=True)) == {"extensions": {"io.a/x": {}}}
    assert union(relayed(stateless, V2025_06_18, owned=False)) == {"extensions": {"io.a/x": {}}}


def test_a_handshake_settles_on_the_extensions_that_both_sides_declare() -> None:
    offered: dict[str, Raw] = {"tools": raw({}), "extensions": raw({"io.a/x": {}, "io.b/y": {}})}
    declared = {"extensions": raw({"io.b/y": {}, "io.c/z": {}})}
    old, new = (Caller(ANONYMOUS, version, declared) for version in (V2025_11_25, V2026_07_28))
    assert agreed_extensions(offered, old) == {"tools": raw({}), "extensions": raw({"io.b/y": {}})}
    assert agreed_extensions(offered, new) == offered
    assert agreed_extensions(offered, Caller(ANONYMOUS, V2025_11_25)) == {"tools": raw({})}


def test_malformed_capabilities_are_left_out() -> None:
    assert union(identity({"tools": [], "prompts": {}})) == {"prompts": {"listChanged": True}}


def test_completion_of_the_first_revision_has_no_capability_and_is_offered() -> None:
    assert union(identity({"prompts": {}}, version=V2024_11_05)) == {
        "prompts": {"listChanged": True},
        "completions": {},
    }


@pytest.mark.parametrize(
    ("upstreams", "left"),
    [
        (["a"], {**KNOWN, "io.x/novel": {}}),
        (["a", "b"], KNOWN),
    ],
)
def test_r79_an_extension_is_offered_only_where_it_works(upstreams: list[str], left: dict[str, object]) -> None:
    """One that the gateway does not know, with one upstream alone."""
    offered: dict[str, object] = {**KNOWN, "io.x/novel": {}}
    assert offered_by(dict.fromkeys(upstreams, offered))["extensions"] == left


def offered_by(extensions: Mapping[str, object]) -> dict[str, object]:
    """The capabilities of an endpoint whose upstreams declare these extensions and nothing else."""
    layout = layouts(settings_of({name: {} for name in extensions}).upstreams, 64)[""]
    identities = {name: identity({"extensions": declared}) for name, declared in extensions.items()}
    found: dict[str, object] = msgspec.json.decode(raw(merge(layout, identities, {}).capabilities))
    return found


def test_skills_are_offered_with_the_resources_that_they_are_made_of() -> None:
    assert offered_by({"a": {SKILLS: {"directoryRead": True}}, "b": {}}) == {
        "extensions": {SKILLS: {"directoryRead": True}},
        "resources": {"listChanged": True},
    }


def test_directories_are_offered_where_every_upstream_with_skills_has_them() -> None:
    read = {SKILLS: {"directoryRead": True}}
    assert offered_by({"a": read, "b": read})["extensions"] == read
    assert offered_by({"a": read, "b": {SKILLS: {}}})["extensions"] == {SKILLS: {}}


def test_skills_that_are_declared_in_a_malformed_way_are_not_offered() -> None:
    assert offered_by({"a": {SKILLS: True}}) == {}


def test_skills_reach_every_client_whatever_it_declares() -> None:
    """The extension has no declaration of clients, and so needs no link of the client's own."""
    declaring = identity({"extensions": {SKILLS: {}, "io.x/novel": {}}})
    passing = relayed(declaring, V2025_11_25, owned=False).capabilities
    assert msgspec.json.decode(passing["extensions"]) == {SKILLS: {}}
    assert msgspec.json.decode(agreed_extensions(passing, Caller(ANONYMOUS, V2025_11_25))["extensions"]) == {SKILLS: {}}
