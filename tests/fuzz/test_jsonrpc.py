"""JSON-RPC of any bytes: read or refused with `InvalidMessage`, and what was written is read back the same."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.protocol.jsonrpc import (
    ErrorObject,
    ErrorResponse,
    InvalidMessage,
    Message,
    Notification,
    Request,
    Response,
    encode,
    first_level,
    parse_batch,
    parse_message,
    parse_object,
    raw,
)
from tests.depth import examples

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=4)
IDS = st.integers(-(2**53), 2**53) | TEXT
PARAMS = OBJECTS.map(lambda members: {key: raw(value) for key, value in members.items()})
ERRORS = st.builds(ErrorObject, st.integers(-(2**31), 2**31), TEXT, st.none() | VALUES.map(raw))

MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Request, IDS, TEXT, PARAMS),
    st.builds(Notification, TEXT, PARAMS),
    st.builds(Response, IDS, OBJECTS.map(first_level)),
    st.builds(ErrorResponse, IDS | st.none(), ERRORS),
)

ENVELOPES = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | VALUES,
        "id": IDS | VALUES,
        "method": TEXT | VALUES,
        "params": VALUES,
        "result": VALUES,
        "error": st.fixed_dictionaries({}, optional={"code": VALUES, "message": VALUES, "data": VALUES}) | VALUES,
    },
)


def read_or_refused(data: bytes) -> Message | None:
    try:
        return parse_message(data)
    except InvalidMessage as refusal:
        answer = json.loads(encode(refusal.response()))
    assert answer["error"]["message"]
    return None


@settings(max_examples=examples(500))
@given(MESSAGES)
def test_what_is_encoded_is_what_is_parsed(message: Message) -> None:
    line = encode(message)
    assert b"\n" not in line
    assert parse_message(line) == message


@settings(max_examples=examples(500))
@given(ENVELOPES)
def test_any_object_is_read_or_refused(envelope: dict[str, Any]) -> None:
    message = read_or_refused(json.dumps(envelope).encode())
    if message is not None:
        assert envelope["jsonrpc"] == "2.0"
        assert json.loads(encode(message)).get("method") == envelope.get("method")


@settings(max_examples=examples(500))
@given(st.binary(max_size=64) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    read_or_refused(data)


@settings(max_examples=examples(300))
@given(MESSAGES, st.data())
def test_a_damaged_message_is_read_or_refused(message: Message, data: st.DataObject) -> None:
    line = encode(message)
    start = data.draw(st.integers(0, len(line)))
    end = data.draw(st.integers(start, len(line)))
    read_or_refused(line[:start] + data.draw(st.binary(max_size=4)) + line[end:])


NEARLY = st.sampled_from(
    [
        "NaN", "Infinity", "-Infinity", "01", "+1", ".5", "1.", "1e", "0x1", "1e999", "-", "tru", "nul", "undefined",
        "'a'", '"\\x41"', '"\\ud800"', '"\\udc00\\ud800"', '"\\u12"', '"\x01"', '"\n"', '"', "[1,]", "[,]", "{,}",
        '{"a":1,}', "{a:1}", '{"a"}', '{"a":}', "[1 2]", "/**/1", "1//", "\ufeff1", "\u00a01", "\u2028", "", "]", "}",
    ]
)  # fmt: skip
"""What some readers of JSON take, and the standard does not."""
PLACES = st.sampled_from(
    [
        '{"jsonrpc":"2.0","id":7,"method":"a","params":{"b":%s}}',
        '{"jsonrpc":"2.0","id":7,"method":"a","params":%s}',
        '{"jsonrpc":"2.0","id":7,"result":{"b":[%s]}}',
        '{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"m","data":%s}}',
        '{"jsonrpc":"2.0","id":%s,"method":"a"}',
        '{"jsonrpc":"2.0","id":7,"method":"a","other":%s}',
        "[%s]",
        "%s",
    ]
)


@settings(max_examples=examples(500))
@given(PLACES, NEARLY, st.sampled_from(["", " ", "\t\r\n"]), st.integers(0, 30_000))
def test_what_is_nearly_json_is_refused_in_few_words_or_is_json(place: str, nearly: str, space: str, many: int) -> None:
    # Behind so many quotes another way of reading is taken.
    text = place % f"{space}{nearly}{space}"
    if text.endswith("}"):
        text = text[:-1] + ',"more":[' + '"",' * many + "0]}"
    message, refusal = None, ""
    try:
        message = parse_message(text.encode())
    except InvalidMessage as invalid:
        refusal = invalid.reason
    assert len(refusal) < 500
    if message is not None:
        # Whatever is passed on, the strictest reader takes.
        json.loads(text, parse_constant=_refused)
        assert json.loads(encode(message)).get("id") == json.loads(text).get("id")


def _refused(constant: str) -> None:
    raise ValueError(f"no JSON: {constant}")


@settings(max_examples=examples(200))
@given(OBJECTS, st.integers(0, 25_000))
def test_an_object_is_read_alike_however_much_else_is_in_it(members: dict[str, Any], many: int) -> None:
    text = json.dumps({**members, "last": [""] * many}).encode()
    read = parse_object(text)
    assert {key: json.loads(bytes(value)) for key, value in read.items()} == json.loads(text)


@settings(max_examples=examples(300))
@given(st.lists(MESSAGES | ENVELOPES, min_size=1, max_size=5))
def test_each_member_of_a_batch_is_read_or_refused_as_if_it_were_alone(members: list[Message | dict[str, Any]]) -> None:
    lines = [json.dumps(member).encode() if isinstance(member, dict) else encode(member) for member in members]
    batch = parse_batch(b"[" + b",".join(lines) + b"]")
    assert batch is not None
    assert [None if isinstance(member, InvalidMessage) else member for member in batch] == [
        read_or_refused(line) for line in lines
    ]


@settings(max_examples=examples(50))
@given(st.sampled_from(["[", '{"a":', "[[", '{"jsonrpc":"2.0","id":1,"result":{"a":']), st.integers(1, 200_000))
def test_depth_is_refused_and_never_a_crash(opening: str, depth: int) -> None:
    assert read_or_refused(opening.encode() * depth) is None
