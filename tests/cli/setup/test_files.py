"""People's files: replaced whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcproxy.cli.setup.files import existing_text, write
from mcproxy.configuration.problems import ConfigurationError


def test_a_new_file_is_for_its_owner_alone_and_its_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    assert existing_text(path) is None
    write(path, "x\r\n")
    assert existing_text(path) == "x\r\n", "line ends stay as they are"
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_is_left_behind_where_a_file_cannot_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write(path, "x")
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        existing_text(tmp_path)
    (tmp_path / "x").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="is not UTF-8"):
        existing_text(tmp_path / "x")
