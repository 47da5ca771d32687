"""Facts about bytes that are no valid message: why not, the id, and whether it was meant as a call."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw

HALF_PAIR: Final = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
"""One half of a surrogate pair, where no backslash is escaped."""
ID_WITHIN: Final = 4096
"""Bytes at either end of a message that is not valid JSON, in which its id is looked for."""
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_ID: Final = rb'"id"\s*+:\s*+(?P<id>-?+\d++|%b)\s*+' % _STRING
_SCALAR: Final = rb'"(?!id")[^"\\]++"\s*+:\s*+(?:%b|-?+\d++|null)\s*+' % _STRING
_FIRST_ID: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*+\{\s*+(?:%b,\s*+)*+%b[,}]" % (_SCALAR, _ID), re.DOTALL)
_LAST_ID: Final = re.compile(rb",\s*+%b(?:,\s*+%b)*+\}\s*\Z" % (_ID, _SCALAR), re.DOTALL)
_KIND: Final = re.compile(rb'"(method|result|error)"\s*+:')


_MAX_REASON: Final = 200
"""Characters of the decoder's own words, which may quote what it read."""


def reads_as_call(data: bytes) -> bool:
    """Whether a message that is not valid JSON looks like a call: it names its method before any result or error."""
    found = _KIND.search(data)
    return found is not None and found[1] == b"method"


def legible_id(data: bytes) -> bytes | None:
    """The id of a message that is not valid JSON, as JSON, where it stands before or behind all but plain strings.

    JSON-RPC 2.0, section 5, has null where "there was an error in detecting the id": here there was none.
    """
    found = _FIRST_ID.match(data[:ID_WITHIN]) or _LAST_ID.search(data[-ID_WITHIN:])
    return None if found is None else found["id"]


def is_json(data: bytes | Raw) -> bool:
    """Whether it is one value of valid JSON."""
    try:
        msgspec.json.decode(data, type=Raw)
        bytes(data).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def fault(data: bytes | Raw, error: Exception) -> str:
    """The reason why `data` was not read. RFC 8259, section 8.2: half a surrogate pair has no defined meaning."""
    if HALF_PAIR.search(bytes(data).replace(b"\\\\", b"")):
        return "a string holds one half of a surrogate pair, which is no character: send both, or neither"
    return f"not valid JSON: {reason_of(error)}"


def reason_of(error: Exception) -> str:
    """A decoder's error as a phrase of bounded length."""
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:_MAX_REASON]
