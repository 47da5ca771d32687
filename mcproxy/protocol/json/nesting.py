"""The depth of a JSON value, measured without reading it: eight brackets at a time, in bounded memory.

What is kept is read again, and a value that the stack has room for now may be too deep for it then. Takes valid JSON;
of anything else it says nothing that means anything, in as little time.
"""

from __future__ import annotations

from itertools import accumulate
from operator import add
from typing import Final

from msgspec import Raw

_CHUNK: Final = 1 << 16
"""Brackets that are looked at together: what is held of each chunk takes about ten times its bytes."""
_BITS: Final = bytes({ord("{"): ord("1"), ord("["): ord("1"), ord("}"): ord("0"), ord("]"): ord("0")}.get(byte, byte)
                     for byte in range(256))  # fmt: skip
"""An opening bracket as the digit 1, a closing one as 0."""
_REST: Final = bytes(set(range(256)) - set(b'[]{}"'))


def _peak(brackets: int) -> int:
    """How far the depth rises on the way through eight brackets, the first of them in the highest bit."""
    return max(accumulate([1 if bit == "1" else -1 for bit in f"{brackets:08b}"], initial=0))


_CHANGES: Final = bytes((2 * brackets.bit_count() - 8) % 256 for brackets in range(256))
"""How far the depth has risen behind them, as signed bytes."""
_PEAKS: Final = bytes(map(_peak, range(256)))


def nests_deeper(data: bytes | Raw, levels: int) -> bool:
    """Whether the JSON value `data` has more than so many levels of objects and arrays."""
    text = bytes(data)
    if text.count(b"{") + text.count(b"[") <= levels:
        return False
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two quotes beside each other are an empty string, or the border of two: what is inside stays inside without them.
    marks = text.translate(_BITS, _REST).replace(b'""', b"")
    depth, is_string = 0, False
    for at in range(0, len(marks), _CHUNK):
        pieces = marks[at : at + _CHUNK].split(b'"')
        outside = b"".join(pieces[is_string::2])
        is_string ^= len(pieces) % 2 == 0
        # Brackets that close, added to fill the last eight, raise no peak, and are taken back.
        added = -len(outside) % 8
        packed = int(b"0" + outside + b"0" * added, 2).to_bytes((len(outside) + added) // 8, "big")
        changes = memoryview(packed.translate(_CHANGES)).cast("b")
        if depth + max(map(add, accumulate(changes, initial=0), packed.translate(_PEAKS)), default=0) > levels:
            return True
        depth += sum(changes) + added
    return False
