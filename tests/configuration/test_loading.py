"""Where a configuration file is found, and files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcproxy.configuration.loading import find, load_configuration
from mcproxy.configuration.problems import ConfigurationError
from mcproxy.settings.differences import diff


def test_the_file_is_found_by_variable_then_here_then_in_the_users_tmp_path(tmp_path: Path) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    (home / "mcproxy").mkdir(parents=True)
    here.mkdir()
    environ = {"XDG_CONFIG_HOME": str(home)}
    (home / "mcproxy" / "mcproxy.yaml").touch()
    assert find(environ, here) == home / "mcproxy" / "mcproxy.yaml"
    (here / "mcproxy.json").touch()
    assert find(environ, here) == here / "mcproxy.json"
    assert find({**environ, "MCPROXY_CONFIG": "/else/where.yaml"}, here) == Path("/else/where.yaml")


def test_where_no_file_is_found_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--config or MCPROXY_CONFIG"):
        find({"XDG_CONFIG_HOME": str(tmp_path)}, tmp_path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        load_configuration(tmp_path / "none.yaml", {})
    (tmp_path / "latin.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        load_configuration(tmp_path / "latin.yaml", {})


def test_variables_that_the_environment_lacks_come_from_env_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "mcproxy.yaml").write_text("mcpServers: {a: {command: x, env: {A: '${A}', B: '${B}'}}}")
    env_file = tmp_path / ".env"
    env_file.write_text("A=from the file\nB=from the file\n")
    env_file.chmod(0o600)
    found = load_configuration(tmp_path / "mcproxy.yaml", {"A": "from the environment"})
    assert found.settings.upstreams[0].env == {"A": "from the environment", "B": "from the file"}
    assert {"from the environment", "from the file"} <= found.secrets
    assert env_file in found.files, "a change of it is a change of the configuration"
    assert found.warnings == ()


def test_env_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "mcproxy.yaml").write_text("mcpServers: {}")
    (tmp_path / ".env").write_text("A=b\n")
    (tmp_path / ".env").chmod(0o644)
    (warning,) = load_configuration(tmp_path / "mcproxy.yaml", {}).warnings
    assert "chmod 600" in str(warning)


def test_env_beside_a_host_s_own_file_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a": {"command": "${A}"}}}')
    (tmp_path / ".env").write_text("A=b\n")
    with pytest.raises(ConfigurationError, match="A is not set"):
        load_configuration(tmp_path / "mcp.json", {})


def test_env_that_is_not_text_is_warned_of_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "mcproxy.yaml").write_text("mcpServers: {}")
    (tmp_path / ".env").write_bytes(b"A=\xff")
    (warning,) = load_configuration(tmp_path / "mcproxy.yaml", {}).warnings
    assert "not UTF-8" in str(warning)


FAULTS = {
    "an unset variable": "{command: x, env: {A: '${UNSET}'}}",
    "an unset variable in the URL": "{url: 'https://${UNSET}.example/mcp'}",
    "an unset variable in a header": "{url: 'https://a.example/mcp', headers: {Authorization: 'Bearer ${UNSET}'}}",
    "an unset variable as prefix": "{command: x, prefix: '${UNSET}'}",
    "a missing file": "{command: x, env: {A: '${file:none}'}}",
    "a missing envFile": "{command: x, envFile: none.env}",
    "a missing authority": "{url: 'https://a.example/mcp', tls: {ca: none.pem}}",
    "a command and a url": "{command: x, url: 'https://a.example/mcp'}",
    "a command that is a number": "{command: 5}",
    "a URL that is none": "{url: 'ftp://a.example'}",
}


@pytest.mark.parametrize("server", FAULTS.values(), ids=FAULTS)
def test_a_server_that_cannot_run_costs_only_itself(tmp_path: Path, server: str) -> None:
    path = tmp_path / "mcproxy.yaml"
    path.write_text(f"mcpServers:\n  bad: {server}\n  good: {{command: y}}\n")
    with pytest.raises(ConfigurationError) as refused:
        load_configuration(path, {})
    found = load_configuration(path, {}, lenient=True)
    bad, good = found.settings.upstreams
    assert good.fault is None
    assert bad.fault
    (problem,) = refused.value.problems[:1]
    assert problem.sentence in bad.fault
    assert any(problem.sentence in str(warning) for warning in found.warnings)
    path.write_text(f"proxy: {{strict: true}}\n{path.read_text()}")
    with pytest.raises(ConfigurationError):
        load_configuration(path, {}, lenient=True)


@pytest.mark.parametrize("server", ["{command: x, tols: {}}", "{command: x, tools: {exclude: 5}}"])
def test_a_mistake_in_what_a_server_shows_is_refused(tmp_path: Path, server: str) -> None:
    (tmp_path / "mcproxy.yaml").write_text(f"mcpServers:\n  bad: {server}\n")
    with pytest.raises(ConfigurationError):
        load_configuration(tmp_path / "mcproxy.yaml", {}, lenient=True)


def test_a_line_break_at_the_end_of_a_variable_is_stripped(tmp_path: Path) -> None:
    path = tmp_path / "mcproxy.yaml"
    path.write_text("mcpServers: {a: {url: 'https://a.example/', headers: {X: '${T}', Y: '${E:-none}'}}}")
    (upstream,) = load_configuration(path, {"T": "secret\r\n", "E": "\n"}).settings.upstreams
    assert upstream.headers == {"X": "secret", "Y": "none"}


def test_a_fault_that_is_mended_makes_the_link_anew(tmp_path: Path) -> None:
    path = tmp_path / "mcproxy.yaml"
    path.write_text("mcpServers: {a: {command: '-', env: {A: '${A}'}}}")
    before = load_configuration(path, {}, lenient=True).settings
    assert diff(before, load_configuration(path, {"A": ""}, lenient=True).settings).fresh == {"a"}
