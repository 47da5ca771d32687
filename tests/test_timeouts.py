"""Runs of pytest with this project's `conftest`: a test that hangs fails, and no process is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import command_line, descendants

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc"),
    pytest.mark.timeout(300),  # several runs of pytest, one after another, on a machine that may be busy
]

ROOT = Path(__file__).parents[1]
HANGING = """
import subprocess, anyio, pytest

@pytest.mark.timeout(1)
@pytest.mark.anyio
async def test_hangs():
    subprocess.Popen(["sleep", "3601"])
    with anyio.CancelScope(shield=True):
        await anyio.sleep_forever()
"""
HANGING_LATER = """
@pytest.fixture
def hanging():
    yield
    subprocess.run(["sleep", "3602"])

@pytest.mark.timeout(1)
def test_fails_and_then_hangs(hanging):
    assert False
"""
LEAVING = """
import subprocess, sys

PARENT = "import subprocess; child = subprocess.Popen(['sleep', '3603']); print(flush=True); child.wait()"

def test_passes():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout.readline() == b"\\n", "its child runs by then"
"""
LOOKING = """
import subprocess, sys

def test_children_ignore_no_signal():
    script = "import signal; print([each.name for each in signal.Signals if signal.getsignal(each) is signal.SIG_IGN])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert found.stdout == "['SIGPIPE', 'SIGXFSZ']\\n"
"""


def run(folder: Path, text: str, *options: str, before: Callable[[], object] | None = None) -> str:
    """The output of a run of pytest on one file; it must fail unless it is run with `before`, in the child, first."""
    (folder / "test_it.py").write_text(text)
    arguments = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", os.devnull, "--rootdir", str(folder)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV"))}
    done = subprocess.run(
        [*arguments, "-o", "addopts=", *options, str(folder / "test_it.py")],
        capture_output=True,
        cwd=ROOT,
        env=environment,
        text=True,
        check=False,
        preexec_fn=before,
    )
    assert (done.returncode == 0) == (before is not None), done.stdout + done.stderr
    return done.stdout + done.stderr


def left() -> list[str]:
    """What still runs of the programs that the files above start."""
    return [line for line in map(command_line, descendants(os.getpid())) if "sleep 36" in line]


def test_a_test_that_hangs_ends_the_run_and_what_it_started(tmp_path: Path) -> None:
    output = run(tmp_path, HANGING)
    assert "test_hangs[asyncio] takes too long" in output
    assert "sleep_forever" in output, "where its task waits is not told"
    assert left() == []


def test_under_xdist_tests_that_hang_fail_and_the_others_are_run(tmp_path: Path) -> None:
    output = run(tmp_path, HANGING + HANGING_LATER + "def test_passes(): ...", "-n", "1")
    assert "3 failed, 1 passed" in output, "the second fails, and is then cut off"
    assert left() == []


def test_a_run_that_leaves_a_process_behind_fails_and_names_the_test(tmp_path: Path) -> None:
    output = run(tmp_path, LEAVING, "--grace", "0")
    assert "sleep 3603 (started in" in output
    assert "test_it.py::test_passes (call)" in output
    assert left() == []


def test_children_of_a_run_that_ignores_signals_ignore_none(tmp_path: Path) -> None:
    def ignore() -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

    run(tmp_path, LOOKING, before=ignore)
