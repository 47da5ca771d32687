from __future__ import annotations

import pytest

from mcproxy.catalog.rewriting import MAX_ITEMS
from mcproxy.catalog.skills import (
    InvalidSkill,
    files_of,
    is_readable,
    joined_settings,
    readable_children,
    withheld_files,
)
from mcproxy.protocol.jsonrpc import first_level, raw
from tests.fakes.upstream import decoded

ROOT = "skill://acme/refunds"
MANIFEST = f"{ROOT}/SKILL.md"
EMAIL = f"{ROOT}/examples/email.md"
OTHER = {"uri": "skill://acme/other/SKILL.md"}


def skill(resources: object) -> object:
    return {"uri": MANIFEST, "frontmatter": {"name": "refunds", "description": "d"}, "resources": resources}


def file(uri: str) -> dict[str, object]:
    return {"uri": uri, "digest": f"sha256:{'0' * 64}", "size": 1}


def test_the_files_of_a_skill_are_its_own_and_those_that_it_lists() -> None:
    assert files_of(raw(skill([file(EMAIL), file(MANIFEST)]))) == (MANIFEST, EMAIL)


def test_of_a_dynamic_skill_one_file_is_known() -> None:
    assert files_of(raw(skill("dynamic"))) == (MANIFEST,)


@pytest.mark.parametrize("resources", [None, "all", {}, 1, ["x"], [{"digest": "x"}], [{"uri": 1}]])
def test_a_skill_whose_files_cannot_be_told_is_invalid(resources: object) -> None:
    with pytest.raises(InvalidSkill, match="neither a list"):
        files_of(raw(skill(resources)))


def test_a_skill_needs_a_uri_and_not_too_many_files() -> None:
    with pytest.raises(InvalidSkill, match="has no uri"):
        files_of(raw({"resources": []}))
    with pytest.raises(InvalidSkill, match=f"more than {MAX_ITEMS} files"):
        files_of(raw(skill([file(f"{ROOT}/{number}") for number in range(MAX_ITEMS + 1)])))


def test_what_an_approved_skill_has_too_is_not_withheld() -> None:
    shared = f"{ROOT}/shared.md"
    refused, approved = raw(skill([file(EMAIL), file(shared)])), raw({**OTHER, "resources": [file(shared)]})
    withheld = withheld_files([refused], [approved])
    assert {EMAIL, MANIFEST} < withheld
    assert shared not in withheld
    assert withheld_files([], [approved]) == frozenset()


def test_a_skill_is_readable_where_all_its_files_are() -> None:
    whole = raw(skill([file(MANIFEST), file(EMAIL)]))
    assert is_readable(whole, {MANIFEST, EMAIL}.__contains__)
    assert not is_readable(whole, {MANIFEST}.__contains__)
    assert not is_readable(whole, {EMAIL}.__contains__)
    assert not is_readable(raw(skill(None)), lambda uri: True)


def test_of_a_directory_the_readable_children_are_left_as_they_came() -> None:
    children: list[object] = [{"uri": MANIFEST, "name": "SKILL.md"}, {"uri": EMAIL}, {"name": "none"}, 1]
    left = readable_children(first_level({"resources": children, "nextCursor": "c"}), {EMAIL}.__contains__)
    assert decoded(left) == {"resources": [{"uri": EMAIL}], "nextCursor": "c"}
    whole = first_level({"resources": [{"uri": EMAIL}]})
    assert readable_children(whole, lambda uri: True) is whole


@pytest.mark.parametrize("result", [{}, {"resources": "x"}])
def test_a_malformed_directory_has_no_children(result: dict[str, object]) -> None:
    assert decoded(readable_children(first_level(result), lambda uri: True)) == {"resources": []}


@pytest.mark.parametrize(
    ("settings", "joined"),
    [
        ([{"directoryRead": True}, {"directoryRead": True}], {"directoryRead": True}),
        ([{"directoryRead": True, "novel": 1}, {}], {"novel": 1}),
        ([{}, {"directoryRead": True}], {}),
    ],
)
def test_directories_can_be_read_where_every_server_lets_it(
    settings: list[dict[str, object]], joined: dict[str, object]
) -> None:
    assert decoded(joined_settings([first_level(each) for each in settings])) == joined
