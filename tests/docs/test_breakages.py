"""The mistakes on the page about mending a configuration: each is made, and its first line is the one on the page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from mcproxy.cli.commands import main
from tests.docs.diagrams import ROOT
from tests.docs.examples import ANYTHING
from tests.fakes.certificates import Authority

PAGE = (ROOT / "docs" / "how-to" / "mend-a-configuration.md").read_text()
SECTION = re.compile(
    r"^## ([^\n]+)\n\n```(yaml|json) other\n(.*?)^```\n\n```text\n([^\n]+)\n```$", re.DOTALL | re.MULTILINE
)
FIRST_LINE = re.compile(r"(warning: )?mcproxy\.(yaml|json):\d+:\d+: ([\w.]+: |is not valid )\S")


@dataclass(frozen=True)
class Breakage:
    title: str
    suffix: str
    text: str
    line: str


BREAKAGES = [Breakage(*found) for found in SECTION.findall(PAGE)]


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.title)
def test_r50_a_mistake_is_told_with_file_line_key_cause_and_remedy(
    breakage: Breakage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("TOKEN", raising=False)
    authority = Authority(tmp_path)
    for name in ("server", "other"):
        authority.issue(name)
    file = Path(f"mcproxy.{breakage.suffix}")
    file.write_text(breakage.text)
    with pytest.raises(SystemExit) as caught:
        main(["check", "-c", str(file)])
    first = capsys.readouterr().err.splitlines()[0]
    assert first.replace(str(tmp_path), ANYTHING) == breakage.line
    assert FIRST_LINE.match(first)
    assert caught.value.code == (0 if first.startswith("warning: ") else 2)


def test_the_page_has_twenty_mistakes_and_more() -> None:
    assert len(BREAKAGES) == len(re.findall(r"^## ", PAGE, re.MULTILINE)) - 1 >= 20
