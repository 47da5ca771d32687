"""What servers say that they tell of."""

from __future__ import annotations

import pytest

from mcproxy.protocol.capabilities import (
    is_of_extension,
    lacks,
    lists,
    reports_updates,
    tells_changes,
    unknown_extensions,
)
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import METHODS, SKILLS, Kind


@pytest.mark.parametrize("said", [{}, {"tools": {}}, {"tools": {"listChanged": False}}, {"tools": []}, {"tools": None}])
def test_a_malformed_announcement_of_changes_counts_as_none(said: dict[str, object]) -> None:
    assert not tells_changes({name: raw(value) for name, value in said.items()}, "tools")


def test_each_list_is_told_of_by_its_own_capability() -> None:
    capabilities = {"tools": raw({"listChanged": True}), "resources": raw({"subscribe": True})}
    assert tells_changes(capabilities, "tools")
    assert not tells_changes(capabilities, "resources")
    assert reports_updates(capabilities)
    assert not reports_updates({"resources": raw({"listChanged": True})})
    assert not reports_updates({"resources": raw("subscribe")})


def test_a_list_is_offered_by_its_capability_and_that_of_an_extension_by_the_extension() -> None:
    resources = {"resources": raw({})}
    skills = {**resources, "extensions": raw({SKILLS: {}})}
    assert [kind for kind in Kind if lists(resources, kind)] == [Kind.RESOURCES, Kind.TEMPLATES]
    assert [kind for kind in Kind if lists(skills, kind)] == [Kind.RESOURCES, Kind.TEMPLATES, Kind.SKILLS]
    assert not lists({**resources, "extensions": raw({SKILLS: True})}, Kind.SKILLS)


def test_a_method_needs_its_capability_its_extension_and_a_setting_of_that() -> None:
    offered = {"resources": raw({})}
    directory = METHODS["resources/directory/read"]
    assert lacks({}, METHODS["resources/read"]) == "resources"
    assert lacks(offered, METHODS["resources/read"]) is None
    assert lacks(offered, METHODS["skills/get"]) == SKILLS
    offered = {**offered, "extensions": raw({SKILLS: {}})}
    assert lacks(offered, METHODS["skills/get"]) is None
    assert lacks(offered, directory) == f"directoryRead of {SKILLS}"
    offered = {**offered, "extensions": raw({SKILLS: {"directoryRead": True}})}
    assert lacks(offered, directory) is None


def test_extensions_are_unknown_but_for_those_that_the_gateway_has() -> None:
    known: dict[str, object] = {f"io.modelcontextprotocol/{name}": {} for name in ("tasks", "ui", "skills")}
    assert unknown_extensions({"extensions": raw({**known, "io.x/novel": {}})}) == {"io.x/novel"}
    assert unknown_extensions({"extensions": raw([])}) == frozenset()


@pytest.mark.parametrize("method", ["novel/do", "notifications/novel", "x" * 128])
def test_a_name_that_mcp_does_not_have_may_be_of_an_extension(method: str) -> None:
    assert is_of_extension(method)


@pytest.mark.parametrize(
    "method",
    ["", "x" * 129, "tools/call", "skills/get", "roots/list", "notifications/cancelled", "notifications/tasks"],
)
def test_a_name_of_mcp_and_one_that_is_too_long_is_not_of_an_unknown_extension(method: str) -> None:
    assert not is_of_extension(method)
