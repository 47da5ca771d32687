"""Send a request of an upstream (sampling, elicitation, roots) to a handshake client, and await its result.

Refuses requests for which the client declared no capability. Clients of revisions before 2025-11-25 are asked in the
forms that these have, but multiple choices have none there and pass unchanged: the client refuses them, and the server
is told. Knows no transport.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never

import msgspec
from msgspec import Raw

from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import Caller
from mcproxy.pending_requests import PeerGone, PendingRequests, RequestTimeout, Timeouts
from mcproxy.protocol.eras import V2025_11_25
from mcproxy.protocol.inputs import missing_capabilities, named, refusal_code
from mcproxy.protocol.json.bounds import MAX_VALUES, Bounded, TooMany, check_values, parse_array
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    ErrorResponse,
    Message,
    Params,
    RequestId,
    Response,
    object_or_empty,
    parse_text,
    raw,
)

MAX_MESSAGES: Final = 10_000
"""Messages of a question, and blocks of one, that are looked at; a longer list passes as it is."""

_UNREADABLE: Final = (TooMany, msgspec.MsgspecError, RecursionError)
_ROLES: Final = frozenset({"user", "assistant"})

_MESSAGES: Final = "messages"
_SCHEMA: Final = "requestedSchema"
_PROPERTIES: Final = "properties"
_CHOICES: Final = "oneOf"


class _Choice(msgspec.Struct):
    value: str = msgspec.field(name="const")
    title: str


_choices = Bounded(list[_Choice])


async def ask(
    requests: PendingRequests,
    caller: Caller,
    request: InputRequest,
    send: Callable[[Message], None],
    timeout: float,
    id: RequestId | None = None,
) -> Raw:
    """The client's result. Raises McpError with the client's error, or where it cannot answer, is gone, or times out.

    A request that is given up is cancelled (cancellation, Behavior Requirements). `timeout` is in seconds; `id` is the
    request's, minted if None.
    """
    check_declared(caller, request)

    params = in_older_form(caller.version, request.params)

    was_put = False

    async def put(message: Message) -> None:
        nonlocal was_put
        send(message)
        was_put = True

    async def take_back(cancelled: Message) -> None:
        if was_put:
            send(cancelled)

    try:
        answer = await requests.exchange(
            request.method, params, put, Timeouts(timeout, timeout), send_cancel=take_back, id=id
        )
    except PeerGone as gone:
        raise McpError(INVALID_REQUEST, f"the client cannot be asked {request.method}: {gone}") from gone
    except RequestTimeout as late:
        sentence = f"the client did not answer {request.method} within {timeout:g} s (ask_timeout)"
        raise McpError(INTERNAL_ERROR, sentence, reason=Reason.TIMEOUT) from late
    match answer:
        case Response(result=result):
            return raw(result)
        case ErrorResponse(error=error):
            raise McpError(error.code, error.message, error.data)
        case _:
            assert_never(answer)


def check_declared(caller: Caller, request: InputRequest) -> None:
    """Raises McpError where the client did not declare the capabilities that the request needs."""
    missing = missing_capabilities(caller.capabilities, request.method, request.params)
    if missing:
        sentence = f"the client cannot answer {request.method}: it did not declare {named(missing)}"
        raise McpError(refusal_code(caller.capabilities, request.method), sentence)


class NoClient:
    """The way back during a notification, or while a session is opened: it leads to no client."""

    def notify(self, method: str, params: Params) -> None:
        return

    async def ask(self, request: InputRequest) -> Raw:
        raise McpError(INVALID_REQUEST, f"{request.method} outside of a client's request")


def in_older_form(version: str, question: Params) -> Params:
    """The params of a question in the spelling of `version`; the same object if nothing changes."""
    if version >= V2025_11_25:
        return question
    if _MESSAGES in question:
        return _with_single_blocks(question)
    return _with_named_choices(question) if _SCHEMA in question else question


def _with_single_blocks(question: Params) -> Params:
    """Returns a question of sampling in which each message has one block of content, as those revisions have it."""
    try:
        check_values(question[_MESSAGES], MAX_VALUES)
        messages = parse_array(question[_MESSAGES], MAX_MESSAGES)
    except _UNREADABLE:
        return question
    spelled = [single for message in messages for single in _divided(message)]
    return question if spelled == messages else {**question, _MESSAGES: raw(spelled)}


def _divided(message: Raw) -> list[Raw]:
    """Returns a message for each of the blocks of one; the same where it has no list of them."""
    members = object_or_empty(message)
    role = parse_text(members.get("role", b""))
    try:
        blocks = parse_array(members.get("content", b""), MAX_MESSAGES)
    except _UNREADABLE:
        return [message]
    if role not in _ROLES or not blocks:
        return [message]
    return [raw({"role": role, "content": block}) for block in blocks]


def _with_named_choices(question: Params) -> Params:
    schema = object_or_empty(question[_SCHEMA])
    properties = object_or_empty(schema.get(_PROPERTIES, EMPTY_OBJECT))
    spelled = {name: _spelled(value) for name, value in properties.items()}
    if all(spelled[name] is value for name, value in properties.items()):
        return question
    return {**question, _SCHEMA: raw({**schema, _PROPERTIES: spelled})}


def _spelled(field: Raw) -> Raw:
    """`oneOf` with constants and titles (2025-11-25, TitledSingleSelectEnumSchema) as `enum` and `enumNames`."""
    members = object_or_empty(field)
    if _CHOICES not in members or "enum" in members:
        return field
    try:
        choices = _choices.decode(members[_CHOICES])
    except msgspec.MsgspecError:
        return field
    rest = {key: value for key, value in members.items() if key != _CHOICES}
    return raw({**rest, "enum": [each.value for each in choices], "enumNames": [each.title for each in choices]})
