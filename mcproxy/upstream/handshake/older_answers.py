"""Clients' answers for servers of revisions before 2025-11-25: a message of a model in one block of content.

Blocks that make no single one, as a text and an image, pass unchanged: the server refuses them, and says so.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.protocol.eras import V2025_11_25
from mcproxy.protocol.json.bounds import TooMany, parse_array
from mcproxy.protocol.jsonrpc import Params, object_or_empty, parse_text, raw

MAX_BLOCKS: Final = 10_000
"""Blocks of an answer that are looked at; a longer list passes as it is."""

_CONTENT: Final = "content"
_TEXT: Final = "text"


def with_single_block(version: str | None, answer: Params) -> Params:
    """An answer in the spelling of `version` (schema, CreateMessageResult); the same object if nothing changes."""
    if version is None or version >= V2025_11_25 or _CONTENT not in answer:
        return answer
    try:
        blocks = parse_array(answer[_CONTENT], MAX_BLOCKS)
    except (TooMany, msgspec.MsgspecError, RecursionError):
        return answer
    block = blocks[0] if len(blocks) == 1 else _joined(blocks)
    return answer if block is None else {**answer, _CONTENT: block}


def _joined(blocks: list[Raw]) -> Raw | None:
    """Several blocks of text as one; None where there are none, or others among them."""
    read = [object_or_empty(block) for block in blocks]
    texts = [parse_text(each.get(_TEXT, b"")) for each in read if parse_text(each.get("type", b"")) == _TEXT]
    lines = [text for text in texts if text is not None]
    return raw({"type": _TEXT, _TEXT: "\n".join(lines)}) if lines and len(lines) == len(blocks) else None
