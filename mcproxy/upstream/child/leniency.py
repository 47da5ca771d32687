"""Lines on a child's stdout that hold a message and something else, or a part of one.

A line that begins with `{` and ends with `}` never comes here. Pure, but for the lines of a message that is not whole.
"""

from __future__ import annotations

import re
from typing import Final

from mcproxy.protocol.jsonrpc import ErrorResponse, InvalidMessage, Response, parse_message
from mcproxy.upstream.link import BOM
from mcproxy.upstream.oddities import Oddities

MAX_PROMPT: Final = 200
"""Bytes before a message that may be a prompt."""
MAX_LINES: Final = 100_000
"""Lines of one message that is written over several."""

_COLOURS: Final = rb"(?:\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[()][A-Z0-9]|[=>])|[\x00\s])"
_BEFORE: Final = re.compile(rb"%b++" % _COLOURS)
_AFTER: Final = re.compile(rb"%b+\Z" % _COLOURS)
_LONGEST_COLOURS: Final = 256
_PROMPT: Final = re.compile(rb"(?<![-=<])[>$%#]\s*\Z")


def without_colours(line: bytes, oddities: Oddities) -> bytes:
    """`line` without terminal codes and NUL bytes around it. JSON has none of them.

    https://github.com/modelcontextprotocol/inspector/issues/343 shows a server whose logger colours its stdout.
    """
    found = _BEFORE.match(line)
    bare = line if found is None else line[found.end() :]
    tail = bare[-_LONGEST_COLOURS:]
    bare = bare[: len(bare) - len(tail)] + _AFTER.sub(b"", tail)
    if bare != line and bare[:1] == b"{":
        oddities.note("terminal_codes", "writes terminal codes around its messages; accepted")
    return bare


def after_prompt(line: bytes, oddities: Oddities) -> bytes | None:
    """The answer that stands behind a prompt, as `Server ready> `; None if there is none.

    What follows other words may be a log of messages, and so may a request.
    """
    start = line.find(b"{", 0, MAX_PROMPT)
    if start <= 0 or _PROMPT.search(line[:start]) is None:
        return None
    try:
        message = parse_message(line[start:])
    except InvalidMessage:
        return None
    if not isinstance(message, Response | ErrorResponse):
        return None
    oddities.note("prompt", "writes a prompt before its messages; accepted")
    return line[start:]


class SpreadMessage:
    """A message that is written over many lines: from a line `{` to a line `}`, all between them indented.

    Anything else on stdout gives it up: then the lines were no message.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: list[bytes] = []
        self._size = 0

    @property
    def is_begun(self) -> bool:
        """Whether a line `{` came, and its `}` has not."""
        return bool(self._lines)

    def take(self, line: bytes, oddities: Oddities) -> bytes | None:
        """Takes a line, with its indentation; returns the message that it ends, if any."""
        bare = line.rstrip().removeprefix(BOM)
        if not self._lines:
            if bare == b"{":
                self._lines, self._size = [bare], 1
            return None
        self._size += len(bare) + 1
        is_end = bare == b"}"
        if self._size > self._limit or len(self._lines) > MAX_LINES or not (is_end or bare[:1] in (b" ", b"\t", b"")):
            self._lines = []
            return None
        self._lines.append(bare)
        if not is_end:
            return None
        message, self._lines = b"\n".join(self._lines), []
        oddities.note("many_lines", "writes a message over many lines; accepted")
        return message
