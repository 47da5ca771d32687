"""What commands share."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from mcproxy.cli.runtime import own_command, unimportable


def test_the_command_is_found_from_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["-m"])
    assert own_command() == [sys.executable, "-m", "mcproxy"]
    program = tmp_path / "mcproxy"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert own_command() == [str(program)]


def test_a_library_is_unimportable_meanwhile_and_importable_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = f"{__name__}_library".replace(".", "_")
    (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with unimportable(name), pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)
    assert importlib.import_module(name) is sys.modules.pop(name)


def test_a_library_that_was_imported_stays_importable() -> None:
    with unimportable("json"):
        assert importlib.import_module("json") is json
    assert importlib.import_module("json") is json
