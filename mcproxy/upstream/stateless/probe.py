"""The era that an upstream speaks, judged by its answer to `server/discover` (2026-07-28, versioning).

Pure: the transports send the request, and this judges the answer (Backward Compatibility). Silence, refused credentials
and failures say little about the era; the transports decide on them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from mcproxy import __version__
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.protocol.envelope import Envelope, wrap
from mcproxy.protocol.eras import HANDSHAKE_VERSIONS, LATEST, META_SERVER_INFO, Era
from mcproxy.protocol.json.bounds import parse_texts
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    HEADER_MISMATCH,
    METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY,
    UNSUPPORTED_PROTOCOL_VERSION,
    ErrorObject,
    ErrorResponse,
    InvalidMessage,
    Params,
    Request,
    Response,
    nonnull,
    parse_object,
    parse_text,
    raw,
)
from mcproxy.protocol.methods import DISCOVER
from mcproxy.upstream.identity import identified
from mcproxy.upstream.link import MAX_VERSIONS, Unreachable, supported_versions

OURSELVES: Final = Envelope(LATEST, info=raw({"name": "mcproxy", "version": __version__}))
"""The envelope of the gateway's own requests: it declares no capability, since no client is behind them."""

QUESTION: Final = Request("discover", DISCOVER, wrap({}, OURSELVES))
"""The id of the probe. No conversation mints it, so a late answer is never taken for that of a call."""

MODERN_ERRORS: Final = frozenset({HEADER_MISMATCH, MISSING_CLIENT_CAPABILITY, UNSUPPORTED_PROTOCOL_VERSION})
"""Error codes that no older revision has (basic, Error Codes)."""

_WITHOUT_SESSION: Final = frozenset({400, 404, 422})
"""Statuses with which servers of the handshake era refuse a request that names no session."""
_HANDSHAKE_WANTED: Final = re.compile(
    r"\bsession[ _-]?id\b|\b(?:server|session) (?:is )?not initialized|\binitialize request|\bsession initialization"
    r"|\b(?:no valid|no such|invalid|unknown|missing) (?:mcp[ -])?session\b"
    r'|(?:^|"|: ?)(?:mcp[ -])?session\b[^".]{0,80}\b'
    r"(?:not found|unknown|expired|invalid|required|missing|terminated)\b",
    re.IGNORECASE,
)
"""What they say then. A tool may speak of sessions too, of a browser or a bank."""

_SHOWN: Final = 20
"""Versions that are named, and characters of each."""


class Older(Exception):
    """The server seems to be of the handshake era. The text says why."""

    def __init__(self, reason: str, *, undecided: bool = False) -> None:
        super().__init__(reason)
        self.undecided = undecided
        """Whether the server may be of either era, as one that is slow or failed: the next attempt asks it again."""


def identity(answer: Response | ErrorResponse) -> ServerIdentity:
    """The identity in a stateless server's answer.

    Raises Older, or Unreachable if the server is stateless and refuses the gateway.
    """
    if isinstance(answer, ErrorResponse):
        raise _judged(answer.error)
    try:
        supported = parse_texts(answer.result["supportedVersions"], MAX_VERSIONS)
    except (KeyError, msgspec.MsgspecError) as error:
        # versioning, matrix: a server of old may "even process an era-ambiguous method under legacy semantics".
        raise Older(f"{DISCOVER} was answered with something other than a DiscoverResult") from error
    if LATEST not in supported:
        raise _mismatched(supported)
    return _identity(answer.result)


def is_modern(error: ErrorObject, status: int) -> bool:
    """Whether the error of a call shows a stateless server: by its code, or by HTTP 404 for an unknown method.

    streamable-http, Protocol Version Header: with 404, "the JSON-RPC error body distinguishes this case".
    """
    return error.code in MODERN_ERRORS or (status == 404 and error.code == METHOD_NOT_FOUND)


def wants_handshake(status: int, text: str) -> bool:
    """Whether a server of the handshake era so refuses a request without a session, of which it executed nothing.

    transports, 2025-11-25, Session Management: a server "SHOULD respond to requests without" one "with HTTP 400".
    """
    return status in _WITHOUT_SESSION and _HANDSHAKE_WANTED.search(text) is not None


def _judged(error: ErrorObject) -> Older | Unreachable:
    said = f"{DISCOVER} was refused: {error.message} ({error.code})"
    if error.code not in MODERN_ERRORS:
        # An unknown method too, also with 404: stateless servers "MUST implement this RPC" (changelog, 2026-07-28), but
        # a gateway of that era may pass it to a server of the other.
        return Older(said)
    if error.code != UNSUPPORTED_PROTOCOL_VERSION:
        return Unreachable(said)
    supported = supported_versions(error)
    if supported is None:
        return Unreachable(f"{said}, and it does not say which versions it supports")
    return Unreachable(f"{said}, though it lists {LATEST}") if LATEST in supported else _mismatched(supported)


def _mismatched(supported: Sequence[str]) -> Older | Unreachable:
    listed = f"it supports protocol versions {', '.join(version[:_SHOWN] for version in supported[:_SHOWN]) or 'none'}"
    if any(version in HANDSHAKE_VERSIONS for version in supported):
        return Older(listed)
    return Unreachable(f"{listed}; known are {', '.join((*HANDSHAKE_VERSIONS, LATEST))}")


def _identity(result: Params) -> ServerIdentity:
    result = nonnull(result)
    try:
        capabilities = parse_object(result.get("capabilities", EMPTY_OBJECT))
        meta = parse_object(result.get("_meta", EMPTY_OBJECT))
    except InvalidMessage as invalid:
        raise Unreachable(f"{DISCOVER} was answered with a malformed result: {invalid.reason}") from invalid
    instructions = parse_text(result.get("instructions", b""))
    return identified(Era.STATELESS, LATEST, capabilities, meta.get(META_SERVER_INFO), instructions)
