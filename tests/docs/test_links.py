"""Links of the documents lead somewhere: to a file that exists, and to a heading that it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.docs.diagrams import ROOT
from tests.docs.examples import FENCE
from tests.docs.generated import anchor, pages

OTHER_PAGES = [ROOT / "deploy/THREATS.md", ROOT / "deploy/prometheus/METRICS.md"]
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
CODE = re.compile(r"`[^`\n]+`")
NAMED = re.compile(
    r"`((?:mcproxy|tests|docs|deploy|config)/[\w./-]*\w(?:/|\.\w+)|(?:[\w-]+/)+[\w-]+\.py|Makefile|pyproject\.toml)`"
)
"""What is written as the name of a file or folder of ours, from the root or, modules, from the package."""


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def links(page: Path) -> Iterator[str]:
    for found in LINK.finditer(CODE.sub(lambda code: "`" * len(code[0]), prose(page))):
        if "://" not in found[1] and not found[1].startswith("mailto:"):
            yield found[1]


def anchors(page: Path) -> set[str]:
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)}


@pytest.mark.parametrize("page", [*pages(), *OTHER_PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for link in links(page):
        path, _, fragment = link.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if fragment:
            assert fragment in anchors(target), link


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = NAMED.findall(prose(page))
    below = (ROOT, ROOT / "mcproxy", ROOT / "tests")
    assert [name for name in named if not any((folder / name).exists() for folder in below)] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, fresh = set[Path](), {ROOT / "README.md"}
    while fresh:
        reached |= fresh
        found = {(page.parent / link.partition("#")[0]).resolve() for page in fresh for link in links(page)}
        fresh = {page for page in found if page.suffix == ".md"} - reached
    assert [page.relative_to(ROOT).as_posix() for page in pages() if page not in reached] == []


@pytest.mark.parametrize("index", ["README.md", "docs/README.md"])
def test_an_index_of_the_documents_links_each_of_them(index: str) -> None:
    page = ROOT / index
    linked = {(page.parent / link.partition("#")[0]).resolve() for link in links(page)}
    wanted = {found for found in pages() if found.is_relative_to(ROOT / "docs") and not found.name.startswith("0")}
    assert [found.relative_to(ROOT).as_posix() for found in sorted(wanted - linked - {page})] == []
