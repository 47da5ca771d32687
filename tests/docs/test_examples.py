"""The examples of the documents: configurations are valid, and what can run does, and prints what the page shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mcproxy.configuration.loading import load
from tests.docs.diagrams import ROOT
from tests.docs.examples import commands, fences, files_before, is_as_shown, shell
from tests.docs.generated import pages

PAGES = [page.relative_to(ROOT).as_posix() for page in pages()]
ENVIRONMENT = {
    "GITHUB_TOKEN": "a",
    "EMBEDDINGS_KEY": "any",
    "MCPROXY_SECRET": "sixteen characters",
    "MCPROXY_OLD_SECRET": "sixteen characters that were before",
    "TRACKER_CLIENT_ID": "a",
    "TRACKER_CLIENT_SECRET": "a",
}
KEY = "9f2c" * 16
"""In place of a hash that a page cuts short."""


@pytest.mark.parametrize("page", PAGES)
def test_the_configurations_of_a_page_are_valid(page: str, tmp_path: Path) -> None:
    for fence in fences((ROOT / page).read_text()):
        if fence.language == "yaml" and (fence.file or "mcproxy.yaml").endswith("mcproxy.yaml") and not fence.note:
            file = tmp_path / "mcproxy.yaml"
            file.write_text(fence.text.replace("9f2c…", KEY))
            try:
                load(file, ENVIRONMENT)
            except Exception as error:
                raise AssertionError(f"{page}:{fence.line}: {error}") from error


@pytest.mark.parametrize("page", [page for page in PAGES if any(f.runs for f in fences((ROOT / page).read_text()))])
@pytest.mark.skipif(shutil.which("curl") is None, reason="pages ask gateways by curl")
def test_the_commands_of_a_page_print_what_it_shows(page: str, tmp_path: Path) -> None:
    with shell(tmp_path) as running:
        for fence in files_before(ROOT / page):
            running.write(str(fence.file), fence.text)
        for fence in fences((ROOT / page).read_text()):
            if fence.file is not None:
                running.write(fence.file, fence.text)
            for command in commands(fence) if fence.runs else ():
                printed = running.run(command)
                place = f"{page}:{command.line}: {command.text}"
                assert is_as_shown(command.printed, printed), f"{place}\nshows\n{command.printed}\nprints\n{printed}"


def test_what_is_shown_may_leave_out_lines_and_parts_of_lines() -> None:
    assert is_as_shown("one\n…\nfour", "one\ntwo\nthree\nfour\n")
    assert is_as_shown("took … s", "took 0.12 s\n")
    assert is_as_shown("", "")
    assert not is_as_shown("one\nfour", "one\ntwo\nfour\n")
    assert not is_as_shown("took … s", "took\n")
    assert not is_as_shown("", "anything\n")


def test_fences_say_what_they_are() -> None:
    page = "```yaml\n# mcproxy.yaml\na: 1\n```\ntext\n  ```console not run: why\n  $ a \\\n  > b\n  out\n  ```\n"
    file, console = fences(page)
    assert (file.file, file.runs, file.line) == ("mcproxy.yaml", False, 2)
    assert (console.runs, console.note) == (False, "not run: why")
    (command,) = commands(console)
    assert (command.text, command.printed, command.line) == ("a b", "out", 7)
