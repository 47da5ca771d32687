"""What arrived in one piece, and which era it speaks. Answers nothing."""

from __future__ import annotations

from mcproxy.call import McpError
from mcproxy.protocol.eras import META_VERSION, has_batches
from mcproxy.protocol.jsonrpc import (
    INVALID_REQUEST,
    InvalidMessage,
    Message,
    Notification,
    Request,
    parse,
    parse_batch,
    parse_object,
)

Batch = list[Message | InvalidMessage]
Incoming = Message | Batch


def read(data: bytes) -> Incoming:
    """Raises InvalidMessage."""
    batch = parse_batch(data)
    return parse(data) if batch is None else batch


def speaks_stateless(incoming: Incoming) -> bool:
    """Whether this says its protocol version by itself, as every request has since 2026-07-28 (versioning)."""
    if not isinstance(incoming, Request | Notification) or "_meta" not in incoming.params:
        return False
    try:
        return META_VERSION in parse_object(incoming.params["_meta"])
    except InvalidMessage:
        return False


def check_batch(batch: Batch, version: str | None, most: int) -> None:
    """Raises McpError where a session of that version (None: no session yet) may not send this batch."""
    if version is None or not has_batches(version):
        sentence = "a batch of messages, which exist in sessions of version 2025-03-26 alone; send them one by one"
        raise McpError(INVALID_REQUEST, sentence)
    if len(batch) > most:
        raise McpError(INVALID_REQUEST, f"a batch of {len(batch)} messages; at most {most} are taken (max_batch)")
