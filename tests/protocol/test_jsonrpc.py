"""The twin of `mcproxy.protocol.jsonrpc`; `tests/fuzz/test_jsonrpc.py` says what holds of any bytes."""

from __future__ import annotations

import pytest
from msgspec import Raw

from mcproxy.protocol.jsonrpc import (
    INVALID_REQUEST,
    PARSE_ERROR,
    WINDOW,
    ErrorObject,
    ErrorResponse,
    InvalidMessage,
    Message,
    Notification,
    Request,
    Resemblance,
    Response,
    encode,
    first_level,
    may_hold,
    parse_batch,
    parse_id,
    parse_message,
    parse_object,
    parse_text,
    raw,
)

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%s}'


def refusal(data: bytes) -> InvalidMessage:
    with pytest.raises(InvalidMessage) as caught:
        parse_message(data)
    return caught.value


@pytest.mark.parametrize(
    "message",
    [
        Request(7, "tools/call", {"name": Raw(b'"x"')}),
        Request("7", "ping", {}),
        Notification("notifications/progress", {"progress": Raw(b"1.50")}),
        Response(7, {"a": Raw(b"[1, 2]")}),
        ErrorResponse(None, ErrorObject(-32700, "what?")),
        ErrorResponse("x", ErrorObject(-32602, "no", Raw(b'{"b":1e2}'))),
    ],
)
def test_what_is_encoded_reads_the_same(message: Message) -> None:
    assert parse_message(encode(message)) == message


def test_what_lies_below_the_first_level_passes_byte_for_byte() -> None:
    inner = b'{ "n": 123456789012345678901234567890, "f": 1.0e+1, "u": "\\u00e9" }'
    message = parse_message(CALL % (b'{"arguments":%s}' % inner))
    assert isinstance(message, Request)
    assert bytes(message.params["arguments"]) == inner


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", PARSE_ERROR),
        (b"{", PARSE_ERROR),
        (b'{"jsonrpc":"2.0"} {}', PARSE_ERROR),
        (b"[]", INVALID_REQUEST),
        (b"7", INVALID_REQUEST),
        (b'{"id":1,"method":"ping"}', INVALID_REQUEST),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"result":7}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","result":{}}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":"x","message":"y"}}', INVALID_REQUEST),
    ],
)
def test_what_is_no_message_is_refused_with_its_code(data: bytes, code: int) -> None:
    assert refusal(data).code == code


@pytest.mark.parametrize(
    "value",
    [
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b'"\x00"',
        b'"\n"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b"01",
        b"0x1",
        b"'x'",
        b"[1,]",
    ],
)
def test_what_some_parsers_take_and_others_do_not_is_refused_however_deep(value: bytes) -> None:
    assert refusal(CALL % (b'{"arguments":{"a":[%s]}}' % value)).code == PARSE_ERROR


def test_an_id_that_is_no_utf_8_is_refused() -> None:
    refused = refusal(b'{"jsonrpc":"2.0","id":"\x80","result":{}}')
    assert (refused.code, refused.id) == (PARSE_ERROR, None)


@pytest.mark.parametrize("half", [b"\\ud800", b"\\udc00", b"\\ud800x", b"\\ud800\\u0041"])
def test_half_a_surrogate_pair_is_refused_however_deep(half: bytes) -> None:
    assert "surrogate" in refusal(CALL % (b'{"arguments":{"a":["%s"]}}' % half)).reason


def test_an_escaped_nul_and_a_whole_pair_are_text() -> None:
    assert parse_text(b'"a\\u0000b"') == "a\0b"
    assert parse_text(b'"\\ud83d\\ude00"') == "\U0001f600"


@pytest.mark.parametrize("digits", [20, 400, 5000, 1_000_000])
def test_an_id_of_any_number_of_digits_is_read_or_refused(digits: int) -> None:
    data = b'{"jsonrpc":"2.0","id":%s,"method":"ping"}' % (b"9" * digits)
    try:
        message = parse_message(data)
    except InvalidMessage:
        assert digits > 4300  # what Python makes no integer of
        return
    assert isinstance(message, Request)
    assert parse_message(encode(message)) == message


@pytest.mark.parametrize(
    ("spelling", "id"), [(b"1.0", 1), (b"-7.0", -7), (b"12e1", 120), (b"9007199254740992.0", 2**53)]
)
def test_an_id_that_is_whole_is_an_integer_however_it_is_spelled(spelling: bytes, id: int) -> None:
    assert parse_id(spelling) == id
    assert parse_message(b'{"jsonrpc":"2.0","id":%s,"result":{}}' % spelling) == Response(id, {})
    assert type(parse_id(spelling)) is int


@pytest.mark.parametrize("spelling", [b"1.5", b"1e300", b"-1e16", b"9007199254740994.0", b"true", b"[1]", b'"1.0'])
def test_what_no_float_tells_exactly_is_no_id(spelling: bytes) -> None:
    assert parse_id(spelling) is None


def test_of_result_and_error_the_one_that_is_null_is_left_out() -> None:
    assert parse_message(b'{"jsonrpc":"2.0","id":1,"result":{},"error":null}') == Response(1, {})
    error = ErrorResponse(1, ErrorObject(-32603, "no"))
    assert parse_message(b'{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":-32603,"message":"no"}}') == error


@pytest.mark.parametrize("parts", [b'"error":null', b'"result":null', b'"result":null,"error":null'])
def test_an_answer_in_which_all_is_null_says_nothing(parts: bytes) -> None:
    refused = refusal(b'{"jsonrpc":"2.0","id":1,%s}' % parts)
    assert (refused.code, refused.id, refused.like) == (INVALID_REQUEST, 1, Resemblance.ANSWER)


def test_of_a_member_that_comes_twice_one_is_read_and_that_one_alone_is_sent_on() -> None:
    message = parse_message(
        b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping","method":"tools/call","params":{"name":"a","name":"b"}}'
    )
    assert encode(message) == b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"b"}}'


@pytest.mark.parametrize("bomb", [b"[", b'{"a":', b'[{"a":', b"[[]," * 3 + b"["])
def test_a_depth_bomb_is_refused_as_too_deep(bomb: bytes) -> None:
    opened = bomb * 200_000
    for data in (opened, CALL % opened, b'{"jsonrpc":"2.0","id":1,"result":{"x":%s' % opened):
        assert refusal(data).code in {PARSE_ERROR, INVALID_REQUEST}
    assert parse_text(opened) is None
    assert parse_id(opened) is None
    with pytest.raises(InvalidMessage):
        parse_object(b'{"a":%s' % opened)
    with pytest.raises(InvalidMessage):
        parse_batch(b"[" + opened)


def test_the_first_level_of_an_object_is_what_would_be_read_of_it() -> None:
    members = {"a": [1, {"b": 2}], "c": Raw(b"1e2"), "d": None}
    assert first_level(members) == parse_object(raw(members))


@pytest.mark.parametrize("odd", [b"null", b"7", b"[]", b'"x"'])
def test_a_result_that_is_no_object_is_no_matter_in_what_is_no_success(odd: bytes) -> None:
    failed = parse_message(b'{"jsonrpc":"2.0","id":1,"error":{"code":5,"message":"m"},"result":%s}' % odd)
    assert failed == ErrorResponse(1, ErrorObject(5, "m"))
    assert parse_message(b'{"jsonrpc":"2.0","id":1,"method":"a","result":%s}' % odd) == Request(1, "a", {})


def test_a_batch_keeps_its_members_apart() -> None:
    batch = parse_batch(b' [{"jsonrpc":"2.0","method":"a"},7]')
    assert batch is not None
    assert batch[0] == Notification("a", {})
    assert isinstance(batch[1], InvalidMessage)
    assert parse_batch(b"{}") is None
    with pytest.raises(InvalidMessage):
        parse_batch(b"[]")


@pytest.mark.parametrize("at", [0, *range(WINDOW - 24, WINDOW + 2), 2 * WINDOW - 12, 3 * WINDOW])
@pytest.mark.parametrize("word", [b"resource", b"\\u0072esource"])
def test_a_key_is_found_wherever_it_stands_in_a_long_value(word: bytes, at: int) -> None:
    before, behind = b"x" * at, b"x" * (4 * WINDOW - at)
    assert may_hold(Raw(b'["%b",{"%b":1},"%b"]' % (before, word, behind)), b"resource")


@pytest.mark.parametrize("at", [0, 7, WINDOW // 2, WINDOW - 10])
@pytest.mark.parametrize("start", range(WINDOW - 2, WINDOW + 3))
def test_a_text_as_long_as_a_window_is_searched(start: int, at: int) -> None:
    text = b"x" * at + b"resource" + b"x" * (WINDOW - 10 - at)
    assert may_hold(Raw(b"[%b%b]" % (b"0," * (start // 2), b'"%b"' % text)), b"resource")


def test_a_text_is_not_searched_where_it_is_longer_than_any_key_or_type() -> None:
    text = b"x" * 2 * WINDOW
    assert not may_hold(Raw(b'"%bresource%b"' % (text, text)), b"resource")


def test_a_word_that_a_long_value_lacks_is_not_found() -> None:
    assert not may_hold(Raw(b'"' + b"resourc" * WINDOW + b'"'), b"resource")
