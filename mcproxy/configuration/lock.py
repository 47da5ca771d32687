"""The lock file of approved definitions, to and from text: JSON in stable order, one line per definition.

Refuses members that it does not understand: a misread pin could approve too much. Compares nothing itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Raw

from mcproxy.configuration.files import NoSuchFile, file_text
from mcproxy.configuration.problems import ConfigurationError, Problem
from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import InvalidMessage, json_of, parse_object
from mcproxy.protocol.methods import Kind
from mcproxy.settings.access.pins import Approved, Lock, Manifest, Pin

VERSION: Final = 2
"""Of the file. Those of version 1 were written before skills were pinned, and approve none."""
FILE_NAME: Final = "mcproxy.lock"
PINNED: Final = (Kind.TOOLS, Kind.PROMPTS, Kind.TEMPLATES, Kind.SKILLS)
"""The lists whose entries instruct a model or a person. Resources are data and change often."""

_FIELDS: Final = {kind: kind.value for kind in Kind} | {Kind.TEMPLATES: "templates"}

_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Pin(msgspec.Struct, forbid_unknown_fields=True):
    sha256: _Digest
    description: str | None = None
    members: dict[str, str] = {}


class _Lists(msgspec.Struct, forbid_unknown_fields=True, rename={"templates": "resourceTemplates"}):
    """Each entry as the text of its JSON, byte for byte as it came: what differs in nothing is no change."""

    tools: list[str] = []
    resources: list[str] = []
    templates: list[str] = []
    prompts: list[str] = []
    skills: list[str] = []


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    era: Literal["handshake", "stateless"]
    version: str
    capabilities: str
    info: str | None = None
    instructions: str | None = None
    lists: _Lists = msgspec.field(default_factory=_Lists)


class _Upstream(msgspec.Struct, forbid_unknown_fields=True, rename={"templates": "resourceTemplates"}):
    instructions: str | None = None
    tools: dict[str, _Pin] = {}
    prompts: dict[str, _Pin] = {}
    templates: dict[str, _Pin] = {}
    skills: dict[str, _Pin] = {}
    manifest: _Manifest | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    lockfile: Literal[1, 2]
    upstreams: dict[str, _Upstream]


def read_lock(path: Path) -> Lock:
    """The approved definitions in the file at `path`; empty if it does not exist. Raises ConfigurationError."""
    try:
        return parse_lock(file_text(path), str(path))
    except NoSuchFile:
        return {}


def parse_lock(text: str, file: str) -> Lock:
    """Raises ConfigurationError."""
    try:
        found = msgspec.json.decode(text, type=_File)
        pinned = [kind for kind in PINNED if found.lockfile > 1 or kind is not Kind.SKILLS]
        return {name: _approved(upstream, pinned) for name, upstream in found.upstreams.items()}
    except (InvalidMessage, msgspec.MsgspecError, RecursionError) as error:
        sentence = f"is not a valid lock file: {error}; repair it, or remove it and write a new one with `mcproxy lock`"
        raise ConfigurationError([Problem(file, sentence)]) from error


def render(lock: Lock) -> str:
    """The text of a lock file, sorted, so that equal locks are equal texts. `parse_lock` reads it."""
    upstreams = ",\n".join(_section(4, name, _parts(lock[name])) for name in sorted(lock))
    body = f"\n{upstreams}\n  " if upstreams else ""
    return f'{{\n  "lockfile": {VERSION},\n  "upstreams": {{{body}}}\n}}\n'


def _approved(upstream: _Upstream, pinned: Iterable[Kind]) -> Approved:
    lists: dict[Kind, dict[str, _Pin]] = {kind: getattr(upstream, _FIELDS[kind]) for kind in pinned}
    definitions = {
        kind: {key: Pin(pin.sha256, pin.description, pin.members) for key, pin in pins.items()}
        for kind, pins in lists.items()
    }
    return Approved(upstream.instructions, definitions, _manifest(upstream.manifest))


def _manifest(manifest: _Manifest | None) -> Manifest | None:
    """Raises InvalidMessage where an entry is no JSON object."""
    if manifest is None:
        return None
    lists = {kind: tuple(map(_object, getattr(manifest.lists, _FIELDS[kind]))) for kind in Kind}
    capabilities = parse_object(_object(manifest.capabilities))
    info = None if manifest.info is None else _object(manifest.info)
    return Manifest(Era(manifest.era), manifest.version, capabilities, info, manifest.instructions, lists)


def _object(text: str) -> Raw:
    found = Raw(text.encode())
    parse_object(found)
    return found


def _parts(approved: Approved) -> Iterator[str]:
    if approved.instructions is not None:
        yield f'      "instructions": {_text(approved.instructions)}'
    for kind in PINNED:
        pins = approved.definitions.get(kind, {})
        if pins:
            yield _section(6, kind.value, (f"        {_text(key)}: {_line(pins[key])}" for key in sorted(pins)))
    if approved.manifest is not None:
        yield _section(6, "manifest", _manifest_parts(approved.manifest))


def _manifest_parts(manifest: Manifest) -> Iterator[str]:
    texts = {
        "era": manifest.era.value,
        "version": manifest.version,
        "capabilities": json_of(manifest.capabilities).decode(),
        "info": None if manifest.info is None else bytes(manifest.info).decode(),
        "instructions": manifest.instructions,
    }
    yield from (f"        {_text(key)}: {_text(text)}" for key, text in texts.items() if text is not None)
    yield _section(8, "lists", (_list(kind, manifest.lists[kind]) for kind in Kind if manifest.lists.get(kind)))


def _list(kind: Kind, entries: Iterable[Raw]) -> str:
    body = ",\n".join(f"            {_text(bytes(entry).decode())}" for entry in entries)
    return f"          {_text(kind.value)}: [\n{body}\n          ]"


def _section(indent: int, name: str, parts: Iterator[str]) -> str:
    body = ",\n".join(parts)
    inside = f"\n{body}\n{' ' * indent}" if body else ""
    return f"{' ' * indent}{_text(name)}: {{{inside}}}"


def _line(pin: Pin) -> str:
    members: dict[str, object] = {"sha256": pin.sha256}
    if pin.description is not None:
        members["description"] = pin.description
    if pin.members:
        members["members"] = _sorted(pin.members)
    return _text(members)


def _sorted(members: Mapping[str, str]) -> dict[str, str]:
    return {key: members[key] for key in sorted(members)}


def _text(value: object) -> str:
    """ASCII, so that invisible characters show in a review."""
    return json.dumps(value)
