"""From an empty home to the first answer, by what each host's own file says after `mcproxy connect`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.first_answer import KEY_VARIABLE, Walk, install, table
from tests.deploy.wheel import build
from tests.depth import sampled
from tests.fakes.clients.host import HOSTS
from tests.ports import free_port


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in an empty environment, with the dependencies of this one."""
    folder = tmp_path_factory.mktemp("installed")
    return install(build(folder), folder / "venv", borrowed=True)


@pytest.fixture
def walk(program: Path, tmp_path: Path) -> Walk:
    return Walk(tmp_path, program)


@pytest.mark.parametrize("host", sampled(list(HOSTS), one_in=len(HOSTS)))
def test_a_host_gets_its_first_answer_from_an_empty_home_and_its_file_goes_again(walk: Walk, host: str) -> None:
    assert walk.files() == {}
    walk.add_server()
    before = walk.files()
    walk.connect(host)
    assert HOSTS[host].path in walk.files()
    assert "21:00" in walk.answer(host), "what a server says that the host has never heard of"
    walk.undo(host)
    assert walk.files() == before
    assert list(walk.seconds) == ["add", "connect", "answer", "undo"]


def test_hosts_share_a_gateway_that_runs_and_send_the_key_by_the_variable_in_their_files(walk: Walk) -> None:
    walk.add_server()
    key = walk.add_key(port=free_port(), log_format="json")
    with walk.serving():
        for host in HOSTS:
            walk.connect(host)
            assert key not in walk.files()[HOSTS[host].path].decode()
            assert "21:00" in walk.answer(host, **{KEY_VARIABLE: key})


def test_the_table_has_the_seconds_of_each_step_and_their_sum() -> None:
    assert table({"cursor": {"install": 4, "add": 0.25}}) == (
        "| host | install | add | together |\n| --- | ---: | ---: | ---: |\n| cursor | 4.0 s | 0.2 s | 4.2 s |\n"
    )
