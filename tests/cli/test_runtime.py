"""What commands share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mcproxy.cli.runtime import own_command


def test_the_command_is_found_from_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["-m"])
    assert own_command() == [sys.executable, "-m", "mcproxy"]
    program = tmp_path / "mcproxy"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert own_command() == [str(program)]
