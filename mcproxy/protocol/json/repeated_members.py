"""Find members that come twice in a JSON object: parsers take the first, the last, or refuse (RFC 8259, section 4)."""

from __future__ import annotations

import json

import msgspec
from msgspec import Raw


class RepeatedMember(ValueError):
    """An object has two members of one name."""


def distinct(members: list[tuple[str, object]]) -> dict[str, object]:
    """The object with these members, as `object_pairs_hook` of `json` wants it. Raises RepeatedMember."""
    found = dict(members)
    if len(found) != len(members):
        raise RepeatedMember("a member comes twice in it")
    return found


def repeats_member(data: Raw) -> bool:
    """Whether an object of the JSON value `data` has two members of one name, at any depth."""
    text = bytes(data)
    try:
        # What was read is written with each member once. If that is all of it, none was lost.
        written = msgspec.json.encode(msgspec.json.decode(text))
        if written == text or written == msgspec.json.format(text, indent=-1):
            return False
    except (ValueError, RecursionError):
        pass  # A number that is too large, half a surrogate pair.
    try:
        # No number is read: those with very many digits would be refused.
        json.loads(
            text.decode(errors="surrogateescape"),
            strict=False,
            object_pairs_hook=distinct,
            parse_int=str,
            parse_float=str,
        )
    except RepeatedMember:
        return True
    except (ValueError, RecursionError):
        return False  # It is no JSON, of which this says nothing.
    return False
