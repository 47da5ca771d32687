"""What arrived in one piece, and which era it speaks. Answers nothing."""

from __future__ import annotations

import codecs

from mcproxy.protocol.eras import META_VERSION
from mcproxy.protocol.jsonrpc import (
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
    # RFC 8259, section 8.1: a mark may be ignored. Some shells of Windows begin a pipe with one.
    data = data.removeprefix(codecs.BOM_UTF8)
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
