"""Files of a configuration that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcproxy.configuration.files import MAX_FILE_BYTES, NoSuchFile, file_text
from mcproxy.configuration.problems import ConfigurationError


def test_a_file_that_is_not_there_is_told_from_one_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match="cannot be read: No such file"):
        file_text(tmp_path / "missing")
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory") as failed:
        file_text(tmp_path)
    assert not isinstance(failed.value, NoSuchFile)


def test_what_is_no_text_or_too_large_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="is not UTF-8"):
        file_text(file)
    with file.open("wb") as written:
        written.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(ConfigurationError, match="is larger than"):
        file_text(file)
