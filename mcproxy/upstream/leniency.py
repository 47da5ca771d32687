"""What is accepted from servers that deviate from the specifications in a way with exactly one reasonable reading.

Small functions, each with the report that it comes from; nearly all are pure. An ordinary answer passes none of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum
from typing import Final

from mcproxy.protocol.eras import HANDSHAKE_VERSIONS, V2025_11_25
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, INVALID_REQUEST
from mcproxy.protocol.sse import Event

REFUSALS_QUOTED: Final = 4096
"""Characters of a refusal in which versions are looked for."""
_REVISION: Final = re.compile(r"(?<!\d)20\d\d-\d\d-\d\d(?!\d)")

_PERHAPS_VERSION: Final = frozenset({INVALID_PARAMS, INVALID_REQUEST, 400})


def next_version(refusal: str, refused: Collection[str]) -> str | None:
    """The version to say `initialize` with after a refusal: the newest that it lists, else one step down.

    typescript-sdk #1004, python-sdk #832 and Slack's server: versions stand in `data.supported`, `data.expected`,
    `data.supportedVersions`, the message, the body, or nowhere. `refused` are those that were tried; None if there is
    nothing left to try.
    """
    left = [version for version in reversed(HANDSHAKE_VERSIONS) if version not in refused]
    listed = set(_REVISION.findall(refusal[:REFUSALS_QUOTED]))
    return next((version for version in left if version in listed), left[0] if left else None)


def speaks_of_versions(refusal: str) -> bool:
    """Whether a refusal of `initialize` names a revision, or the version as its cause."""
    return _REVISION.search(refusal[:REFUSALS_QUOTED]) is not None or "version" in refusal[:REFUSALS_QUOTED].lower()


def may_be_about_versions(refusal: str, code: int | None) -> bool:
    """Whether another version is worth a try, after a refusal with this JSON-RPC code or HTTP status.

    A server that fails whatever it is asked gets none, unless it says so.
    """
    return code in _PERHAPS_VERSION or speaks_of_versions(refusal)


def has_parts(version: str) -> bool:
    """Whether `sampling` and `elicitation` have parts in a version (2025-11-25)."""
    return version >= V2025_11_25


# Bodies.

BOM: Final = b"\xef\xbb\xbf"
PEEKED: Final = 1024
"""Bytes that show what a body is."""
_BLANK: Final = b" \t\r\n"
_EVENT_FIELD: Final = re.compile(rb"(?:data|event|id|retry)?:|(?:data|event|id|retry)[\r\n]")


class Looks(Enum):
    """What a body is by its first bytes, whatever its Content-Type says."""

    BLANK = "nothing but white space so far"
    JSON = "an object, or a list of them"
    EVENTS = "an event stream"
    PAGE = "HTML or XML"
    OTHER = "anything else"


def look(body: bytes) -> Looks:
    """What a body that begins so is (python-sdk #1135, typescript-sdk #709: answers with no type, or with another)."""
    begun = body[:PEEKED].lstrip(_BLANK).removeprefix(BOM).lstrip(_BLANK)
    if not begun or BOM.startswith(begun):
        return Looks.BLANK
    match begun[:1]:
        case b"{" | b"[":
            return Looks.JSON
        case b"<":
            return Looks.PAGE
        case _:
            return Looks.EVENTS if _EVENT_FIELD.match(begun) is not None else _perhaps_events(begun)


def _perhaps_events(begun: bytes) -> Looks:
    """BLANK while so little has come that it may become an event stream."""
    is_open = any(name.startswith(begun) for name in (b"data:", b"event:", b"id:", b"retry:"))
    return Looks.BLANK if is_open else Looks.OTHER


def is_message(event: Event) -> bool:
    """Whether an event can be a message: its data are an object, or a list of objects, and no other name forbids it.

    Streams of the field hold `[DONE]`, `ping` and the like, and call their answers `response` (python-sdk #1211).
    """
    data = event.data.lstrip(_BLANK)
    if data[:1] != b"{" and not (data[:1] == b"[" and data[1:].lstrip(_BLANK)[:1] == b"{"):
        return b"\0" in data  # UTF-16: an answer that is refused, for which nobody is to wait
    return event.event == "message" or b'"jsonrpc"' in data
