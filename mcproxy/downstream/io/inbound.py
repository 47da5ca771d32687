"""Bytes from a client to messages, single or batched, and the era that they speak. Answers nothing."""

from __future__ import annotations

import codecs
from typing import Final

from mcproxy.downstream.io.responses import Refusal
from mcproxy.http import server as http
from mcproxy.protocol.envelope import says_version
from mcproxy.protocol.jsonrpc import (
    INVALID_REQUEST,
    InvalidMessage,
    Message,
    Notification,
    Request,
    Resemblance,
    parse_batch,
    parse_message,
)
from mcproxy.protocol.methods import METHODS

_OPENING: Final = frozenset(row.name for row in METHODS.values() if row.opens)

Batch = list[Message | InvalidMessage]
Incoming = Message | Batch


def read_inbound(data: bytes) -> Incoming:
    """The messages.

    Raises InvalidMessage; a malformed answer becomes an error instead, which settles its request at once.
    """
    try:
        if data[:1] == b"{":
            return parse_message(data)
        # RFC 8259, section 8.1: a byte order mark may be ignored. Some shells of Windows begin a pipe with one.
        data = data.removeprefix(codecs.BOM_UTF8)
        batch = parse_batch(data)
        return parse_message(data) if batch is None else batch
    except InvalidMessage as invalid:
        if invalid.like is not Resemblance.ANSWER:
            raise
        return invalid.response()


def is_initialize(incoming: Incoming) -> bool:
    """Whether it is the request that opens a handshake session."""
    return isinstance(incoming, Request) and incoming.method in _OPENING


async def whole_body(request: http.Request, timeout: float) -> bytes:
    """The body of an HTTP request, awaited for `timeout` seconds. Raises Refusal."""
    try:
        return await request.body(timeout)
    except http.BodyTimeout as late:
        sentence = f"the message did not arrive within {timeout:g} s (read_timeout)"
        raise Refusal(408, INVALID_REQUEST, sentence) from late
    except http.BodyTooLarge as large:
        raise Refusal(413, INVALID_REQUEST, "the body is too large (limits.max_body_bytes)") from large
    except http.BodyIncomplete as cut:
        raise Refusal(400, INVALID_REQUEST, "the body is not what its headers say, or is cut short") from cut


def speaks_stateless(incoming: Incoming) -> bool:
    """Whether a message names its own protocol version, as every request does since 2026-07-28 (versioning)."""
    return isinstance(incoming, (Request, Notification)) and says_version(incoming.params)
