"""An MCP bundle (`.mcpb`, formerly `.dxt`): unpacked into a folder named by its digest, and its command.

A bundle is a ZIP file with a `manifest.json`. Members that would leave the folder, are links, or are too large are
refused before anything is written; a bundle that was unpacked before is not unpacked again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mcproxy.configuration.problems import ConfigurationError, Problem

MAX_FILES: Final = 50_000
"""Files of one bundle."""
MAX_BYTES: Final = 1024 * 1024 * 1024
"""Bytes of all files together, unpacked."""
MAX_MANIFEST: Final = 1024 * 1024
"""Bytes of a bundle's manifest."""
SUFFIXES: Final = (".mcpb", ".dxt")

_USER_CONFIG: Final = re.compile(r"\$\{user_config\.([\w-]+)\}")


def unpacked(path: Path, folder: Path) -> dict[str, object]:
    """Unpacks a bundle into a new folder below `folder`, and returns its entry for `mcpServers`.

    Raises ConfigurationError.
    """
    try:
        digest = _digest(path)
        with zipfile.ZipFile(path) as archive:
            manifest = _manifest(archive, path)
            target = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '-', str(manifest.get('name', 'bundle')))[:64]}-{digest}"
            server = _server(manifest, target, path)
            if not target.exists():
                _extract(archive, target, path)
    except FileNotFoundError as error:
        raise _wrong(path, "is not there: correct the path") from error
    except (OSError, zipfile.BadZipFile) as error:
        raise _wrong(path, f"is not a bundle that can be unpacked: {error}") from error
    return server


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _manifest(archive: zipfile.ZipFile, path: Path) -> Mapping[str, Any]:
    try:
        found = archive.getinfo("manifest.json")
        if found.file_size > MAX_MANIFEST:
            raise _wrong(path, f"has a manifest of more than {MAX_MANIFEST} bytes")
        manifest = json.loads(archive.read(found))
    except (KeyError, ValueError, RecursionError) as error:
        raise _wrong(path, "has no manifest.json that can be read") from error
    if not isinstance(manifest, Mapping):
        raise _wrong(path, "has no manifest.json that can be read")
    return manifest


def _server(manifest: Mapping[str, Any], target: Path, path: Path) -> dict[str, object]:
    described = manifest.get("server")
    config = described.get("mcp_config") if isinstance(described, Mapping) else None
    if not isinstance(config, Mapping) or not isinstance(config.get("command"), str):
        raise _wrong(path, "has no command in its manifest (server.mcp_config.command)")
    overrides = config.get("platform_overrides")
    own = overrides.get(sys.platform) if isinstance(overrides, Mapping) else None
    config = {**config, **(own if isinstance(own, Mapping) else {})}
    user_config = manifest.get("user_config")
    asked = user_config if isinstance(user_config, Mapping) else {}

    def resolved(text: object) -> str:
        placed = str(text).replace("${__dirname}", str(target)).replace("${HOME}", str(Path.home()))
        placed = placed.replace("${/}", os.sep).replace("${pathSeparator}", os.sep)
        return _USER_CONFIG.sub(lambda match: _asked(match[1], asked.get(match[1])), placed)

    server: dict[str, object] = {"command": resolved(config["command"])}
    if isinstance(config.get("args"), list):
        server["args"] = [resolved(word) for word in config["args"]]
    if isinstance(config.get("env"), Mapping):
        server["env"] = {str(name): resolved(value) for name, value in config["env"].items()}
    return server


def _asked(name: str, described: object) -> str:
    """A value that a host would ask its user for: the default, or a variable to set."""
    found = described if isinstance(described, Mapping) else {}
    default = found.get("default")
    if isinstance(default, str | int | float | bool) and found.get("sensitive") is not True:
        return json.dumps(default) if isinstance(default, bool) else str(default)
    return f"${{{re.sub(r'[^A-Za-z0-9]+', '_', name).strip('_').upper()}}}"


def _extract(archive: zipfile.ZipFile, target: Path, path: Path) -> None:
    """Whole or not at all."""
    members = archive.infolist()
    if len(members) > MAX_FILES or sum(member.file_size for member in members) > MAX_BYTES:
        raise _wrong(path, f"holds more than {MAX_FILES} files or {MAX_BYTES} bytes")
    for member in members:
        name = PurePosixPath(member.filename.replace("\\", "/"))
        if name.is_absolute() or ".." in name.parts or ":" in member.filename:
            raise _wrong(path, f"holds a file outside of itself: {member.filename!r}")
        if stat.S_ISLNK(member.external_attr >> 16):
            raise _wrong(path, f"holds a symbolic link: {member.filename!r}")
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        place = Path(scratch) / "bundle"
        for member in members:
            file = place / member.filename
            if member.is_dir():
                file.mkdir(parents=True, exist_ok=True)
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            # No more than `file_size` is read, even if the member is larger.
            with archive.open(member) as source, file.open("wb") as written:
                shutil.copyfileobj(source, written)
            if member.external_attr >> 16 & 0o111:
                file.chmod(0o755)
        shutil.move(place, target)


def _wrong(path: Path, sentence: str) -> ConfigurationError:
    return ConfigurationError([Problem(str(path), sentence)])
