"""What a shell is offered for an argument."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcproxy.cli.commands import commands


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("mcproxy connect cl", ["claude-code", "claude-desktop", "cline"]),
        ("mcproxy import win", ["windsurf"]),
        ("mcproxy loglevel ", ["debug", "info", "warning", "error", "critical"]),
        ("mcproxy restart ", ["git", "github", "time"]),
        ("mcproxy logs gith", ["github"]),
        ("mcproxy disable t", ["time"]),
        ("mcproxy login g", ["git", "github"]),
        ("mcproxy list r", ["resources"]),
        ("mcproxy add --no", ["--no-connect"]),
    ],
)
def test_a_shell_is_offered_what_there_is(
    line: str, offered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mcproxy.yaml").write_text("mcpServers: {git: {}, github: {url: '${UNSET}'}, time: {command: x}}\n")
    assert completed(line, tmp_path, monkeypatch, capsys) == offered


def test_a_configuration_that_cannot_be_read_offers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mcproxy.yaml").write_text("mcpServers: [")
    assert completed("mcproxy restart ", tmp_path, monkeypatch, capsys) == []


def completed(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """What the command prints where bash asks it to complete the last word of a line."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("_MCPROXY_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    with pytest.raises(SystemExit):
        commands(prog_name="mcproxy")
    return capsys.readouterr().out.split()
