"""JSON-RPC 2.0 messages to and from bytes, decoded no deeper than the first level of `params` or `result`.

What lies below passes as the very bytes that came in. A message is either understood or refused with
`InvalidMessage`; nothing is repaired. Says nothing about what a method means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcproxy.protocol.json.bounds import LONG, CountedText, TooMany, decode_counted, parse_array, parse_value, uncounted
from mcproxy.protocol.json.malformed import fault, is_json, legible_id, reads_as_call, reason_of

RequestId = int | str
Params = dict[str, Raw]
"""The first level of a JSON object; each value is its raw JSON."""

VERSION: Final = "2.0"

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
RESOURCE_NOT_FOUND: Final = -32002
URL_ELICITATION_REQUIRED: Final = -32042
HEADER_MISMATCH: Final = -32020
MISSING_CLIENT_CAPABILITY: Final = -32021
UNSUPPORTED_PROTOCOL_VERSION: Final = -32022
LIMIT_EXCEEDED: Final = 429
"""Our own, for a limit of the gateway's: outside what JSON-RPC reserves, as basic, "Error Codes", wants new codes."""

_LINE_FEED, _CARRIAGE_RETURN = b"\n\r"  # as numbers, which is what bytes are searched for at once

EMPTY_OBJECT: Final = Raw(b"{}")
NULL: Final = Raw(b"null")

MAX_MEMBERS: Final = 1024
"""Members of an object whose first level is read: `params`, `result`, `_meta` and their like."""
MAX_BATCH: Final = 1000
"""Messages of a batch."""
MAX_EXACT: Final = 2**53
"""The largest integer up to which a float tells each from the next."""

_MANY_MEMBERS_AT: Final = 4 * MAX_MEMBERS
"""Bytes of the shortest object with more than MAX_MEMBERS members: `"":1,` and so on, with a few keys alike."""
WINDOW: Final = 64 * 1024
"""Bytes that are looked through together."""
_ESCAPED: Final = b"\\u00"
"""JSON may spell letters so; then looking for a word among the bytes proves nothing."""
_BACKSLASH: Final = _ESCAPED[0]
_QUOTE: Final = b'"'[0]


class Request(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="jsonrpc", tag=VERSION):
    """A request that is to be answered (JSON-RPC 2.0, section 4)."""

    id: RequestId
    method: str
    params: Params = {}


class Notification(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="jsonrpc", tag=VERSION):
    """A request without an id, which is never answered (JSON-RPC 2.0, section 4.1)."""

    method: str
    params: Params = {}


class Response(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag=VERSION):
    """A success."""

    id: RequestId
    result: Params


class ErrorObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request failed (JSON-RPC 2.0, section 5.1). `data` is encoded JSON."""

    code: int
    message: str
    data: Raw | None = None


class ErrorResponse(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag=VERSION):
    """A failure. `id` is None only where the request's id could not be read."""

    id: RequestId | None
    error: ErrorObject


Answer = Response | ErrorResponse
"""The end of a request: a result or an error."""
Message = Request | Notification | Answer


class Resemblance(Enum):
    """What a malformed message with an id is most like."""

    ANSWER = "it has a result or an error, and no method"
    REQUEST = "it has a method"
    NEITHER = "it has none of the three"


class InvalidMessage(Exception):
    """Bytes that are no message: `code` is PARSE_ERROR or INVALID_REQUEST, `id` the sender's where readable."""

    def __init__(self, code: int, reason: str, id: RequestId | None = None, like: Resemblance | None = None) -> None:
        """`like` is None where there is no id, or nothing says that it is of JSON-RPC at all."""
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.id = id
        self.like = None if id is None else like

    @property
    def may_be_answer(self) -> bool:
        """Whether it may be meant as the answer to request `id`: some servers leave out a result that is empty."""
        return self.like is Resemblance.ANSWER or self.like is Resemblance.NEITHER

    def response(self) -> ErrorResponse:
        """The answer to its sender; without an id where that could not be read."""
        return ErrorResponse(self.id, ErrorObject(self.code, self.reason))


class InvalidObject(InvalidMessage):
    """A value that should be an object and is none, or has too many members. `flaw` continues the value's name."""

    def __init__(self, error: Exception) -> None:
        super().__init__(INVALID_PARAMS, f"expected a JSON object: {reason_of(error)}")
        self.flaw = str(error) if isinstance(error, TooMany) else "must be an object"


class _Error(msgspec.Struct):
    code: int
    message: str
    data: Raw | UnsetType = UNSET


_Key = TypeVar("_Key", str, CountedText)


class _Plain(msgspec.Struct, Generic[_Key]):
    """A well-formed message, decoded at once: results are what is large."""

    jsonrpc: Literal["2.0"]
    id: RequestId | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: dict[_Key, Raw] | UnsetType | None = UNSET
    result: dict[_Key, Raw] | UnsetType = UNSET
    error: _Error | UnsetType = UNSET


class _Envelope(msgspec.Struct):
    """A message of which any member may be malformed."""

    jsonrpc: Raw | UnsetType = UNSET
    id: Raw | UnsetType = UNSET
    method: Raw | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


_ANSWER: Final = Resemblance.ANSWER
_REQUEST: Final = Resemblance.REQUEST

_plain = msgspec.json.Decoder(_Plain[str])
_envelope = msgspec.json.Decoder(_Envelope)
_object = msgspec.json.Decoder(Params)
_id = msgspec.json.Decoder(RequestId)
_number = msgspec.json.Decoder(float)
_text = msgspec.json.Decoder(str)
_error = msgspec.json.Decoder(_Error)
_encoder = msgspec.json.Encoder()


def parse_message(data: bytes | Raw) -> Message:
    """Reads one message. Raises InvalidMessage (JSON-RPC 2.0, section 5.1)."""
    try:
        text = data if isinstance(data, bytes) else bytes(data)
        if not text.isascii():
            text.decode()
        plain = _read_counted(text) if len(text) > LONG else _plain.decode(text)
    except (TooMany, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _read_closely(data)
    id, method = plain.id, plain.method
    if len(text) > _MANY_MEMBERS_AT:
        _check_members(plain)
    if method is not UNSET:
        if id is UNSET:
            return Notification(method, plain.params or {})
        if id is not None:
            return Request(id, method, plain.params or {})
    elif plain.result is not UNSET and plain.error is UNSET and id is not UNSET and id is not None:
        return Response(id, plain.result)
    elif plain.error is not UNSET and plain.result is UNSET:
        return ErrorResponse(None if id is UNSET else id, _error_object(plain.error))
    return _read_closely(data)


def _read_counted(text: bytes) -> _Plain[str]:
    """A long message, as `_plain` decodes it. Raises TooMany, MsgspecError or RecursionError."""
    counted = decode_counted(text, _Plain[CountedText], MAX_MEMBERS)
    params, result = counted.params, counted.result
    return _Plain(
        counted.jsonrpc,
        counted.id,
        counted.method,
        uncounted(params) if isinstance(params, dict) else params,
        uncounted(result) if isinstance(result, dict) else result,
        counted.error,
    )


def _check_members(plain: _Plain[str]) -> None:
    """Raises InvalidMessage where the message has more than MAX_MEMBERS members below its first level."""
    for name, members in (("params", plain.params), ("result", plain.result)):
        if isinstance(members, dict) and len(members) > MAX_MEMBERS:
            id = None if plain.id is UNSET else plain.id
            sentence = f'the member "{name}" has more than {MAX_MEMBERS} members'
            raise InvalidMessage(INVALID_REQUEST, sentence, id, _ANSWER if plain.method is UNSET else _REQUEST)


def _read_closely(data: bytes | Raw) -> Message:
    """As `parse_message`, member by member: for a malformed member, an error, and too many members."""
    try:
        bytes(data).decode()
        envelope = _envelope.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if is_json(data):
            raise InvalidMessage(INVALID_REQUEST, "a message must be a JSON object") from error
        legible = legible_id(bytes(data))
        id = None if legible is None else parse_id(legible)
        like = _REQUEST if reads_as_call(bytes(data)) else _ANSWER
        raise InvalidMessage(PARSE_ERROR, fault(data, error), id, like) from error
    id = _read_id(envelope.id)
    if envelope.jsonrpc is UNSET or parse_text(envelope.jsonrpc) != VERSION:
        # What has neither of an answer's members may be anything, as a line of a log that is JSON.
        is_answer = envelope.method is UNSET and _has_answer(envelope)
        raise InvalidMessage(INVALID_REQUEST, 'the member "jsonrpc" must be "2.0"', id, _ANSWER if is_answer else None)
    if envelope.method is not UNSET:
        return _read_call(envelope, id)
    # Some servers write null for the one of both that they leave out, as JSON-RPC 1.0 wanted it.
    if envelope.error is not UNSET and (envelope.result is UNSET or bytes(envelope.error) != b"null"):
        return ErrorResponse(id, _read_error(envelope.error, id))
    if envelope.result is UNSET:
        sentence = 'a message needs one of "method", "result" and "error"'
        raise InvalidMessage(INVALID_REQUEST, sentence, id, Resemblance.NEITHER)
    if id is None:
        raise InvalidMessage(INVALID_REQUEST, "a response needs the id of its request")
    return Response(id, _read_result(envelope.result, id))


def parse_batch(data: bytes) -> list[Message | InvalidMessage] | None:
    """Reads a JSON-RPC batch (2025-03-26 alone), or returns None where `data` is not an array.

    A member that is no message stands in the list as the error to answer it with.
    Raises InvalidMessage where the whole is not JSON, or is empty (JSON-RPC 2.0, section 6).
    """
    if not data.lstrip(b" \t\r\n").startswith(b"["):
        return None
    try:
        members = parse_array(data, MAX_BATCH)
    except TooMany as error:
        raise InvalidMessage(INVALID_REQUEST, f"a batch of more than {MAX_BATCH} messages") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidMessage(PARSE_ERROR, fault(data, error)) from error
    if not members:
        raise InvalidMessage(INVALID_REQUEST, "an empty batch")
    return [_parse_member(member) for member in members]


def parse_object(data: bytes | Raw) -> Params:
    """The first level of a JSON object. Raises InvalidObject if it is none, or has too many members."""
    try:
        return _members(data)
    except (TooMany, msgspec.MsgspecError, RecursionError) as error:
        raise InvalidObject(error) from error


def is_object(data: Raw) -> bool:
    """Whether a JSON value is an object, by its first byte."""
    return bytes(memoryview(data)[:16]).lstrip()[:1] == b"{"


def is_null(data: Raw) -> bool:
    """Whether a JSON value is null, which some peers write for a member that they leave out."""
    return data == NULL


def nonnull(members: Params) -> Params:
    """`members` without those that are null."""
    return {key: value for key, value in members.items() if not is_null(value)}


def object_or_empty(data: bytes | Raw) -> Params:
    """The first level of a JSON object; empty where `data` is no object."""
    try:
        return parse_object(data)
    except InvalidMessage:
        return {}


def decode_object(data: bytes | Raw) -> dict[str, Any]:
    """A JSON object with all that is in it; empty where `data` is other JSON. Raises MsgspecError where it is none."""
    found: object = parse_value(data)
    return found if isinstance(found, dict) else {}


def parse_text(data: bytes | Raw) -> str | None:
    """The string that `data` encodes, or None where it encodes something else."""
    try:
        return _text.decode(data)
    except msgspec.MsgspecError:
        return None


def parse_id(data: bytes | Raw) -> RequestId | None:
    """The request id or progress token that `data` encodes, its type kept, or None.

    `1.0` is the integer 1, as in the schema of MCP: an integer of JSON Schema is any number without a fractional part,
    and libraries that keep numbers as floats send back so what they got as `1`.
    """
    try:
        id: RequestId = _id.decode(data)
    except UnicodeDecodeError:
        return None
    except msgspec.MsgspecError:
        return _whole(data)
    return id


def _whole(data: bytes | Raw) -> int | None:
    try:
        number = _number.decode(data)
    except msgspec.MsgspecError:
        return None
    return int(number) if number.is_integer() and abs(number) <= MAX_EXACT else None


def encode(message: Message) -> bytes:
    """One message as one line of JSON, without its line end: fit for stdio and for one SSE `data` field."""
    return one_line(_encoder.encode(message))


encode_whole: Final[Callable[[Message], bytes]] = _encoder.encode
"""One message as JSON, line breaks of its parts included: for an HTTP body."""


def with_param(notification: bytes, member: bytes) -> bytes:
    """An encoded notification that has `params`, with one member more in them: `"name":value`."""
    return b"%b,%b}}" % (notification[:-2], member)


json_of: Final[Callable[[object], bytes]] = _encoder.encode
"""A value as JSON. Takes what msgspec encodes, `Raw` inside included."""


def raw(value: object) -> Raw:
    """`value` as raw JSON, as `json_of` takes it."""
    return Raw(_encoder.encode(value))


def may_hold(value: Raw, fragment: bytes) -> bool:
    """False where no key, and no text that fits WINDOW, has `fragment`, of ASCII letters and quotes.

    Far cheaper than to decode.
    """
    # bytes(), and `in` with bytes, would ask first, by way of an exception, whether they were given a number.
    if len(value) <= WINDOW:
        return _holds(b"".join((value,)), fragment)
    # A copy of all of it would be the largest piece of memory that its call takes.
    whole, length = memoryview(value), WINDOW + max(len(fragment), len(_ESCAPED)) - 1
    windows = (bytes(whole[at : at + length]) for at in range(0, len(whole), WINDOW))
    # A window without a quote is the inside of a longer text, as most are of Base64.
    return any(_QUOTE in window and _holds(window, fragment) for window in windows)


def _holds(text: bytes, fragment: bytes) -> bool:
    # Of several bytes the last ones are found several times as fast as the first, and one byte is faster still.
    return text.rfind(fragment) >= 0 or (_BACKSLASH in text and text.rfind(_ESCAPED) >= 0)


def first_level(members: Mapping[str, object]) -> Params:
    """The first level of the JSON object with these members, each as `raw` takes it."""
    return {key: raw(value) for key, value in members.items()}


def size_of(members: Params) -> int:
    """As many bytes as they are on the wire, where no key has escapes: each with two quotes, a colon and a comma."""
    if not members:
        return 2
    size = 1
    for key, value in members.items():
        size += 4 + len(key) + len(value)
    return size


def one_line(data: bytes) -> bytes:
    """`data` without line breaks. JSON strings cannot hold them, so only white space between tokens goes."""
    if _LINE_FEED in data or _CARRIAGE_RETURN in data:
        return data.replace(b"\r", b" ").replace(b"\n", b" ")
    return data


def _parse_member(member: Raw) -> Message | InvalidMessage:
    try:
        return parse_message(member)
    except InvalidMessage as invalid:
        return invalid


def _has_answer(envelope: _Envelope) -> bool:
    return envelope.result is not UNSET or envelope.error is not UNSET


def _read_id(member: Raw | UnsetType) -> RequestId | None:
    if member is UNSET or bytes(member) == b"null":
        return None
    id = parse_id(member)
    if id is None:
        raise InvalidMessage(INVALID_REQUEST, "an id must be a string or an integer")
    return id


def _read_call(envelope: _Envelope, id: RequestId | None) -> Request | Notification:
    assert envelope.method is not UNSET
    method = parse_text(envelope.method)
    if method is None:
        sentence = 'the member "method" must be a string'
        raise InvalidMessage(INVALID_REQUEST, sentence, id, _REQUEST)
    params: Params = {}
    if envelope.params is not UNSET and bytes(envelope.params) != b"null":
        try:
            params = _members(envelope.params)
        except (TooMany, msgspec.MsgspecError, RecursionError) as error:
            sentence = f'the member "params" {InvalidObject(error).flaw}'
            raise InvalidMessage(INVALID_REQUEST, sentence, id, _REQUEST) from error
    if envelope.id is UNSET:
        return Notification(method, params)
    if id is None:
        raise InvalidMessage(INVALID_REQUEST, "a request's id must not be null")
    return Request(id, method, params)


def _read_result(member: Raw, id: RequestId) -> Params:
    try:
        return _members(member)
    except TooMany as reason:
        raise InvalidMessage(INVALID_REQUEST, f'the member "result" {reason}', id, _ANSWER) from reason
    except (msgspec.MsgspecError, RecursionError) as reason:
        raise InvalidMessage(INVALID_REQUEST, "a result must be a JSON object", id, _ANSWER) from reason


def _read_error(member: Raw, id: RequestId | None) -> ErrorObject:
    try:
        error = _error.decode(member)
    except (msgspec.MsgspecError, RecursionError) as reason:
        sentence = f"malformed error: {reason_of(reason)}"
        raise InvalidMessage(INVALID_REQUEST, sentence, id, _ANSWER) from reason
    return _error_object(error)


def _error_object(error: _Error) -> ErrorObject:
    return ErrorObject(error.code, error.message, None if error.data is UNSET else error.data)


def _members(data: bytes | Raw) -> Params:
    """Raises TooMany, MsgspecError or RecursionError. One member too many costs no more than MAX_MEMBERS do."""
    if len(data) > LONG:
        return uncounted(decode_counted(data, dict[CountedText, Raw], MAX_MEMBERS))
    members = _object.decode(data)
    if len(members) > MAX_MEMBERS:
        raise TooMany(f"has more than {MAX_MEMBERS} members")
    return members
