"""Stores servers' lists in sealed files in the state folder, one for each configured server. Blocks."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.call.upstreams import ServerIdentity
from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import Params
from mcproxy.protocol.methods import Kind
from mcproxy.sealing import Sealer, Unsealable
from mcproxy.settings import UpstreamSettings

MAX_BYTES: Final = 8 * 1024 * 1024
"""The size of the largest file; larger lists are not remembered."""
MAX_FILES: Final = 256
"""The most files in the folder; the oldest are removed first."""
_PURPOSE: Final = "remembered lists "
_NAME: Final = "remembered server"
_IDENTIFYING: Final = frozenset(
    {
        "name",
        "command",
        "args",
        "env",
        "cwd",
        "url",
        "type",
        "headers",
        "headers_command",
        "credentials",
        "oauth",
        "tls",
    }
)
"""The settings of a server that identify it."""


class _Remembered(msgspec.Struct):
    """The content of a file."""

    era: Era
    version: str
    capabilities: Params
    info: Raw
    """`null` if there is none: msgspec cannot decode a union with Raw."""
    instructions: str | None
    lists: dict[str, list[Raw]]


_NULL: Final = Raw(b"null")
_decoder = msgspec.json.Decoder(_Remembered)


class RememberedLists(msgspec.Struct, frozen=True):
    """A server's identity and lists, as last fetched."""

    identity: ServerIdentity
    lists: Mapping[Kind, tuple[Raw, ...]]


class ListStore:
    """The files in `folder`. A file can be opened only under the server configuration that it was saved for."""

    def __init__(self, folder: Path, sealer: Sealer) -> None:
        self._folder = folder
        self._sealer = sealer

    def load(self, spec: UpstreamSettings) -> RememberedLists | None:
        """The lists of a server that has not changed since; None if there are none that can be read."""
        name = _fingerprint(spec)
        for path in (self._folder / digest for digest in self._sealer.digests(_NAME, name)):
            try:
                with path.open("rb") as file:
                    sealed = file.read(2 * MAX_BYTES + 1)
                if len(sealed) > 2 * MAX_BYTES:
                    return None
                found = _decoder.decode(self._sealer.open(_PURPOSE + name.hex(), sealed.decode("ascii")))
                lists = {Kind(kind): tuple(entries) for kind, entries in found.lists.items()}
            except (OSError, ValueError, Unsealable, msgspec.MsgspecError):
                continue
            info = None if found.info == _NULL else found.info
            identity = ServerIdentity(found.era, found.version, found.capabilities, info, found.instructions)
            return RememberedLists(identity, lists)
        return None

    def save(self, spec: UpstreamSettings, remembered: RememberedLists) -> None:
        """Replaces the stored lists of a server. Raises OSError."""
        identity = remembered.identity
        lists = {kind.value: list(entries) for kind, entries in remembered.lists.items()}
        content = msgspec.json.encode(
            _Remembered(
                identity.era,
                identity.version,
                identity.capabilities,
                identity.info or _NULL,
                identity.instructions,
                lists,
            )
        )
        if len(content) > MAX_BYTES:
            return
        name = _fingerprint(spec)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".new-", delete=False) as file:
            try:
                file.write(self._sealer.seal(_PURPOSE + name.hex(), content).encode("ascii"))
                file.flush()
                os.replace(file.name, self._folder / self._sealer.digest(_NAME, name))
            except BaseException:
                with suppress(OSError):
                    os.unlink(file.name)
                raise
        self._remove_oldest()

    def _remove_oldest(self) -> None:
        with os.scandir(self._folder) as entries:
            dated = sorted((entry.stat().st_mtime, entry.path) for entry in entries if entry.is_file())
        for _, path in dated[:-MAX_FILES]:
            with suppress(OSError):
                os.unlink(path)


def _fingerprint(spec: UpstreamSettings) -> bytes:
    """A digest that identifies the server: its configuration, and the local files that it is started from."""
    own = spec.model_dump(mode="json", include=set(_IDENTIFYING))
    digest = hashlib.sha256(msgspec.json.encode(own, order="sorted"))
    for stamp in _stamps(spec):
        digest.update(stamp.encode())
    return digest.digest()


def _stamps(spec: UpstreamSettings) -> Iterator[str]:
    """The size and modification time of the program and of arguments that are files: a new version is a new server."""
    if spec.command is None:
        return
    program = shutil.which(spec.command, path=spec.env.get("PATH") or os.environ.get("PATH"))
    for text in (program or spec.command, *spec.args):
        with suppress(OSError, ValueError):
            found = os.stat(os.path.join(spec.cwd or "", text))
            yield f"\0{text}\0{found.st_size}\0{found.st_mtime_ns}"
