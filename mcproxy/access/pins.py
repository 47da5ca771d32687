"""Compare definitions with those approved in the lock file (requirement R45), and describe the differences.

Definitions are compared as canonical JSON, without regard to white space, order and spelling of numbers: RFC 8785,
but for whole numbers, which stand with all their digits. Of a skill that is its entry: its frontmatter, and the digest
of each of its files (SEP-2640), in any order. Sans-I/O; hides nothing itself.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Final

from msgspec import Raw

from mcproxy.configuration.lock import PINNED
from mcproxy.protocol.json.repeated_members import distinct
from mcproxy.protocol.methods import Kind
from mcproxy.settings.access import pins as settings
from mcproxy.settings.access.pins import Approved, Lock, Manifest, Pin

NOUNS: Final = {Kind.TOOLS: "tool", Kind.PROMPTS: "prompt", Kind.TEMPLATES: "resource template", Kind.SKILLS: "skill"}
DESCRIPTION: Final = "description"
_SHORT: Final = 16


class Unpinnable(Exception):
    """A definition that two parsers may read differently."""


class Pins:
    """The approved definitions, and whether others are hidden."""

    def __init__(self, spec: settings.PinSettings) -> None:
        self._lock = spec.lock
        self._off = spec.mode == "off"
        self.enforced = spec.mode == "enforce"

    def flaw(self, upstream: str, kind: Kind, key: str, definition: Raw) -> str | None:
        """Why a definition is not approved; None if it is, or needs no approval."""
        if self._off or kind not in PINNED:
            return None
        definitions = self._lock.get(upstream, Approved()).definitions
        if definitions and kind not in definitions:
            why = f"the lock file is of a version that pinned no {kind.value}"
            return f"it is not approved: {why}; `mcproxy lock` writes it anew"
        approved = definitions.get(kind, {}).get(key)
        if approved is None:
            return "it is not approved: it is not in the lock file"
        try:
            found = pin(kind, definition)
        except Unpinnable as error:
            return f"it cannot be approved: {error}"
        if found.sha256 == approved.sha256:
            return None
        return f"it is not approved any more: {', '.join(_changes(approved, found))}"

    def approves_instructions(self, upstream: str, text: str | None) -> bool:
        """Whether a server's instructions may be shown: it has none, or the approved ones."""
        return self._off or not text or text == self._lock.get(upstream, Approved()).instructions


UNPINNED: Final = Pins(settings.PinSettings())
"""Approves everything."""


def approved(
    instructions: str | None, definitions: Mapping[Kind, Mapping[str, Raw]], manifest: Manifest | None = None
) -> Approved:
    """An upstream's definitions in the form of the lock file. Leaves out what cannot be pinned."""
    pins = {kind: dict(_pinned(kind, definitions.get(kind, {}))) for kind in PINNED}
    return Approved(instructions or None, pins, manifest)


def differences(old: Lock, new: Lock) -> Iterator[str]:
    """The differences of `new`, a sentence each."""
    for name in sorted({*old, *new}):
        before, after = old.get(name, Approved()), new.get(name, Approved())
        if before.instructions != after.instructions:
            yield f"{name}: instructions: {_quoted(before.instructions)} became {_quoted(after.instructions)}"
        for kind in PINNED:
            yield from _differences(
                f"{name}: {NOUNS[kind]}", before.definitions.get(kind, {}), after.definitions.get(kind, {})
            )


def pin(kind: Kind, definition: Raw) -> Pin:
    """Raises Unpinnable."""
    try:
        value = json.loads(bytes(definition), object_pairs_hook=distinct)
        members = _skill_members(value) if kind is Kind.SKILLS else value
        digests = {key: _digest(member) for key, member in members.items()}
        whole = _digest(members)
    except (ValueError, RecursionError) as error:
        raise Unpinnable(str(error)) from error
    description = members.get(DESCRIPTION)
    said = description if isinstance(description, str) else None
    return Pin(
        whole, said, {key: digest[:_SHORT] for key, digest in digests.items() if said is None or key != DESCRIPTION}
    )


def same(kind: Kind, one: Raw, other: Raw) -> bool:
    """Whether two definitions are pinned alike; False where either cannot be."""
    try:
        return pin(kind, one).sha256 == pin(kind, other).sha256
    except Unpinnable:
        return False


def _skill_members(skill: Mapping[str, object]) -> dict[str, object]:
    """The entry of a skill with its frontmatter and its files as members, so that a difference can name them.

    Raises ValueError for one of two readings.
    """
    members: list[tuple[str, object]] = []
    for key, member in skill.items():
        match key, member:
            case "frontmatter", dict():
                members += ((each if each == DESCRIPTION else f"{key} {each}", text) for each, text in member.items())
            case "resources", list():
                members += ((f"file {each.get('uri') if isinstance(each, dict) else each}", each) for each in member)
            case _:
                members.append((f"entry {key}" if key == DESCRIPTION else key, member))
    return distinct(members)


def canonical_json(value: object) -> str:
    """Canonical JSON (RFC 8785). Raises ValueError for numbers that have no canonical form."""
    match value:
        case None | bool() | str():
            return json.dumps(value, ensure_ascii=False)
        case int():
            return str(value)
        case float():
            return _number(value)
        case list():
            return f"[{','.join(map(canonical_json, value))}]"
        case dict():
            keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
            return "{" + ",".join(f"{canonical_json(key)}:{canonical_json(value[key])}" for key in keys) + "}"
        case _:
            raise TypeError(f"no JSON value: {type(value).__name__}")


def _number(value: float) -> str:
    """The number as ECMAScript writes it (RFC 8785, section 3.2.2.3)."""
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    digits, exponent, power = repr(value).partition("e")
    if not exponent or -7 < int(power) < 0:
        return format(Decimal(repr(value)), "f")
    return f"{digits}e{int(power):+d}"


def _digest(value: object) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def _pinned(kind: Kind, definitions: Mapping[str, Raw]) -> Iterator[tuple[str, Pin]]:
    for key, definition in definitions.items():
        try:
            yield key, pin(kind, definition)
        except Unpinnable:
            continue


def _differences(what: str, old: Mapping[str, Pin], new: Mapping[str, Pin]) -> Iterator[str]:
    for key in sorted({*old, *new}):
        match old.get(key), new.get(key):
            case None, Pin(description=text):
                yield f"{what} {key!r} is new: {_quoted(text)}"
            case Pin(), None:
                yield f"{what} {key!r} is gone"
            case Pin() as before, Pin() as after if before.sha256 != after.sha256:
                yield f"{what} {key!r}: {', '.join(_changes(before, after))}"
            case _:
                continue


def _changes(before: Pin, after: Pin) -> Iterator[str]:
    if before.description != after.description:
        yield f"description {_quoted(before.description)} became {_quoted(after.description)}"
    for key in sorted({*before.members, *after.members}):
        if key not in before.members:
            yield f"{key} came"
        elif key not in after.members:
            yield f"{key} went"
        elif before.members[key] != after.members[key]:
            yield f"{key} changed"


def _quoted(text: str | None) -> str:
    """Quoted, with characters outside ASCII escaped."""
    return "nothing" if text is None else ascii(text)
