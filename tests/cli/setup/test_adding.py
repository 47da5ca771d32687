"""`mcproxy add`, `remove`, `enable` and `disable` as a user runs them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mcproxy.cli.commands import main
from mcproxy.configuration.loading import load

ROOT = Path(__file__).parents[3]
TEXT = "# mine\nproxy: {port: 0}  # any\nmcpServers:\n  # the first\n  a: {command: x}\n"
TOKEN = "ghp_" + "a1B2c3D4e5" * 3


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mcproxy.yaml"
    path.write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "MCPROXY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return path


def code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


def test_a_server_is_connected_to_shown_and_written_behind_the_others(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "tests.system.odd_server"]
    assert code("add", "odd", "--env", f"PYTHONPATH={ROOT}", "--yes", "--", *command) == 0
    out = capsys.readouterr().out
    assert "odd\tready\tstdio" in out
    assert config.read_text().startswith(TEXT), "every comment stays"
    assert [spec.name for spec in load(config, {}).upstreams] == ["a", "odd"]


def test_a_server_that_does_not_answer_is_not_written_unless_it_is_meant(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code("add", "gone", "--yes", "--", "/no/such/command") == 1
    assert "--no-connect" in capsys.readouterr().err
    assert config.read_text() == TEXT
    assert code("add", "gone", "--yes", "--no-connect", "--", "/no/such/command", "-y", "x") == 0
    assert load(config, {}).upstreams[1].args == ("-y", "x")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["npx", "-y", "package"], True),
        (["python3", "server.py", "--root"], True),
        (["python3", "server.py", "--dry-rum"], False),  # a misspelt option of ours
        (["python3", "server.py", "--env"], False),
    ],
)
def test_an_option_within_the_servers_command_is_refused_and_told_of_dashes(
    config: Path, capsys: pytest.CaptureFixture[str], words: list[str], hint: bool
) -> None:
    assert code("add", "new", "--no-connect", *words) == 2
    assert ("mcproxy add NAME -- COMMAND --option" in capsys.readouterr().err) == hint
    assert config.read_text() == TEXT


def test_a_command_that_names_a_file_here_is_run_here_wherever_the_gateway_is_started(config: Path) -> None:
    (config.parent / "server.py").write_text("")
    assert code("add", "here", "--yes", "--no-connect", "--", "python3", "server.py") == 0
    assert code("add", "anywhere", "--yes", "--no-connect", "--", "python3", str(config.parent / "server.py")) == 0
    _, here, anywhere = load(config, {}).upstreams
    assert (here.cwd, anywhere.cwd) == (str(config.parent), None)


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("localhost:8000/mcp", "is a URL without its scheme: write http://localhost:8000/mcp"),
        ("nowhere.mcpb", "nowhere.mcpb: is not there: correct the path"),
        ("host.json", "host.json: is no server.json of the registry"),
        ("mailto://x", "should be an http or https URL"),
    ],
)
def test_a_target_that_is_none_is_told_by_what_it_is(
    config: Path, capsys: pytest.CaptureFixture[str], target: str, sentence: str
) -> None:
    (config.parent / "host.json").write_text('{"mcpServers": {}}')
    assert code("add", "new", "--no-connect", "--yes", target) == 2
    assert sentence in capsys.readouterr().err
    assert config.read_text() == TEXT


def test_a_command_line_in_quotes_is_warned_of(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("add", "new", "--no-connect", "--dry-run", "npx -y package") == 0
    assert "is a whole command line, and no shell reads it: write command: npx" in capsys.readouterr().err


def test_options_before_and_behind_the_whole_command_are_of_add(config: Path) -> None:
    assert code("add", "--no-connect", "new", "--env", "A=b", "python3", "server.py", "--yes") == 0
    assert load(config, {}).upstreams[1].args == ("server.py",)


def test_a_secret_of_the_command_line_goes_into_env(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = ("https://x.example/mcp", "--header", f"Authorization: Bearer {TOKEN}", "--yes", "--no-connect")
    assert code("add", "web", *url) == 0
    assert "Bearer ${MCPROXY_WEB_AUTHORIZATION}" in config.read_text()
    env_file = config.parent / ".env"
    assert env_file.stat().st_mode & 0o077 == 0
    assert TOKEN not in config.read_text() + "".join(capsys.readouterr())
    assert load(config, {}).upstreams[1].headers == {"Authorization": f"Bearer {TOKEN}"}


def test_the_first_server_makes_the_file(config: Path, tmp_path: Path) -> None:
    config.unlink()
    assert code("add", "a", "--yes", "--no-connect", "https://x.example/mcp") == 0
    path = tmp_path / ".config" / "mcproxy" / "mcproxy.yaml"
    assert load(path, {}).upstreams[0].url == "https://x.example/mcp"


def test_what_would_not_be_valid_is_not_written(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("add", "a", "--yes", "--no-connect", "https://x.example/mcp") == 2
    assert "is there already" in capsys.readouterr().err
    assert code("add", "b", "--yes", "--no-connect", "https://x.example/mcp", "--env", "A=b") == 2
    assert code("add", "b", "--yes", "--no-connect", "--header", "A: b", "--", "cmd") == 2
    assert code("add", "b", "--yes", "--no-connect", "ftp://x.example/mcp") == 2
    assert config.read_text() == TEXT


def test_a_server_is_removed_and_nothing_else(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(TEXT + "  b:\n    command: y\n# end\n")
    assert code("remove", "b", "--yes") == 0
    assert config.read_text() == TEXT + "# end\n"
    assert code("remove", "aa") == 3
    assert "did you mean 'a'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "disabled", "enabled"),
    [
        ("{command: x}", '{command: x, "enabled": false}', "{command: x}"),
        ("{command: x, enabled: true}", "{command: x, enabled: false}", "{command: x}"),
        ("{command: x, disabled: false}", "{command: x, disabled: true}", "{command: x, disabled: false}"),
        ("\n    command: x # mine\n", "\n    command: x # mine\n    enabled: false\n", "\n    command: x # mine\n"),
    ],
)
def test_a_server_is_switched_off_and_on(config: Path, before: str, disabled: str, enabled: str) -> None:
    config.write_text(f"mcpServers:\n  a: {before}")
    assert code("disable", "a") == 0
    assert config.read_text() == f"mcpServers:\n  a: {disabled}"
    assert not load(config, {}).upstreams[0].enabled
    assert code("enable", "a") == 0
    assert load(config, {}).upstreams[0].enabled
    assert config.read_text() == f"mcpServers:\n  a: {enabled}"
    assert code("enable", "z") == 3
