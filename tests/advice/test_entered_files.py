"""The ways that the architecture page tells are those that messages go, as far as a trace of a real gateway shows.

On a busy machine a file is now and then entered too late to be traced, or by a timer: a page is right if it names each
file that all repetitions entered, and none that no repetition entered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.docs.diagrams import ROOT
from tests.docs.entered_files import REPETITIONS
from tests.docs.generated import BEFORE, BLOCK, entered_files

PAGE = (ROOT / "docs/architecture.md").read_text()


def files(table: str) -> Iterator[str]:
    """Those of a table of folders and modules, as paths below the package."""
    for folder, modules in re.findall(r"^\| `([\w/]+)` \| (.*) \|$", table, re.MULTILINE):
        for module in re.findall(r"`(\w+)`", modules):
            yield f"{module}.py" if folder == "mcproxy" else f"{folder}/{module}.py"


def test_the_files_that_each_message_enters_are_those_that_the_page_names() -> None:
    blocks = {(found[2], found[3] or ""): found[4].strip() for found in BLOCK.finditer(PAGE)}
    told = {case: set(files(blocks["way", case])) for case in BEFORE}
    measured = entered_files()
    assert measured.keys() == told.keys()
    for case, found in measured.items():
        always = {file for file, times in found.items() if times == REPETITIONS}
        assert (case, always - told[case]) == (case, set()), "run `make docs`"
        assert (case, told[case] - found.keys()) == (case, set()), "run `make docs`"


def test_the_page_counts_the_files_that_it_names() -> None:
    blocks = {(found[2], found[3] or ""): found[4].strip() for found in BLOCK.finditer(PAGE)}
    for case, before in BEFORE.items():
        number = len(list(files(blocks["way", case])))
        assert blocks["way", case].startswith(f"{number} files:")
        assert f"| {case} | {before} | {number} |" in blocks["ways", ""].splitlines()
