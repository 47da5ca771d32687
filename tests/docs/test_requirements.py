"""The page of requirements, the tests and the code agree: no number without a requirement, and none left alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.docs.diagrams import ROOT
from tests.docs.generated import TESTS, blocks, by_requirement, names_of_tests

PAGE = (ROOT / "docs/requirements.md").read_text()
COUNT = 90

CITED = re.compile(r"\bR([1-9]\d?)\b")
SOURCES = ("mcproxy/**/*.py", "tests/**/*.py", "config/*.yaml", "deploy/**/*.yaml", "deploy/**/*.md", "docs/**/*.md")


def headings() -> list[int]:
    return [int(number) for number in re.findall(r"^### R(\d+)\. \S", PAGE, re.MULTILINE)]


def held_explicitly() -> dict[int, list[str]]:
    """By number, the tests that the page names beside those that carry it."""
    arguments = (argument.split() for name, argument in blocks(PAGE) if name == "tests")
    return {int(number[1:]): named for number, *named in arguments}


def citations() -> Iterator[tuple[int, str]]:
    """Each requirement that the code or a document cites, and where."""
    for pattern in SOURCES:
        for path in ROOT.glob(pattern):
            if "node_modules" not in path.parts:
                for found in CITED.finditer(path.read_text()):
                    yield int(found[1]), path.relative_to(ROOT).as_posix()


def test_every_requirement_has_a_section_in_order() -> None:
    assert headings() == list(range(1, COUNT + 1))
    assert list(held_explicitly()) == headings()


def test_every_requirement_is_held_by_a_test() -> None:
    held = {number for number in headings() if by_requirement().get(number) or held_explicitly()[number]}
    assert set(headings()) - held == set()


def test_every_number_in_the_name_of_a_test_is_a_requirement() -> None:
    assert by_requirement().keys() <= set(headings())


def test_every_requirement_that_is_cited_is_on_the_page() -> None:
    assert {place for number, place in citations() if number not in headings()} == set()


def test_every_requirement_that_the_package_cites_is_held_by_a_test() -> None:
    held = by_requirement().keys()
    unheld = {(number, place) for number, place in citations() if place.startswith("mcproxy/") and number not in held}
    assert {(number, place) for number, place in unheld if not held_explicitly()[number]} == set()


def test_tests_that_are_named_without_the_number_exist() -> None:
    named = [name.partition("::") for names in held_explicitly().values() for name in names]
    assert [name for file, _, name in named if name not in names_of_tests(TESTS / file)] == []
