"""An MCP bundle (`.mcpb`, formerly `.dxt`): its manifest as an offer, and its files in a folder named by its digest.

A bundle is a ZIP file with a `manifest.json`. Reading the offer writes nothing. Members that would leave the folder,
are links, or are too large are refused before anything is written. What is unpacked is not unpacked again.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mcproxy.configuration.packages.offer import Bundle, Input, Offer, Slot, Text, Words, slots
from mcproxy.configuration.problems import ConfigurationError, Problem

MAX_FILES: Final = 50_000
"""Files of one bundle."""
MAX_BYTES: Final = 1024 * 1024 * 1024
"""Bytes of all files together, unpacked."""
MAX_MANIFEST: Final = 1024 * 1024
"""Bytes of a bundle's manifest."""
SUFFIXES: Final = (".mcpb", ".dxt")
SHOWN: Final = 32
"""Digits of a bundle's digest in the name of its folder."""

_REFERENCE: Final = re.compile(r"\$\{(?:user_config\.(?P<input>[\w-]+)|(?P<place>[A-Za-z_]+|/))\}")
_FOLDERS: Final = {"DESKTOP": "Desktop", "DOCUMENTS": "Documents", "DOWNLOADS": "Downloads"}
"""Folders in the user's home, by their names in manifests."""


def offer_of(path: Path, folder: Path) -> Offer:
    """What a bundle would run once it is unpacked into a new folder below `folder`. Raises ConfigurationError."""
    with _opened(path) as (file, archive):
        manifest, digest = _manifest(archive, path), _digest(file)
    name = re.sub(r"[^A-Za-z0-9._-]", "-", str(manifest.get("name", "bundle")))[:64]
    return _offer(manifest, Bundle(path, folder / f"{name}-{digest[:SHOWN]}", digest))


def unpack(bundle: Bundle) -> bool:
    """Unpacks a bundle; returns False if it is unpacked already. Raises ConfigurationError, also if it was changed."""
    if bundle.target.exists():
        return False
    with _opened(bundle.path) as (file, archive):
        if _digest(file) != bundle.digest:
            raise _wrong(bundle.path, "was changed meanwhile: try again")
        _extract(archive, bundle.target, bundle.path)
    return True


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BufferedReader, zipfile.ZipFile]]:
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            yield file, archive
    except FileNotFoundError as error:
        raise _wrong(path, "is not there: correct the path") from error
    except (OSError, zipfile.BadZipFile) as error:
        raise _wrong(path, f"is not a bundle that can be unpacked: {error}") from error


def _digest(file: BufferedReader) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


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


def _offer(manifest: Mapping[str, Any], bundle: Bundle) -> Offer:
    described = manifest.get("server")
    config = described.get("mcp_config") if isinstance(described, Mapping) else None
    if not isinstance(config, Mapping) or not isinstance(config.get("command"), str):
        raise _wrong(bundle.path, "has no command in its manifest (server.mcp_config.command)")
    overrides = config.get("platform_overrides")
    own = overrides.get(sys.platform) if isinstance(overrides, Mapping) else None
    config = {**config, **(own if isinstance(own, Mapping) else {})}
    args, env = config.get("args"), config.get("env")
    words = [config["command"], *(args if isinstance(args, list) else ())]
    command = tuple(Words((_text(word, bundle.target),)) for word in words)
    variables = {str(name): _text(value, bundle.target) for name, value in env.items()} if isinstance(env, dict) else {}
    asked = manifest.get("user_config")
    names = sorted(slots([*(text for group in command for text in group.words), *variables.values()]))
    inputs = (_input(name, asked.get(name) if isinstance(asked, Mapping) else None, bundle.target) for name in names)
    if slots(command[0].words):
        raise _wrong(bundle.path, "has no command in its manifest (server.mcp_config.command): it is asked for")
    return Offer(tuple(inputs), command, variables, bundle=bundle)


def _text(text: object, target: Path) -> Text:
    """A text of the manifest. References that the format does not have are plain text."""
    parts: list[str | Slot] = []
    end = 0
    for match in _REFERENCE.finditer(str(text)):
        parts.append(str(text)[end : match.start()])
        parts.append(Slot(match["input"]) if match["input"] else _place(match["place"], target) or match[0])
        end = match.end()
    return (*(part for part in (*parts, str(text)[end:]) if part != ""),) or ("",)


def _place(name: str, target: Path) -> str | None:
    match name:
        case "__dirname":
            return str(target)
        case "HOME":
            return str(Path.home())
        case "/" | "pathSeparator":
            return os.sep
        case _:
            return str(Path.home() / _FOLDERS[name]) if name in _FOLDERS else None


def _input(name: str, described: object, target: Path) -> Input:
    """A value that a host would ask its user for."""
    found = described if isinstance(described, Mapping) else {}
    secret, given = found.get("sensitive") is True, found.get("default")
    values = given if isinstance(given, list) else [] if given is None else [given]
    plain = [json.dumps(value) if isinstance(value, bool) else str(value) for value in values]
    # A default may name folders; a value that it asks for in turn is plain text.
    placed = ["".join(part for part in _text(text, target) if isinstance(part, str)) for text in plain]
    default = tuple(placed) if placed and not secret else None
    description = str(found.get("description") or found.get("title") or "")
    return Input(name, description, secret, default is None and found.get("required") is not False, default)


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
