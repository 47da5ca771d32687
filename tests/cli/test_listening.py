"""Why the gateway cannot listen where its configuration says, with the key and a remedy."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from mcproxy.cli.commands import main
from mcproxy.cli.listening import obstacle, obstacles
from tests.configuration.reading import configure

TEXT = "proxy:\n  port: {}\nadmin:\n  port: {}\n"


@pytest.mark.parametrize("section", ["proxy", "admin"])
def test_a_port_that_another_program_holds_is_told_with_its_key(tmp_path: Path, section: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = (port, 0) if section == "proxy" else (0, port)
        (problem,) = obstacles(configure(tmp_path, TEXT.format(*ports)))
    line = 2 if section == "proxy" else 4
    assert f"mcproxy.yaml:{line}:3: {section}.port: 127.0.0.1:{port} is in use: stop the program" in str(problem)


def test_ports_that_the_system_chooses_are_no_obstacle(tmp_path: Path) -> None:
    assert list(obstacles(configure(tmp_path, TEXT.format(0, 0)))) == []


@pytest.mark.parametrize(
    ("number", "key", "sentence"),
    [
        (errno.EACCES, "proxy.port", "listening on port 80 is not permitted: choose one above 1023"),
        (errno.EADDRNOTAVAIL, "proxy.host", "127.0.0.1 is no address of this machine"),
    ],
)
def test_other_obstacles_have_their_remedies_too(tmp_path: Path, number: int, key: str, sentence: str) -> None:
    problem = str(obstacle(configure(tmp_path, "proxy: {port: 80}\n"), "proxy", OSError(number, "x")))
    assert f"{key}: " in problem
    assert sentence in problem


def test_an_error_of_another_kind_is_no_obstacle_to_listening(tmp_path: Path) -> None:
    assert obstacle(configure(tmp_path, ""), "proxy", OSError(errno.EIO, "x")) is None


def test_the_doctor_names_a_port_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mcproxy.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path.write_text(f"proxy: {{port: {taken.getsockname()[1]}}}\n")
        with pytest.raises(SystemExit) as caught:
            main(["doctor", "-c", str(path)])
    assert caught.value.code == 1
    assert f"machine: {path}:1:9: proxy.port: 127.0.0.1:" in capsys.readouterr().out
