"""`mcproxy import` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcproxy.cli.commands import main
from mcproxy.cli.setup.importing import import_summary
from mcproxy.configuration.hosts.importing import Imported
from mcproxy.configuration.loading import load

SECRET = "ghp_" + "a1B2c3D4e5" * 3


@pytest.fixture
def host(tmp_path: Path) -> Path:
    path = tmp_path / "mcp.json"
    server = {"command": "x", "env": {"GITHUB_TOKEN": SECRET}, "args": ["${input:team}"]}
    path.write_text(json.dumps({"servers": {"gh": server}}))
    return path


def code(*arguments: str | Path) -> object:
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code


def test_the_file_that_is_written_works_at_once_with_its_secrets_beside_it(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, env_file = tmp_path / "mcproxy.yaml", tmp_path / ".env"
    env_file.write_text("OTHER=1")
    env_file.chmod(0o600)
    assert code("import", host, "-o", output) == 0
    told = "".join(capsys.readouterr())
    assert SECRET not in told + output.read_text()
    assert "MCPROXY_INPUT_TEAM  (the input team)" in told, "what only a person knows is asked for"
    assert "GITHUB_TOKEN" not in told.partition("set these variables")[2]
    assert env_file.read_text() == f'OTHER=1\nMCPROXY_GH_GITHUB_TOKEN="{SECRET}"\n'
    assert load(output, {"MCPROXY_INPUT_TEAM": "us"}).upstreams[0].env == {"GITHUB_TOKEN": SECRET}
    assert code("import", host, "-o", output) == 2, "a file that exists is never overwritten"
    assert "is there already: name a new file" in capsys.readouterr().err


def test_to_stdout_the_variables_are_named_and_nothing_is_written(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    assert code("import", host) == 0
    told = capsys.readouterr()
    assert "mcpServers:" in told.out
    assert "GITHUB_TOKEN  (gh: env.GITHUB_TOKEN)" in told.err
    assert SECRET not in told.out + told.err
    assert sorted(tmp_path.iterdir()) == before


def test_a_server_that_wants_a_login_comes_with_the_command_for_it() -> None:
    servers: dict[str, dict[str, object]] = {"a b": {"url": "https://a", "oauth": {}}, "kid": {"command": "x"}}
    said = import_summary(Imported(servers=servers), None)
    assert said[-1] == "  mcproxy login 'a b'"


def test_the_folder_of_the_new_file_is_made(host: Path, tmp_path: Path) -> None:
    assert code("import", host, "-o", tmp_path / "new" / "folder" / "mcproxy.yaml") == 0
    assert (tmp_path / "new" / "folder" / ".env").exists()


def test_a_source_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert code("import", "/no/such/file.json") == 2
    assert "/no/such/file.json" in capsys.readouterr().err
