"""The twin of `mcproxy.__main__`."""

from __future__ import annotations

import subprocess

import pytest

from tests.system.running import PYTHON, ROOT

INTERRUPTED = """
import sys

interrupted = sys.argv[1]

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == interrupted:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
from mcproxy.__main__ import main
sys.argv = ["mcproxy", "serve"]
main()
"""


@pytest.mark.parametrize("importing", ["typer", "mcproxy.cli.runtime"])
def test_an_interrupt_while_the_program_is_imported_prints_no_traceback(importing: str) -> None:
    ended = subprocess.run(  # our own interpreter
        [PYTHON, "-c", INTERRUPTED, importing],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")
