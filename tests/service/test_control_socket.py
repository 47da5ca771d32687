"""The sockets by which commands find gateways that run."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcproxy.service.control_socket import bound, live_sockets, socket_folder


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as short:  # sockets have short paths
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        yield


def test_a_gateway_is_found_by_its_configuration_for_as_long_as_it_runs(tmp_path: Path) -> None:
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    with bound(one) as listener:
        assert listener is not None
        (path,) = live_sockets(one)
        assert path.stat().st_mode & 0o077 == 0
        assert path.parent.stat().st_mode & 0o077 == 0
        assert live_sockets(other) == []
    assert live_sockets(one) == []
    assert list(socket_folder().iterdir()) == []


def test_another_name_of_the_same_file_is_the_same_configuration(tmp_path: Path) -> None:
    one = tmp_path / "one.yaml"
    one.touch()
    (tmp_path / "link.yaml").symlink_to(one)
    with bound(one):
        assert len(live_sockets(tmp_path / "link.yaml")) == 1


def test_what_a_killed_gateway_left_behind_is_removed(tmp_path: Path) -> None:
    with bound(tmp_path / "one.yaml"):
        (path,) = live_sockets(tmp_path / "one.yaml")
        left_behind = path.with_name(path.name.split(".")[0] + ".1.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
            dead.bind(str(left_behind))
        assert live_sockets(tmp_path / "one.yaml") == [path]
        assert not left_behind.exists()


def test_a_folder_that_others_can_enter_holds_no_socket(tmp_path: Path) -> None:
    socket_folder().mkdir(mode=0o755)
    socket_folder().chmod(0o755)
    with bound(tmp_path / "one.yaml") as listener:
        assert listener is None
    assert live_sockets(tmp_path / "one.yaml") == [], "nor is one trusted that lies there"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_root_finds_the_gateway_of_a_services_user_and_makes_no_socket_there(tmp_path: Path) -> None:
    with bound(tmp_path / "one.yaml"):
        os.chown(socket_folder(), 65534, 65534)
        assert len(live_sockets(tmp_path / "one.yaml")) == 1
        with bound(tmp_path / "one.yaml") as another:
            assert another is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_root_asks_no_gateway_in_a_folder_that_anyone_can_have_made(tmp_path: Path) -> None:
    with bound(tmp_path / "one.yaml"):
        os.chown(socket_folder(), 65534, 65534)
        socket_folder().parent.chmod(0o1777)
        assert live_sockets(tmp_path / "one.yaml") == []


def test_where_the_path_is_too_long_for_a_socket_there_is_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("x" * 100)))
    with bound(tmp_path / "one.yaml") as listener:
        assert listener is not None
        assert len(live_sockets(tmp_path / "one.yaml")) == 1
