"""The messages in a body that a server of the handshake era sent: one, or a batch (2025-03-26)."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.protocol.jsonrpc import (
    ErrorResponse,
    InvalidMessage,
    Message,
    RequestId,
    Resemblance,
    Response,
    parse_batch,
    parse_message,
)
from mcproxy.upstream.link import BOM, is_nearly_json


def messages(data: bytes, cause: RequestId | None = None) -> Sequence[Message | InvalidMessage]:
    """The messages in a body: one, or the members of a batch (2025-03-26).

    Broken JSON without a readable id counts as the answer to request `cause`, in whose response it came.
    """
    try:
        if data[:1] == b"{":
            return (parse_message(data),)
        data = data.removeprefix(BOM)
        batch = parse_batch(data)
        return (parse_message(data),) if batch is None else batch
    except InvalidMessage as invalid:
        if cause is not None and invalid.id is None and is_nearly_json(invalid, data):
            return (InvalidMessage(invalid.code, invalid.reason, cause, Resemblance.ANSWER),)
        return (invalid,)


def has_answer(found: Sequence[Message | InvalidMessage], id: RequestId) -> bool:
    """Whether one of the messages is the answer to request `id`, valid or not."""
    return any(_answered(message) == id for message in found)


def _answered(message: Message | InvalidMessage) -> RequestId | None:
    """The id of the request that a message answers; None if it answers none, or does not say which."""
    match message:
        case Response(id=id) | ErrorResponse(id=id):
            return id
        case InvalidMessage() if message.may_be_answer:
            return message.id
        case _:
            return None
