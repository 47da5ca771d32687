"""Messages and results of servers in shapes that the specification does not have, but that can mean only one thing.

`read_message` reads bytes that `jsonrpc.parse_message` refuses, `complete_result` a result that clients would refuse.
What is well-formed passes both untouched, as the same bytes. Each function names the public report of its oddity.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcproxy.catalog.views.entry_shapes import AnnotationsShape, AnyObject, OptionalText
from mcproxy.protocol.envelope import CONTENT, META, STRUCTURED
from mcproxy.protocol.json.bounds import Bounded, TooMany, parse_array, parse_value
from mcproxy.protocol.json.malformed import HALF_PAIR
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    INTERNAL_ERROR,
    MAX_BATCH,
    MAX_EXACT,
    VERSION,
    ErrorObject,
    ErrorResponse,
    InvalidMessage,
    Message,
    Params,
    RequestId,
    Response,
    is_null,
    is_object,
    nonnull,
    object_or_empty,
    parse_batch,
    parse_id,
    parse_message,
    parse_object,
    parse_text,
    raw,
)
from mcproxy.protocol.methods import Method, Shape
from mcproxy.upstream.oddities import Oddities

MAX_REPAIRS: Final = 10_000
"""Places of one message that are repaired; a message with more is refused."""
MAX_STRINGS: Final = 200_000
"""Strings of a message in which, and between which, is looked for what JSON does not have."""
MAX_BLOCKS: Final = 10_000
"""Blocks, messages or contents of a result that are repaired; a longer list passes unchanged."""

LARGE: Final = 64 * 1024
"""Bytes of a tool's content from which on a first block of a known type vouches for all."""

_BEGINS_PLAINLY: Final = re.compile(rb'\s*\[\s*\{\s*"type"\s*:\s*"(?:text|image|audio|resource|resource_link)"')
_REPLACEMENT: Final = b"\\ufffd"
_NO_NUMBER: Final = re.compile(rb"(?<![\w.+-])(?:NaN|[+-]?Infinity)(?![\w.])")
_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
_OF_ANSWERS: Final = frozenset({"jsonrpc", "id", "result", "error"})
_DIGITS: Final = re.compile(r"[+-]?[0-9]{1,15}")

OLD_RESULT: Final = "toolResult"
"""The member of a result in 2024-10-07. A result that is no object is read as if it stood there."""


# Messages.


def read_message(data: bytes | Raw, oddities: Oddities) -> Message:
    """As `jsonrpc.parse_message`, for a server's message. Raises InvalidMessage if it has no reading, or several."""
    try:
        return parse_message(data)
    except InvalidMessage as invalid:
        found = _repaired(bytes(data), oddities)
        if found is None:
            raise invalid from None
        return found


def read_batch(data: bytes, oddities: Oddities, *, several: bool) -> list[Message | InvalidMessage] | None:
    """As `jsonrpc.parse_batch`; unless `several`, which 2025-03-26 alone has, of a list of one message."""
    try:
        members = parse_array(data, MAX_BATCH if several else 1)
    except (TooMany, msgspec.MsgspecError, RecursionError):
        repaired = legible(data, oddities)
        if several or repaired is not data:
            return parse_batch(repaired)
        return None
    if not several:
        oddities.note("list_of_one", "answers with a list of one message; accepted")
    return [_read_member(member, oddities) for member in members] or None


def _read_member(member: Raw, oddities: Oddities) -> Message | InvalidMessage:
    try:
        return read_message(member, oddities)
    except InvalidMessage as invalid:
        return invalid


def legible(data: bytes, oddities: Oddities) -> bytes:
    """`data` as valid JSON if replacing single characters and numbers makes it that; else as it is."""
    text = _in_utf8(data, oddities)
    try:
        msgspec.json.decode(text, type=Raw)
    except (msgspec.MsgspecError, RecursionError):
        return _without_odd_numbers(_without_half_pairs(text, oddities), oddities)
    return text


def _in_utf8(data: bytes, oddities: Oddities) -> bytes:
    """Bytes that are not UTF-8 become U+FFFD. https://github.com/DeusData/codebase-memory-mcp/issues/511"""
    try:
        data.decode()
    except UnicodeDecodeError:
        oddities.note("encoding", "sends text that is not UTF-8; replaced by U+FFFD")
        return data.decode(errors="replace").encode()
    return data


def _without_half_pairs(text: bytes, oddities: Oddities) -> bytes:
    """Half a surrogate pair becomes U+FFFD. https://github.com/microsoft/playwright-mcp/issues/1410"""
    # With no backslash escaped by another, each begins an escape.
    plain = text.replace(b"\\\\", b"\\u005c")
    found, number = HALF_PAIR.subn(lambda _: _REPLACEMENT, plain, MAX_REPAIRS)
    if not number:
        return text
    oddities.note("half_surrogate_pair", "sends half a surrogate pair in a string; replaced by U+FFFD")
    return found


def _without_odd_numbers(text: bytes, oddities: Oddities) -> bytes:
    """NaN and Infinity become null, control characters in strings are escaped.

    https://github.com/DeusData/codebase-memory-mcp/pull/168
    """
    plain = text.replace(b"\\\\", b"\\u005c").replace(b'\\"', b"\\u0022")
    if plain.count(b'"') > 2 * MAX_STRINGS:
        return text
    parts = plain.split(b'"')
    numbers = controls = 0
    for place, part in enumerate(parts):
        if place % 2:
            if _CONTROL.search(part) is not None:
                parts[place], repaired = _CONTROL.subn(lambda found: b"\\u%04x" % found[0][0], part, MAX_REPAIRS)
                controls += repaired
        elif b"N" in part or b"I" in part:
            parts[place], repaired = _NO_NUMBER.subn(b"null", part, MAX_REPAIRS)
            numbers += repaired
        if numbers + controls > MAX_REPAIRS:
            return text
    if numbers:
        oddities.note("not_a_number", "sends NaN or Infinity, which JSON does not have; replaced by null")
    if controls:
        oddities.note("control_character", "sends control characters in strings; accepted")
    return b'"'.join(parts)


def _repaired(data: bytes, oddities: Oddities) -> Message | None:
    text = legible(data, oddities)
    if text != data:
        try:
            message = parse_message(text)
        except InvalidMessage:
            pass
        else:
            return None if _has_unreadable_id(message) else message
    members = object_or_empty(text)
    if not members or not members.keys() <= _OF_ANSWERS:
        return None
    return _read_answer(members, oddities)


def _has_unreadable_id(message: Message) -> bool:
    id = getattr(message, "id", None)
    return isinstance(id, str) and "\ufffd" in id


def _read_answer(members: Params, oddities: Oddities) -> Message | None:
    """An answer whose members are not as JSON-RPC 2.0 has them. It has only those of an answer.

    An error without both `jsonrpc` and `id` is that of an HTTP API, or a line of a log: not a message.
    """
    if members.keys().isdisjoint(("jsonrpc", "id")):
        return None
    said_id = members.get("id")
    id = None if said_id is None else parse_id(said_id)
    if id is None and said_id is not None and not is_null(said_id):
        return None
    error, result = members.get("error"), members.get("result")
    if error is not None and not is_null(error):
        if result is not None and not is_null(result):
            return None
        _note_version(members, oddities)
        return ErrorResponse(id, _read_error(error, oddities))
    if id is None or result is None:
        return None
    found = _read_result(result, oddities)
    if found is None:
        return None
    _note_version(members, oddities)
    return Response(id, found)


def _note_version(members: Params, oddities: Oddities) -> None:
    """An answer without `jsonrpc`, or with another value."""
    if parse_text(members.get("jsonrpc", b"")) != VERSION:
        oddities.note("jsonrpc", 'answers without "jsonrpc": "2.0"; accepted')


def _read_result(result: Raw, oddities: Oddities) -> Params | None:
    """A result that is null is an empty one; other values that are no object are read as a tool's bare result."""
    if is_object(result):
        try:
            return parse_object(result)
        except InvalidMessage:
            return None
    if is_null(result):
        oddities.note("result_null", "answers with a result of null; read as an empty one")
        return {}
    oddities.note("result_bare", "answers with a result that is not an object; accepted")
    return {OLD_RESULT: result}


def _read_error(error: Raw, oddities: Oddities) -> ErrorObject:
    """An error whose code or message is missing or of another type: the server's own sentence stays."""
    oddities.note("error_object", "answers with malformed errors; accepted")
    if not is_object(error):
        return ErrorObject(INTERNAL_ERROR, _as_text(error))
    members = nonnull(object_or_empty(error))
    code, data = _code(members.get("code")), members.get("data")
    message = _first_text(members, ("message", "error", "detail", "data"))
    if message is None:
        message = bytes(error).decode(errors="replace")
    if code is None and "code" in members and is_number_free(members["code"]):
        message = f"{message} ({_as_text(members['code'])})"
    return ErrorObject(INTERNAL_ERROR if code is None else code, message, data)


def is_number_free(code: Raw) -> bool:
    """Whether an error's code is a word, as "ENOENT", which belongs into the message."""
    return parse_text(code) is not None


def _code(said: Raw | None) -> int | None:
    if said is None:
        return None
    try:
        value = parse_value(said)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if isinstance(value, str):
        return int(value) if _DIGITS.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > MAX_EXACT:
        return None
    return int(value)


def _first_text(members: Params, names: Sequence[str]) -> str | None:
    return next((text for name in names if (text := parse_text(members.get(name, b"")))), None)


def _as_text(value: Raw) -> str:
    """A text as it is, anything else as JSON in one line."""
    text = parse_text(value)
    return bytes(value).decode(errors="replace") if text is None else text


_ASSUMED: Final = dict.fromkeys(("tools", "resources", "prompts"), EMPTY_OBJECT)


def read_capabilities(said: Raw | None, oddities: Oddities) -> Params:
    """A server's capabilities. If it names none at all, all lists are asked for: PHP writes an empty object as `[]`.

    A capability that is `true` is one without parts, and one that is null or `false` is none.
    """
    if said is None or not is_object(said):
        oddities.note("capabilities", "names its capabilities in a malformed way; all lists are asked for")
        return dict(_ASSUMED)
    members = object_or_empty(said)
    found = {name: value if is_object(value) else EMPTY_OBJECT for name, value in members.items() if _is_had(value)}
    if found != members:
        oddities.note("capability", "names capabilities that are not objects; accepted")
    return found


def _is_had(capability: Raw) -> bool:
    return bytes(memoryview(capability)[:5]) not in (b"null", b"false")


class AnonymousErrors:
    """Errors without an id, of which it is not known yet which request they answer.

    https://github.com/modelcontextprotocol/java-sdk/issues/506: a request so answered waited for its timeout. An error
    belongs to the request that is left once all others that were in flight when it came have been answered.
    """

    MOST: Final = 16

    def __init__(self) -> None:
        self.waiting: list[tuple[ErrorObject, set[RequestId]]] = []

    def take(self, error: ErrorObject, in_flight: Sequence[RequestId]) -> RequestId | None:
        """The request that an error belongs to; None if there are several, or none."""
        taken = {id for _, ids in self.waiting if len(ids) == 1 for id in ids}
        candidates = [id for id in in_flight if id not in taken]
        if "notification" in error.message.lower():
            return None  # It answers one of ours, which should have no answer.
        if len(candidates) == 1:
            return candidates[0]
        if candidates and len(self.waiting) < self.MOST:
            self.waiting.append((error, set(candidates)))
        return None

    def answered(self, in_flight: Sequence[RequestId]) -> list[tuple[RequestId, ErrorObject]]:
        """Errors that are known to belong to a request, now that only those in flight are left."""
        if not self.waiting:
            return []
        found: list[tuple[RequestId, ErrorObject]] = []
        left = set(in_flight)
        waiting, self.waiting = self.waiting, []
        for error, ids in waiting:
            ids &= left
            # As many errors as there are requests that they may belong to: each gets one, in the order of both.
            if ids and len(ids) <= sum(1 for _, others in waiting if others >= ids):
                id = min(ids, key=str)
                left.discard(id)
                found.append((id, error))
            elif ids:
                self.waiting.append((error, ids))
        return found


# Results.


class _Block(msgspec.Struct, tag_field="type", kw_only=True):
    annotations: AnnotationsShape | UnsetType = UNSET
    meta: AnyObject | UnsetType = msgspec.field(default=UNSET, name="_meta")


class _Text(_Block, tag="text"):
    text: str


class _Image(_Block, tag="image"):
    data: str
    mime_type: str = msgspec.field(name="mimeType")


class _Audio(_Block, tag="audio"):
    data: str
    mime_type: str = msgspec.field(name="mimeType")


class _Link(_Block, tag="resource_link"):
    uri: str
    name: str
    title: OptionalText = UNSET
    description: OptionalText = UNSET
    mime_type: OptionalText = msgspec.field(default=UNSET, name="mimeType")
    size: int | float | UnsetType = UNSET


class _Contents(msgspec.Struct):
    uri: str
    text: OptionalText = UNSET
    blob: OptionalText = UNSET
    mime_type: OptionalText = msgspec.field(default=UNSET, name="mimeType")
    meta: AnyObject | UnsetType = msgspec.field(default=UNSET, name="_meta")

    def __post_init__(self) -> None:
        if self.text is UNSET and self.blob is UNSET:
            raise ValueError("Expected `text` or `blob`")


class _Embedded(_Block, tag="resource"):
    resource: _Contents


_AnyBlock = _Text | _Image | _Audio | _Link | _Embedded


class _PromptMessage(msgspec.Struct):
    role: str
    content: _AnyBlock

    def __post_init__(self) -> None:
        if self.role not in _ROLES:
            raise ValueError("Expected `user` or `assistant`")


_ROLES: Final = frozenset({"user", "assistant"})
_blocks = Bounded(list[_AnyBlock])
_block: Bounded[_AnyBlock] = Bounded(_AnyBlock)  # type: ignore[arg-type]  # a union is no class
_messages = Bounded(list[_PromptMessage])
_contents = Bounded(list[_Contents])
_one_contents = Bounded(_Contents)

_IS_ERROR: Final = "isError"
_BOOLEANS: Final = {b"true", b"false"}
_RESULT_TYPE: Final = "resultType"
_COMPLETE: Final = Raw(b'"complete"')
_EMPTY: Final = Raw(b"[]")
_NOTHING: Final = (Raw(b"null"), Raw(b'""'))


def complete_result(row: Method, params: Params, result: Params, oddities: Oddities) -> Params:
    """`result` as clients can read it; the same object if it is well-formed, or nothing is known about its shape."""
    match row.shape:
        case Shape.CONTENT:
            return result if _is_plain(result) else _tool_result(result, oddities)
        case Shape.CONTENTS:
            return _checked_list(result, "contents", _contents, lambda items: _all_contents(items, params), oddities)
        case Shape.MESSAGES:
            return _checked_list(result, "messages", _messages, _all_messages, oddities)
        case _ if row.lists is not None:
            return _list_result(result, row.lists.member, oddities)
        case _:
            return result


def _is_plain(result: Params) -> bool:
    """Whether a tool's result is as clients read it: decided by one pass over its content, in C.

    Of large content only the beginning is looked at: the pass would take 2 ms for each MiB.
    """
    if CONTENT not in result:
        return False
    content = result[CONTENT]
    try:
        if len(content) <= LARGE or _BEGINS_PLAINLY.match(content) is None:
            _blocks.decode(content)
    except TooMany:
        return True  # Too many to look at: it passes unchanged.
    except (msgspec.MsgspecError, RecursionError):
        return False
    if len(result) == 1:
        return True
    is_error = result.get(_IS_ERROR)
    return (is_error is None or bytes(is_error) in _BOOLEANS) and not any(map(is_null, result.values()))


def _tool_result(result: Params, oddities: Oddities) -> Params:
    """A tool's result that clients would refuse whole.

    https://github.com/modelcontextprotocol/python-sdk/issues/1796 (no content), and as the functions below say.
    """
    if _RESULT_TYPE in result and result[_RESULT_TYPE] != _COMPLETE:
        return result  # Of another type: a task, a question, or an extension's.
    if CONTENT not in result and "task" in result:
        return result
    found = {key: value for key, value in result.items() if not is_null(value)}
    if OLD_RESULT in found and CONTENT not in found:
        found = _from_old_result(found)
    blocks, has_error = _all_blocks(found.get(CONTENT, _EMPTY))
    if bytes(blocks) == b"[]" and STRUCTURED in found:
        # tools, Structured Content: servers "SHOULD also return the serialized JSON in a TextContent block".
        blocks = raw([_text(bytes(found[STRUCTURED]).decode(errors="replace"))])
    elif CONTENT not in found and (rest := _without_meta(found)):
        blocks = raw([_text(bytes(raw(rest)).decode(errors="replace"))])
    found[CONTENT] = blocks
    if has_error:
        found.setdefault(_IS_ERROR, raw(True))
    if _IS_ERROR in found:
        found[_IS_ERROR] = _boolean(found[_IS_ERROR])
    if found == result:
        return result
    oddities.note("tool_result", "answers calls with malformed results; accepted")
    return found


def _without_meta(members: Params) -> Params:
    return {key: value for key, value in members.items() if key not in (META, _IS_ERROR, _RESULT_TYPE)}


def _from_old_result(result: Params) -> Params:
    """2024-10-07: `toolResult` holds the result itself, whatever it is."""
    rest = {key: value for key, value in result.items() if key != OLD_RESULT}
    value = result[OLD_RESULT]
    try:
        _blocks.decode(value)
    except (msgspec.MsgspecError, RecursionError):
        inner = object_or_empty(value)
        if CONTENT in inner:
            return {**rest, **nonnull(inner)}
        if is_object(value):
            rest.setdefault(STRUCTURED, value)
        return {**rest, CONTENT: raw([_text(_as_text(value))])}
    return {**rest, CONTENT: value}


def _boolean(said: Raw) -> Raw:
    """`isError` as a text or a number."""
    return raw(_as_text(said).strip().lower() not in ("false", "0", "no", "", "[]", "{}"))


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _items(value: Raw) -> list[Raw] | None:
    """The items of a list, or the one value that stands in place of it; None if there are too many."""
    if is_null(value):
        return []
    if bytes(memoryview(value)[:16]).lstrip()[:1] != b"[":
        return [value]
    try:
        return parse_array(value, MAX_BLOCKS)
    except (TooMany, msgspec.MsgspecError, RecursionError):
        return None


def _all_blocks(content: Raw) -> tuple[Raw, bool]:
    """Content blocks that clients can read, and whether one of them said that the call failed."""
    items = _items(content)
    if items is None:
        return content, False
    blocks = [_readable_block(item) for item in items if not is_null(item)]
    has_error = any(parse_text(object_or_empty(item).get("type", b"")) == "error" for item in items)
    return raw(blocks), has_error


def _readable_block(item: Raw) -> Raw | dict[str, object]:
    """A block as it is, without members that are null, with JSON for a text, or as a text that says all of it.

    Clients refuse a whole result for one block of an unknown type.
    """
    if _reads(_block, item):
        return item
    if not is_object(item):
        return dict(_text(_as_text(item)))
    members = nonnull(object_or_empty(item))
    kind = parse_text(members.get("type", b""))
    if not _reads(_Annotated, members.get("annotations", Raw(b"{}"))):
        members.pop("annotations")
    if "text" in members and kind in (None, "text"):
        members = {**members, "type": raw("text"), "text": raw(_as_text(members["text"]))}
    if kind == "resource" and "resource" in members:
        members["resource"] = raw(_readable_contents(members["resource"], "resource:"))
    repaired = raw(members)
    if _reads(_block, repaired):
        return repaired
    told = _first_text(members, ("text", "message", "error")) if kind == "error" and len(members) <= 2 else None
    return dict(_text(bytes(item).decode(errors="replace") if told is None else told))


_Annotated: Final = Bounded(AnnotationsShape)


def _reads(decoder: Bounded[Any], value: Raw) -> bool:
    try:
        decoder.decode(value)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def _readable_contents(item: Raw, uri: str) -> Raw | dict[str, object]:
    """A resource's contents: without members that are null, with the URI that was asked for, with JSON for a text."""
    if _reads(_one_contents, item):
        return item
    if not is_object(item):
        return {"uri": uri, "text": _as_text(item)}
    members = nonnull(object_or_empty(item))
    if parse_text(members.get("uri", b"")) is None:
        members["uri"] = raw(uri)
    if "text" in members:
        members["text"] = raw(_as_text(members["text"]))
    elif parse_text(members.get("blob", b"")) is None:
        members = {"uri": members["uri"], "text": raw(bytes(item).decode(errors="replace"))}
    repaired = raw(members)
    if _reads(_one_contents, repaired):
        return repaired
    return {"uri": members["uri"], "text": bytes(item).decode(errors="replace")}


def _all_contents(items: Sequence[Raw], params: Params) -> list[object]:
    uri = parse_text(params.get("uri", b"")) or ""
    return [_readable_contents(item, uri) for item in items if not is_null(item)]


def _all_messages(items: Sequence[Raw]) -> list[object]:
    """A prompt's messages: texts in place of messages or blocks, several blocks in one message, other roles."""
    found: list[object] = []
    for item in items:
        if not is_object(item):
            found.append({"role": "user", "content": _text(_as_text(item))})
            continue
        members = nonnull(object_or_empty(item))
        said = parse_text(members.get("role", b""))
        role = said if said in _ROLES else "user"
        blocks = _items(members.get(CONTENT, members.get("text", _EMPTY))) or []
        found += [{**members, "role": role, CONTENT: _readable_block(block)} for block in blocks]
    return found


def _checked_list(
    result: Params,
    member: str,
    decoder: Bounded[Any],
    repair: Callable[[Sequence[Raw]], list[object]],
    oddities: Oddities,
) -> Params:
    """A result whose `member` is a list that clients validate; the same object if they can read it."""
    if _RESULT_TYPE in result and result[_RESULT_TYPE] != _COMPLETE:
        return result
    value = result.get(member, result.get(OLD_RESULT))
    if value is None and (CONTENT in result or "text" in result or "blob" in result):
        value = raw([{key: each for key, each in result.items() if key not in (META, _RESULT_TYPE)}])
    if value is None:
        return result
    if member in result and _reads(decoder, value):
        return result
    items = _items(value)
    if items is None:
        return result
    oddities.note(member, f"answers with malformed {member}; accepted")
    rest = {key: each for key, each in result.items() if key not in (OLD_RESULT, member) and not is_null(each)}
    return {**rest, member: raw(repair(items))}


def _list_result(result: Params, member: str, oddities: Oddities) -> Params:
    """A list that stands bare in place of its result, or is null, as empty lists of Go are."""
    value = result.get(member, result.get(OLD_RESULT))
    if value is None or (member in result and not is_null(value)):
        return result
    if not is_null(value) and bytes(memoryview(value)[:16]).lstrip()[:1] != b"[":
        return result
    oddities.note("list_result", "answers with a malformed list; accepted")
    return {**result, member: _EMPTY if is_null(value) else value}
