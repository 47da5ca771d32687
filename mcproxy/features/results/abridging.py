"""Shortens a result over its limit: cuts texts and structured content, and adds links to the whole.

This module divides the available bytes among the parts; `shortening` and `structured` cut them, and `kept` keeps the
whole result.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.concurrency.turns import Steps
from mcproxy.features.results.kept import KeptResults, Origin
from mcproxy.features.results.shortening import (
    MIN_TEXT,
    NOTE,
    Block,
    block_of,
    compact,
    head_and_tail,
    planned_cuts,
    with_text,
)
from mcproxy.features.results.structured import STEP, shortened_arrays
from mcproxy.protocol.envelope import STRUCTURED
from mcproxy.protocol.eras import V2024_11_05, V2025_03_26
from mcproxy.protocol.json.bounds import TooMany, parse_array
from mcproxy.protocol.jsonrpc import Params, raw, size_of

MAX_BLOCKS: Final = 50_000
"""The most blocks of a result that is shortened; a result with more passes unchanged."""

_BLOCK_COST: Final = 10_000
"""Bytes that take as long to read as one block takes to examine."""
_CONTENT: Final = "content"
_WITHOUT_LINKS: Final = frozenset({V2024_11_05, V2025_03_26})
"""Revisions without blocks of type `resource_link`."""
_JSON: Final = "application/json"


class SizeVerdict(Enum):
    """What happened to a result over its limit; the values are a label of metrics."""

    SHORTENED = "shortened"
    STRUCTURED = "structured"
    """Its structured content passed whole, because its output schema allows nothing short enough."""
    UNCUT = "uncut"
    """It stays over its limit: its parts are never cut (images, audio, blobs, `_meta`), or it has too many blocks."""
    UNKEPT = "unkept"
    """It passed whole, because there was no room to keep it."""


class Abridgement:
    """Cuts the result of one call."""

    def __init__(self, kept: KeptResults, origin: Origin, limit: int) -> None:
        self._kept = kept
        self._origin = origin
        self._limit = limit

    def of(self, result: Params, schema: Raw | None) -> Steps[tuple[Params, SizeVerdict | None]]:
        """Returns the shortened result and a verdict, which is None if the result is within its limit.

        A limit does not count white space between tokens or, in the texts of blocks, JSON escapes.
        """
        try:
            blocks = yield from _read(result.get(_CONTENT, Raw(b"[]")))
        except (TooMany, msgspec.MsgspecError, RecursionError):
            return result, SizeVerdict.UNCUT
        measured = {name: self._measured(value) for name, value in result.items() if name != _CONTENT}
        structured = measured.get(STRUCTURED, Raw(b""))
        size = len(structured) + sum(block.size for block in blocks)
        passing = size_of(measured) - len(structured) + sum(block.passing for block in blocks)
        if size + passing <= self._limit:
            return result, None
        yield
        room = max(self._limit - passing, self._limit // 2)
        if size <= room:
            return result, SizeVerdict.UNCUT
        shown, verdict = yield from self._cut(result, structured, schema, blocks, room)
        is_over = passing > self._limit // 2 and size_of(shown) > self._limit
        if verdict is SizeVerdict.SHORTENED and (shown is result or is_over):
            verdict = SizeVerdict.UNCUT
        return shown, verdict

    def _cut(
        self, result: Params, structured: Raw, schema: Raw | None, blocks: Sequence[Block], room: int
    ) -> Steps[tuple[Params, SizeVerdict]]:
        """Cuts structured content and blocks to `room` bytes in total: half for each if both are large."""
        verdict = SizeVerdict.SHORTENED
        cut: Raw | None = None
        of_structured = max(room // 2, room - sum(block.size for block in blocks) - NOTE)
        if len(structured) > of_structured:
            if not self._kept.fits(len(result[STRUCTURED]) + self._origin.size):
                return result, SizeVerdict.UNKEPT
            cut = yield from shortened_arrays(structured, schema, of_structured)
            if cut is None:
                verdict = SizeVerdict.STRUCTURED
        left = room - len(structured) if cut is None else room - len(cut) - NOTE
        cuts = planned_cuts(blocks, max(left, MIN_TEXT))
        if cut is None and not cuts.texts and not cuts.left_out:
            return result, verdict
        wholes = [b"[%b]" % b",".join(block.value for block in blocks if block.is_cut)] if cuts.left_out else []
        wholes = wholes or [blocks[place].text or b"" for place in cuts.texts]
        parts = [*wholes, *([] if cut is None else [result[STRUCTURED]])]
        if not self._kept.fits(sum(len(part) + self._origin.size for part in parts)):
            return result, SizeVerdict.UNKEPT
        yield
        changes: Params = {}
        shown: list[Raw | None] = [block.value for block in blocks]
        added: list[Raw] = []
        if cut is not None:
            changes[STRUCTURED] = cut
            uri, links = self._keep(bytes(result[STRUCTURED]), _JSON)
            text = f"[arrays of the structured content are cut to their start; the whole is {uri} ...]"
            added += [_text(text), *links]
        if cuts.left_out:
            uri, links = self._keep(wholes[0], _JSON)
            added += links
            shown[cuts.left_out[0]] = _text(_left_out(len(cuts.left_out), len(blocks), uri))
            for place in cuts.left_out[1:]:
                shown[place] = None
        for place, of_text in cuts.texts.items():
            block = blocks[place]
            if not cuts.left_out:
                uri, links = self._keep(block.text or b"", "text/plain")
                added += links
            shown[place] = with_text(block.value, _head_and_tail(block.text or b"", of_text, uri))
            yield
        changes[_CONTENT] = raw([*(block for block in shown if block is not None), *added])
        return {**result, **changes}, verdict

    def _keep(self, whole: bytes, mime_type: str) -> tuple[str, list[Raw]]:
        """Keeps a whole text or value; returns its URI, and blocks that link to it."""
        uri = self._kept.keep(self._origin, whole, mime_type)
        if self._origin.caller.version in _WITHOUT_LINKS:
            return uri, []
        link = {"type": "resource_link", "uri": uri, "name": "whole result", "mimeType": mime_type, "size": len(whole)}
        return uri, [raw(link)]

    def _measured(self, value: Raw) -> Raw:
        """The value without white space, unless it is too large to be kept."""
        return compact(value) if self._kept.fits(len(value)) else value


def _read(content: Raw) -> Steps[list[Block]]:
    """Raises TooMany, MsgspecError or RecursionError."""
    blocks: list[Block] = []
    read = len(content)
    for value in parse_array(content, MAX_BLOCKS):
        read += len(value) + _BLOCK_COST
        if read >= STEP:
            read = 0
            yield
        blocks.append(block_of(value))
    return blocks


def _left_out(number: int, of: int, uri: str) -> str:
    return (
        f"[... {number} of {of} blocks are left out; all but images, audio and blobs are the resource {uri}"
        f", its first 65536 bytes are {uri}/0-65536 ...]"
    )


def _head_and_tail(text: bytes, room: int, uri: str) -> str:
    head, tail = head_and_tail(text, max(room, MIN_TEXT))
    left = len(text) - len(head) - len(tail)
    return (
        f"{head.decode()}\n[... {left} of {len(text)} bytes are left out; the whole is the resource {uri}"
        f", its first 65536 bytes are {uri}/0-65536 ...]\n{tail.decode()}"
    )


def _text(text: str) -> Raw:
    return raw({"type": "text", "text": text})
