"""JSON-RPC batches, which only sessions of 2025-03-26 may send: checked, received and encoded. Knows no transport."""

from __future__ import annotations

from typing import assert_never

from mcproxy.call.errors import McpError
from mcproxy.downstream.handshake.conversation import Outlet, receive, receive_unanswered
from mcproxy.downstream.handshake.session import Session
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.inbound import Batch
from mcproxy.protocol.eras import has_batches
from mcproxy.protocol.jsonrpc import (
    INVALID_REQUEST,
    ErrorResponse,
    InvalidMessage,
    Notification,
    Request,
    Response,
    encode,
)


def check_batch(batch: Batch, version: str | None, most: int) -> None:
    """Raises McpError if a session of that version (None: no session yet) may not send this batch."""
    if version is None or not has_batches(version):
        sentence = "a batch of messages, which exist in sessions of version 2025-03-26 alone; send them one by one"
        raise McpError(INVALID_REQUEST, sentence)
    if len(batch) > most:
        raise McpError(INVALID_REQUEST, f"a batch of {len(batch)} messages; at most {most} are taken (max_batch)")


def receive_batch(context: TransportContext, session: Session, batch: Batch, outlet: Outlet) -> None:
    """Takes a batch. `outlet` is finished once for each member that is answered (see `count_answered`)."""
    for member in batch:
        match member:
            case InvalidMessage():
                outlet.send(member.response())
                outlet.finish()
            case Request() | Notification() | Response() | ErrorResponse():
                receive(context, session, member, outlet)
            case _:
                assert_never(member)


def receive_unanswered_batch(context: TransportContext, session: Session, batch: Batch) -> None:
    """Takes a batch that gets no answer."""
    for member in batch:
        if isinstance(member, Notification | Response | ErrorResponse):
            receive_unanswered(context, session, member)


def count_answered(batch: Batch) -> int:
    """The number of a batch's members that get an answer."""
    return sum(isinstance(member, Request | InvalidMessage) for member in batch)


def encode_batch(answers: list[Response | ErrorResponse]) -> bytes:
    """The answers to a batch as one JSON array."""
    return b"[" + b",".join(map(encode, answers)) + b"]"
