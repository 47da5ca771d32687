"""Where hosts keep their files, on each system."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcproxy.configuration.hosts.locations import HOSTS, Machine, host_named

SYSTEMS = [("darwin", "Library/Application Support"), ("linux", ".config"), ("win32", "AppData/Roaming")]


@pytest.mark.parametrize(("platform", "folder"), SYSTEMS)
def test_each_system_keeps_claude_s_file_elsewhere(platform: str, folder: str) -> None:
    host = host_named("claude")
    assert host is not None
    path = Machine({"HOME": "/h"}, platform).user_file(host)
    assert path == Path("/h") / folder / "Claude" / "claude_desktop_config.json"


@pytest.mark.parametrize("platform", ["darwin", "linux", "win32"])
@pytest.mark.parametrize("name", HOSTS)
def test_each_host_has_a_file_of_the_user_s_under_their_home(name: str, platform: str) -> None:
    path = Machine({"HOME": "/h"}, platform).user_file(HOSTS[name])
    assert path.is_relative_to("/h")
    assert path.suffix in {".json", ".toml", ".yaml"}


def test_the_file_of_a_project_comes_last_for_it_is_the_more_specific() -> None:
    files = Machine({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}, "linux").files(HOSTS["vscode"], Path("/p"))
    assert list(map(str, files)) == [
        "/x/Code/User/settings.json",
        "/x/Code/User/mcp.json",
        "/p/.vscode/mcp.json",
    ]


def test_a_host_of_no_name_is_none() -> None:
    assert host_named("notepad") is None
