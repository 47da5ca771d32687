"""What the documents say is what the code has: generated parts are as generated, and nothing is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.diagrams import ROOT, state_machines
from tests.docs.generated import BLOCKS, blocks, pages, rendered

PAGES = [page for page in pages() if blocks(page.read_text())]
MEASURED = ("way", "ways")
"""The blocks whose making runs a gateway: `test_entered_files.py` holds them."""


def parts(text: str) -> Iterator[str]:
    """A page's lines without those that are measured."""
    measured = False
    for line in text.splitlines():
        begins = re.match(r"<!-- generated: ([\w-]+)", line)
        measured = begins[1] in MEASURED if begins else measured and line != "<!-- end -->"
        if not measured:
            yield line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_generated_parts_of_a_page_are_as_the_code_has_them(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MEASURED:
        monkeypatch.setitem(BLOCKS, name, str)
    text = page.read_text()
    assert list(parts(text)) == list(parts(rendered(text))), "run `make docs`"


def test_every_kind_of_block_stands_in_some_page() -> None:
    assert {name for page in PAGES for name, _ in blocks(page.read_text())} == BLOCKS.keys()


def test_every_state_machine_is_drawn() -> None:
    page = (ROOT / "docs/explanation/state-machines.md").read_text()
    assert [module for module in state_machines() if f"`{module.replace('.', '/')}.py`" not in page] == []
