"""Build the wheel and run programs in a home of their own, as people do who have it from a registry."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
QUIET: Final = ("--quiet", "--disable-pip-version-check")
_OWN: Final = ("XDG_", "PYTHON", "VIRTUAL_ENV", "PIPX_", "UV_TOOL", "MCPROXY_")
"""Beginnings of the variables that would lead out of the empty home."""


def environment(home: Path, **more: str) -> dict[str, str]:
    """An environment with that home, and with what this machine says of proxies and certificates."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
    return {**kept, "HOME": str(home), **more}


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Runs a program to its end and returns its stdout. Its home is `cwd` if `env` names no other."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment(cwd) if env is None else env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(folder: Path) -> Path:
    """The wheel of this repository, built into a folder."""
    offline = ("--no-deps", "--no-build-isolation", *QUIET)
    run(sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", folder, ROOT, cwd=folder)
    (found,) = folder.glob("*.whl")
    return found
