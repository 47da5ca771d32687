"""The ways that the architecture page tells are those that messages go, as far as a trace of a real gateway shows."""

from __future__ import annotations

from tests.docs.diagrams import ROOT
from tests.docs.generated import BEFORE, BLOCK, entered_files, way, ways

PAGE = (ROOT / "docs/architecture.md").read_text()


def test_the_files_that_each_message_enters_are_those_that_the_page_names() -> None:
    told = {(found[2], found[3] or ""): found[4].strip() for found in BLOCK.finditer(PAGE)}
    assert entered_files().keys() == BEFORE.keys()
    assert told["ways", ""] == ways(""), "run `make docs`"
    for case in BEFORE:
        assert told["way", case] == way(case), "run `make docs`"
