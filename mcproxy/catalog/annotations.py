"""Read a tool's annotations: read-only, destructive, idempotent (`ToolAnnotations`). Malformed ones are ignored."""

from __future__ import annotations

import msgspec
from msgspec import Raw


class _Annotations(msgspec.Struct):
    read_only: bool = msgspec.field(default=False, name="readOnlyHint")
    destructive: bool | None = msgspec.field(default=True, name="destructiveHint")
    idempotent: bool = msgspec.field(default=False, name="idempotentHint")


class _Tool(msgspec.Struct):
    annotations: _Annotations = msgspec.field(default_factory=_Annotations)


_tool = msgspec.json.Decoder(_Tool)


def is_read_only(entry: Raw) -> bool:
    """Whether the tool declares that it changes nothing (`readOnlyHint`, default false)."""
    return _annotations(entry).read_only


def is_destructive(entry: Raw) -> bool:
    """Whether the tool may destroy something, which is the default ("meaningful only when `readOnlyHint == false`")."""
    annotations = _annotations(entry)
    return annotations.destructive is not False and not annotations.read_only


def is_repeatable(entry: Raw) -> bool:
    """Whether a second call with the same arguments has no further effect (requirement R4)."""
    annotations = _annotations(entry)
    return annotations.read_only or annotations.idempotent


def _annotations(entry: Raw) -> _Annotations:
    try:
        return _tool.decode(entry).annotations
    except msgspec.MsgspecError:
        return _Annotations()
