"""Programs of Debian that tests here run; without one a test is skipped, and in CI it fails."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"


def need(program: str) -> str:
    """The path of a program."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{program} is not installed")
    return found
