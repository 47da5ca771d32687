"""Reads files of a configuration whole, if they are text and not too large."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mcproxy.configuration.problems import ConfigurationError, Problem

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Largest configuration file: hosts keep histories in theirs."""


class NoSuchFile(ConfigurationError):
    """There is no file to read."""


def file_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of the file at `path`. Raises ConfigurationError: NoSuchFile if there is none."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        text = data.decode(encoding)
    except OSError as error:
        problem = Problem(str(path), f"cannot be read: {error.strerror or type(error).__name__}")
        raise (NoSuchFile if isinstance(error, FileNotFoundError) else ConfigurationError)([problem]) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError([Problem(str(path), "is not UTF-8: save it in that encoding")]) from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigurationError([Problem(str(path), f"is larger than {MAX_FILE_BYTES} bytes")])
    return text
