"""Where a configuration file is found, and files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcproxy.configuration.loading import find, read
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
        read(tmp_path / "none.yaml", {})
    (tmp_path / "latin.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        read(tmp_path / "latin.yaml", {})
