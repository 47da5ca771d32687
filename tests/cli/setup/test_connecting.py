"""`mcproxy connect` as a user runs it: previews, backups, and a way back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mcproxy.cli.commands import main
from mcproxy.configuration.hosts.locations import HOSTS, Machine
from tests.configuration.hosts.examples import EXAMPLES, lay_out

ORIGINAL = '{\n  // mine\n  "mcpServers": {\n    "gh": {"env": {"TOKEN": "ghp_secret"}},\n  }\n}\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, in whose folder `work` is a configuration."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "mcproxy.yaml").write_text("proxy: {port: 0}\nmcpServers: {}\n")
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "APPDATA", "MCPROXY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def cursor(home: Path) -> Path:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(ORIGINAL)
    return path


def code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


@pytest.mark.parametrize("name", HOSTS)
def test_each_host_is_connected_from_an_empty_home_and_left_as_it_was(home: Path, name: str) -> None:
    before = sorted(home.rglob("*"))
    assert code("connect", name, "--yes") == 0
    path = Machine.this().user_file(HOSTS[name])
    assert "serve" in path.read_text()
    assert str(home / "work" / "mcproxy.yaml") in path.read_text(), "absolute: a host starts it from anywhere"
    assert code("connect", name, "--undo", "--yes") == 0
    assert [path for path in sorted(home.rglob("*")) if path.is_file()] == [path for path in before if path.is_file()]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_documented_file_of_each_host_is_as_it_was_to_the_byte_after_undo(
    home: Path, name: str, ending: bytes
) -> None:
    example = lay_out(name, home)
    example.write_bytes(example.read_bytes().replace(b"\n", ending))
    example.chmod(0o640)
    before = {path: (path.read_bytes(), path.stat().st_mode) for path in home.rglob("*") if path.is_file()}
    assert code("connect", name, "--yes") == 0
    path = Machine.this().user_file(HOSTS[name])
    assert b"mcproxy.yaml" in path.read_bytes()
    assert code("connect", name, "--undo", "--yes") == 0
    after = {path: (path.read_bytes(), path.stat().st_mode) for path in home.rglob("*") if path.is_file()}
    assert after == before


def test_a_file_is_as_it_was_to_the_byte_after_undo(cursor: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cursor.chmod(0o640)
    assert code("connect", "cursor", "--yes") == 0
    assert cursor.read_text() != ORIGINAL
    assert code("connect", "cursor", "--undo", "--yes") == 0
    assert cursor.read_text() == ORIGINAL
    assert cursor.stat().st_mode & 0o777 == 0o640
    assert "ghp_secret" not in "".join(capsys.readouterr()), "the preview shows what changes, and no neighbour"


@pytest.mark.parametrize("ending", ["", ","])
def test_the_preview_shows_no_neighbour_that_only_gets_a_comma_or_loses_it(
    cursor: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    neighbour = f'"gh": {{"env": {{"TOKEN": "ghp_secret"}}}}{ending}'
    cursor.write_text('{"mcpServers": {\n' + neighbour + "\n}}\n")
    assert code("connect", "cursor", "--yes") == 0
    assert code("connect", "cursor", "--undo", "--yes") == 0
    told = capsys.readouterr()
    assert '+    "mcproxy": {' in told.out
    assert '-    "mcproxy": {' in told.out
    assert "ghp_secret" not in told.out + told.err


def test_the_record_of_a_change_is_for_its_owner_alone(home: Path, cursor: Path) -> None:
    assert code("connect", "cursor", "--yes") == 0
    (record,) = (home / ".local" / "state" / "mcproxy" / "connections").iterdir()
    assert record.stat().st_mode & 0o077 == 0, "it holds the file as it was, with the tokens in it"


def test_undo_keeps_what_was_written_into_the_file_since(cursor: Path) -> None:
    assert code("connect", "cursor", "--yes") == 0
    cursor.write_text(cursor.read_text() + "// later\n")
    assert code("connect", "cursor", "--undo", "--yes") == 0
    assert cursor.read_text() == ORIGINAL + "// later\n"


def test_connecting_twice_changes_nothing_and_other_options_replace_the_entry(cursor: Path) -> None:
    assert code("connect", "cursor", "--yes") == 0
    first = cursor.read_text()
    assert code("connect", "cursor", "--yes") == 0
    assert cursor.read_text() == first
    assert code("connect", "cursor", "--yes", "--url", "http://127.0.0.1:9/mcp") == 0
    assert "http://127.0.0.1:9/mcp" in cursor.read_text()
    assert "serve" not in cursor.read_text()
    assert code("connect", "cursor", "--undo", "--yes") == 0
    assert cursor.read_text() == ORIGINAL


def test_an_entry_that_was_changed_by_hand_is_told_and_one_that_was_taken_out_is_made_again(
    cursor: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code("connect", "cursor", "--yes", "--url", "http://127.0.0.1:8/mcp") == 0
    cursor.write_text(cursor.read_text().replace(":8/mcp", ":7/mcp"))
    assert code("connect", "cursor", "--yes", "--url", "http://127.0.0.1:9/mcp") == 2
    assert "was changed since: remove `mcproxy` by hand" in capsys.readouterr().err
    cursor.write_text(ORIGINAL)
    assert code("connect", "cursor", "--yes", "--url", "http://127.0.0.1:9/mcp") == 0
    assert "http://127.0.0.1:9/mcp" in cursor.read_text()


def test_what_was_taken_out_by_hand_is_undone_without_a_question(
    cursor: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code("connect", "cursor", "--yes") == 0
    cursor.write_text(ORIGINAL + "// later\n")
    assert code("connect", "cursor", "--undo") == 0
    assert f"{cursor} no longer has mcproxy" in capsys.readouterr().err
    assert cursor.read_text() == ORIGINAL + "// later\n"
    assert code("connect", "cursor", "--undo") == 3


def test_each_of_two_gateways_in_one_file_can_be_taken_out(cursor: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("connect", "cursor", "--yes") == 0
    first = cursor.read_text()
    assert code("connect", "cursor", "--yes", "--name", "other") == 0
    assert "--undo --name other" in capsys.readouterr().err
    assert code("connect", "cursor", "--undo", "--yes") == 2
    assert "has mcproxy and other: choose one with --name" in capsys.readouterr().err
    assert code("connect", "cursor", "--undo", "--yes", "--name", "other") == 0
    assert cursor.read_text() == first
    assert code("connect", "cursor", "--undo", "--yes") == 0
    assert cursor.read_text() == ORIGINAL


def test_what_was_connected_is_not_imported_as_a_server_of_its_own(
    home: Path, cursor: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cursor.write_text('{"mcpServers": {"gh": {"command": "gh"}}}')
    assert code("connect", "cursor", "--yes", "--url", "http://127.0.0.1:8000/mcp") == 0
    capsys.readouterr()
    assert code("import", "cursor") == 0
    told = capsys.readouterr()
    assert ("gh:" in told.out, "mcproxy:" in told.out) == (True, False)
    assert "mcproxy was left out: it is this gateway" in told.err


def test_nothing_is_written_without_consent(cursor: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("connect", "cursor", "--dry-run") == 0
    assert '+    "mcproxy"' in capsys.readouterr().out
    assert code("connect", "cursor") == 2, "no terminal to ask at"
    assert "--yes" in capsys.readouterr().err
    assert cursor.read_text() == ORIGINAL


def test_a_symbolic_link_stays_one(home: Path, cursor: Path) -> None:
    dotfiles = home / "dotfiles.json"
    cursor.rename(dotfiles)
    cursor.symlink_to(dotfiles)
    assert code("connect", "cursor", "--yes") == 0
    assert cursor.is_symlink()
    assert "mcproxy" in dotfiles.read_text()


def test_the_host_starts_the_gateway_with_this_path(home: Path, cursor: Path) -> None:
    assert code("connect", "cursor", "--yes") == 0
    text = "\n".join(line for line in cursor.read_text().splitlines() if "//" not in line)
    server = json.loads(text.replace("},\n  }", "}\n  }"))["mcpServers"]["mcproxy"]
    assert server["env"] == {"PATH": os.environ["PATH"]}
    assert os.path.isabs(server["command"])


def test_a_gateway_with_keys_says_which_variable_the_host_needs(
    home: Path, cursor: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = "access: {authentication: {keys: {me: [{sha256: %s}]}}}\n" % ("ab" * 32)
    (home / "work" / "mcproxy.yaml").write_text("mcpServers: {}\n" + keys)
    assert code("connect", "cursor", "--yes", "--url", "http://127.0.0.1:9/mcp") == 0
    assert '"Authorization": "Bearer ${env:MCPROXY_KEY}"' in cursor.read_text()
    assert "mcproxy keys add" in capsys.readouterr().err


def test_a_project_of_a_host_is_connected_alone(home: Path) -> None:
    project = home / "project"
    project.mkdir()
    assert code("connect", "claude-code", "--project", str(project), "--yes") == 0
    assert "mcproxy" in (project / ".mcp.json").read_text()
    assert not (home / ".claude.json").exists()


@pytest.mark.parametrize(
    ("arguments", "expected", "sentence"),
    [
        (["notepad"], 2, "is no host that mcproxy knows: antigravity"),
        (["curser"], 2, "curser: is no host that mcproxy knows; did you mean 'cursor'?"),
        (["claude-desktop", "--url", "http://x/mcp"], 2, "only starts programs"),
        (["cursor", "--undo"], 3, "nothing to undo"),
        (["claude-desktop", "--project", "."], 2, "has no file of a project"),
    ],
)
def test_what_cannot_be_done_is_said(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: int, sentence: str
) -> None:
    assert code("connect", *arguments) == expected
    assert sentence in capsys.readouterr().err


def test_a_file_that_is_no_json_is_left_alone(cursor: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cursor.write_text('{"mcpServers": ')
    assert code("connect", "cursor", "--yes") == 2
    assert "mcp.json:1:" in capsys.readouterr().err
    assert cursor.read_text() == '{"mcpServers": '
