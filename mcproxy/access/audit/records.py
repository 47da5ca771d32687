"""Records of finished calls. `record_lines` writes them.

Writes and redacts nothing: arguments are hashed under a key, or kept as they came for `record_lines` (requirement R44).
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from random import getrandbits
from typing import Final, Literal

import msgspec
from msgspec import Raw

from mcproxy.call.calls import Call, CallSubject, Complete, HookVerdict, InputRequired, Outcome
from mcproxy.call.identity import Caller
from mcproxy.protocol.envelope import META
from mcproxy.protocol.jsonrpc import InvalidMessage, RequestId, parse_object, parse_text, size_of
from mcproxy.sealing import Digest

REMEMBERED: Final = 1024
"""Sessions and texts that are remembered: most records name the same callers and tools."""
MAX_SHOWN: Final = 4096
"""Bytes of arguments up to which they are shown; of larger ones only the hash is."""

_TRACE: Final = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")


class End(msgspec.Struct, frozen=True):
    """The end of a call."""

    at: float
    """The Unix time in seconds at which the call came."""
    seconds: float
    label: str
    outcome: Outcome | None
    """None if the call was cancelled."""
    size: int | None = None
    """Bytes of its result, where that was measured already."""


class Record(msgspec.Struct, frozen=True):
    """One finished call. Times are in seconds, sizes in bytes."""

    at: float
    """The Unix time at which the call came."""
    trace: str
    id: RequestId | None
    caller: Caller
    session: str | None
    """A digest of the session's key."""
    method: str
    seen: CallSubject
    outcome: str
    code: int | None
    """The error code."""
    seconds: float
    upstream_seconds: float
    size_in: int
    size_out: int
    arguments_hash: str | None = None
    arguments: Raw | None = None
    via: str | None = None
    """The gateway's own tool through which the call was made."""
    verdicts: tuple[HookVerdict, ...] = ()
    """The verdicts of hooks."""


class Digests:
    """Keyed digests of arguments and session keys. Remembers those of the latest sessions."""

    def __init__(self, digest: Digest) -> None:
        self.arguments: Final = partial(digest, "audit arguments")
        self.session: Final = lru_cache(REMEMBERED)(lambda key: digest("audit session", key.encode()))


def recorded(
    call: Call, seen: CallSubject, end: End, arguments: Literal["hash", "redacted", "none"], digests: Digests
) -> Record:
    """The record of a finished call; `arguments` is the setting of that name."""
    params, caller, notes = call.params, call.caller, call.notes
    code, size = (None, end.size) if end.size is not None else _gist(end.outcome)
    given = params.get("arguments") if arguments != "none" else None
    return Record(  # Python makes a dictionary for more than fifteen keyword arguments
        end.at,
        notes.trace or trace_id(params) or _new_trace_id(),
        call.id,
        caller,
        session=None if caller.session is None else digests.session(caller.session),
        method=call.row.name,
        seen=seen,
        outcome=end.label,
        code=code,
        seconds=end.seconds,
        upstream_seconds=notes.upstream_seconds,
        size_in=sum(map(len, params.values())),
        size_out=size,
        verdicts=notes.verdicts,
        arguments_hash=None if given is None else digests.arguments(given),
        # Without the copy, a short text would keep its whole message in memory.
        via=notes.via,
        arguments=given.copy() if arguments == "redacted" and given is not None and len(given) <= MAX_SHOWN else None,
    )


def trace_id(params: dict[str, Raw]) -> str | None:
    """The trace that a call says it belongs to (W3C Trace Context, in `_meta` as in 2026-07-28)."""
    if META not in params:
        return None
    try:
        parent = parse_text(parse_object(params[META]).get("traceparent", b""))
    except InvalidMessage:
        return None
    match = _TRACE.fullmatch(parent or "")
    return match[1] if match else None


def _new_trace_id() -> str:
    """A random id; it is no secret."""
    return getrandbits(128).to_bytes(16, "big").hex()


def _gist(outcome: Outcome | None) -> tuple[int | None, int]:
    """The error code of an outcome, if any, and its size in bytes."""
    if outcome is None:
        return None, 0
    if isinstance(outcome, (Complete, InputRequired)):
        return None, size_of(outcome.result)
    return outcome.error.code, len(outcome.error.message) + len(outcome.error.data or b"")
