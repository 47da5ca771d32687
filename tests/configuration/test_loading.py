"""Where a configuration file is found, and files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcproxy.configuration.loading import find, load_configuration
from mcproxy.configuration.problems import ConfigurationError


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
