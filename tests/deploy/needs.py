"""Programs of Debian and of Python packages that tests here run; without one a test is skipped, and in CI it fails."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"


def need(program: str) -> str:
    """The path of a program."""
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"]
    found = shutil.which(program, path=os.pathsep.join(places))
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{program} is not installed")
    return found
