"""Bounds what an upstream says of itself when it connects: it is kept as long as the upstream, and told to clients."""

from __future__ import annotations

from msgspec import Raw

from mcproxy.call.upstreams import ServerIdentity
from mcproxy.catalog.instructions import CUT
from mcproxy.protocol.capabilities import MAX_SAID, fitting
from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import Params, object_or_empty, raw


def identified(
    era: Era, version: str, capabilities: Params, info: Raw | None, instructions: str | None
) -> ServerIdentity:
    """The identity with at most MAX_SAID bytes of each part, copied out of the message that it came in."""
    said = fitting(capabilities)
    shown = info if info is None or len(info) <= MAX_SAID else raw(fitting(object_or_empty(info)))
    text = instructions if instructions is None else _cut(instructions)
    return ServerIdentity(
        era,
        version,
        {key: value.copy() for key, value in said.items()},
        None if shown is None else shown.copy(),
        text,
        is_cut=said is not capabilities or shown is not info or text is not instructions,
    )


def _cut(text: str) -> str:
    data = text.encode(errors="replace")
    return text if len(data) <= MAX_SAID else data[: MAX_SAID - len(CUT)].decode(errors="ignore") + CUT
