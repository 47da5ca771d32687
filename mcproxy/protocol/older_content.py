"""Content of results for clients of older revisions: blocks that these do not have are said in blocks that they do.

2024-11-05 has no audio; neither it nor 2025-03-26 has links to resources and structured content. Clients that validate
refuse a whole result for one block of an unknown type. Reads results of tools and prompts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import is_
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.protocol.envelope import CONTENT, STRUCTURED
from mcproxy.protocol.eras import V2024_11_05, V2025_03_26
from mcproxy.protocol.json.bounds import TooMany, parse_array
from mcproxy.protocol.jsonrpc import (
    InvalidMessage,
    Params,
    is_object,
    may_hold,
    object_or_empty,
    parse_object,
    parse_text,
    raw,
)
from mcproxy.protocol.methods import Shape

MAX_ITEMS: Final = 10_000
"""Blocks or messages of a result that are examined; a longer list passes unchanged."""

_MESSAGES: Final = "messages"

Spelling = Callable[[Params, int], dict[str, object]]
"""Makes another block of the members of one; the number is its place in the list."""


def in_older_content(version: str, shape: Shape, result: Params) -> Params:
    """`result` in the content that clients of `version` know; the same object where they know all of it."""
    if version not in WITH_OLDER_CONTENT:
        return result
    spellings = _SPELLINGS[version]
    match shape:
        case Shape.CONTENT:
            return _with_text(_respelled(result, CONTENT, lambda content: _blocks(content, spellings)))
        case Shape.MESSAGES:
            return _respelled(result, _MESSAGES, lambda messages: _messages(messages, spellings))
        case _:
            return result


def _respelled(members: Params, key: str, respell: Callable[[Raw], Raw]) -> Params:
    if key not in members:
        return members
    value = respell(members[key])
    return members if value is members[key] else {**members, key: value}


def _with_text(result: Params) -> Params:
    """With its structured content as a text too, where that is all that it says (2025-06-18, tools)."""
    if STRUCTURED not in result or bytes(result.get(CONTENT, b"")).strip(b"[] \t\r\n"):
        return result
    return {**result, CONTENT: raw([{"type": "text", "text": bytes(result[STRUCTURED]).decode()}])}


def _messages(messages: Raw, spellings: Mapping[str, Spelling]) -> Raw:
    return _each(messages, spellings, lambda message, place: _message(message, spellings, place))


def _message(message: Raw, spellings: Mapping[str, Spelling], place: int) -> Raw:
    try:
        members = parse_object(message)
    except InvalidMessage:
        return message
    changed = _respelled(members, CONTENT, lambda content: _content(content, spellings, place))
    return message if changed is members else raw(changed)


def _content(content: Raw, spellings: Mapping[str, Spelling], place: int) -> Raw:
    return _block(content, spellings, place) if is_object(content) else _blocks(content, spellings)


def _blocks(blocks: Raw, spellings: Mapping[str, Spelling]) -> Raw:
    return _each(blocks, spellings, lambda block, place: _block(block, spellings, place))


def _each(items: Raw, spellings: Mapping[str, Spelling], respell: Callable[[Raw, int], Raw]) -> Raw:
    """A list with each item respelled; the same object if none changes."""
    if not any(may_hold(items, type.encode()) for type in spellings):
        return items
    try:
        parsed = parse_array(items, MAX_ITEMS)
    except (TooMany, msgspec.MsgspecError, RecursionError):
        return items
    changed = [respell(item, place) for place, item in enumerate(parsed)]
    return items if all(map(is_, parsed, changed)) else raw(changed)


def _block(block: Raw, spellings: Mapping[str, Spelling], place: int) -> Raw:
    members = object_or_empty(block)
    respell = spellings.get(parse_text(members.get("type", b"")) or "")
    return block if respell is None else raw(respell(members, place))


def _link_as_text(link: Params, place: int) -> dict[str, object]:
    """A text with the link's name, its URI and its description: `name: uri`."""
    said = {key: parse_text(link.get(key, b"")) for key in ("title", "name", "uri", "description")}
    first = ": ".join(text for text in (said["title"] or said["name"], said["uri"]) if text)
    text = "\n".join(line for line in (first, said["description"]) if line)
    return {**_annotations(link), "type": "text", "text": text}


def _audio_as_resource(audio: Params, place: int) -> dict[str, object]:
    """An embedded resource with the same data, under a URI of its place alone."""
    contents: dict[str, object] = {"uri": f"audio:{place}", "blob": audio.get("data", "")}
    if "mimeType" in audio:
        contents["mimeType"] = audio["mimeType"]
    return {**_annotations(audio), "type": "resource", "resource": contents}


def _annotations(block: Params) -> dict[str, object]:
    return {key: block[key] for key in ("annotations", "_meta") if key in block}


_SPELLINGS: Final[Mapping[str, Mapping[str, Spelling]]] = {
    V2024_11_05: {"audio": _audio_as_resource, "resource_link": _link_as_text},
    V2025_03_26: {"resource_link": _link_as_text},
}
"""How a revision spells the types of blocks that it does not have."""

WITH_OLDER_CONTENT: Final = frozenset(_SPELLINGS)
"""The revisions that do not know all content."""
