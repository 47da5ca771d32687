"""Check the contents of a resource: allowed MIME type, maximum size, valid Base64 (settings `content` of an upstream).

Returns what is wrong; changes nothing.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.protocol.json.bounds import TooMany, parse_array
from mcproxy.protocol.jsonrpc import Params, may_hold
from mcproxy.settings import Content

MAX_PARTS: Final = 10_000
"""Contents of one resource."""
_ANYTHING: Final = ("*",)
_CONTENTS: Final = "contents"
_BLOB: Final = b'"blob"'


class _Part(msgspec.Struct):
    type: str | None = msgspec.field(default=None, name="mimeType")
    text: str | None = None
    blob: str | None = None


_part = msgspec.json.Decoder(_Part)


def contents_fault(rules: Content, result: Params) -> str | None:
    """The fault in a result of `resources/read`, and the setting that forbids it; None if there is none."""
    contents = result.get(_CONTENTS)
    if contents is None or not _concerned(rules, contents):
        return None
    try:
        parts = [_part.decode(part) for part in parse_array(contents, MAX_PARTS)]
    except TooMany as error:
        return f"contents of which the array {error}"
    except (msgspec.MsgspecError, RecursionError):
        return "contents that are not shaped as the specification says"
    return next((found for part in parts for found in _faults(rules, part)), None)


def _concerned(rules: Content, contents: Raw) -> bool:
    if rules.types != _ANYTHING or rules.max_bytes is not None:
        return True
    return rules.check_blobs and may_hold(contents, _BLOB)


def _faults(rules: Content, part: _Part) -> Iterator[str]:
    kind = (part.type or "").partition(";")[0].strip().lower()
    if rules.types != _ANYTHING and not any(fnmatchcase(kind, glob.lower()) for glob in rules.types):
        yield f"content of the type {kind or 'that it does not say'!r} (content.types)"
    size = len((part.text or "").encode(errors="replace"))
    if part.blob is not None:
        blob = _decoded(part.blob)
        if blob is None and rules.check_blobs:
            yield "a blob that is not Base64 (content.check_blobs)"
        size += len(part.blob) if blob is None else len(blob)
    if rules.max_bytes is not None and size > rules.max_bytes:
        yield f"content of {size} bytes (content.max_bytes)"


def _decoded(blob: str) -> bytes | None:
    """RFC 4648, section 4, with padding and nothing else: the schema's `format: byte`."""
    if len(blob) % 4:
        return None
    try:
        return binascii.a2b_base64(blob, strict_mode=True)
    except ValueError:
        return None
