"""Texts that the gateway's own tools return, short enough for a model. They name what is left out and how to read it.

Whole definitions come first, in the order in which they were asked for. A definition too long for any answer is given
in pieces. Nothing is kept between two pieces, so a definition that changes meanwhile has to be read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Raw

from mcproxy.call.calls import Complete
from mcproxy.catalog.search.own_tools import DESCRIBE, effect_of
from mcproxy.catalog.search.signatures import MAX_TOOL_NAME
from mcproxy.catalog.views.view import Shown
from mcproxy.protocol.jsonrpc import first_level

MAX_TEXT: Final = 32 * 1024
"""Bytes of definitions in one answer; notes on what is left out are added to that."""


def told(text: str, *, is_error: bool = False) -> Complete:
    """A tool result with one text block."""
    members: dict[str, object] = {"content": [{"type": "text", "text": text}]}
    return Complete(first_level({**members, "isError": True} if is_error else members), is_error=is_error)


def wrong(found: Iterable[str], schema: Raw, tool: str) -> Complete:
    """A tool error (CallToolResult) for wrong arguments: says what is wrong, and shows the schema for another try.

    `tool` is the name to ask `describe_tools` for if the schema is too long for this answer.
    """
    if len(schema) > MAX_TEXT:
        text = f"The input schema is left out, as it has {len(schema)} bytes: {DESCRIBE} gives it for {_short(tool)}."
    else:
        text = f"The input schema is: {bytes(schema).decode(errors='replace')}"
    return told(f"Wrong arguments: {'; '.join(found)}. {text}", is_error=True)


def definitions_answer(known: Sequence[Shown], unknown: Sequence[str], start: int) -> Complete:
    """The definitions of the `known` tools; of a single tool, from byte `start` on. A tool error if none is known."""
    parts, left_out, room = [], [], MAX_TEXT
    for shown in known:
        if len(known) == 1 or len(shown.entry) <= room:
            room -= len(shown.entry)
            parts.append(f"{effect_of(shown.entry).value}: {_piece(shown, start if len(known) == 1 else 0)}")
        else:
            left_out.append(shown)
    if left_out:
        each = ", ".join(f"{_short(shown.key)} ({len(shown.entry)} bytes)" for shown in left_out)
        parts.append(f"Left out, as there is no room for more here: {each}. Ask for them apart.")
    parts += [f"Unknown tool: {_short(name)}" for name in unknown]
    return told("\n\n".join(parts), is_error=not known)


def _piece(shown: Shown, start: int) -> str:
    whole = bytes(shown.entry)
    if start == 0 and len(whole) <= MAX_TEXT:
        return whole.decode()
    start = min(start, len(whole))
    piece = whole[start : start + MAX_TEXT]
    text = piece.decode(errors="ignore")
    end = start + len(piece) if start + len(piece) >= len(whole) else start + len(text.encode())
    left = f"; ask again with start {end} for what follows" if end < len(whole) else ""
    return f"{text}\n[bytes {start} to {end} of {len(whole)}{left}]"


def _short(name: str) -> str:
    return name[:MAX_TOOL_NAME]
