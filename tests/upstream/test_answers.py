"""Messages and results of odd servers, read as what they can only mean."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcproxy.protocol.jsonrpc import ErrorResponse, InvalidMessage, Response, first_level, json_of
from mcproxy.protocol.methods import row_of
from mcproxy.upstream.answers import LARGE, AnonymousErrors, complete_result, read_capabilities, read_message
from mcproxy.upstream.oddities import Oddities


def read(data: bytes) -> Any:
    message = read_message(data, Oddities())
    assert isinstance(message, Response | ErrorResponse)
    return json.loads(json_of(message))


@pytest.mark.parametrize(
    ("sent", "result"),
    [
        (rb'{"a":"x\ud83d"}', {"a": "x\ufffd"}),
        (rb'{"a":"\udc00\ud83d\ude00"}', {"a": "\ufffd\U0001f600"}),
        (rb'{"a":"\\ud83d \\\ud83d"}', {"a": "\\ud83d \\\ufffd"}),
        (rb'{"a":[NaN,-Infinity,Infinity],"b":"NaN, \"Infinity\""}', {"a": [None] * 3, "b": 'NaN, "Infinity"'}),
        (b'{"a":"gr\xfc\xdfe"}', {"a": "gr\ufffd\ufffde"}),
        (b'{"a":"b\x01\tc"}', {"a": "b\x01\tc"}),
        (b"null", {}),
        (b'"text"', {"toolResult": "text"}),
    ],
)
def test_text_that_is_nearly_json_is_read(sent: bytes, result: object) -> None:
    assert read(b'{"jsonrpc":"2.0","id":1,"result":%b}' % sent)["result"] == result


@pytest.mark.parametrize(
    "sent",
    [
        b'{"id":1,"result":{},"method":"ping"}',
        b'{"id":1,"result":{},"level":"info"}',
        b'{"result":{}}',
        b'{"id":1,"result":{},"error":{"code":"x"}}',
        b'{"jsonrpc":"2.0","id":"\\ud800","result":{"a":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"a":0x1}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"a":' + b"NaN," * 3 + b"}}",
    ],
)
def test_what_has_no_reading_or_several_is_refused(sent: bytes) -> None:
    with pytest.raises(InvalidMessage):
        read_message(sent, Oddities())


def test_the_sentence_of_a_malformed_error_is_kept() -> None:
    for error in (b'"full"', b'{"code":"7","message":"full"}', b'{"error":"full"}', b'{"code":7.0,"message":"full"}'):
        found = read(b'{"jsonrpc":"2.0","id":1,"error":%b}' % error)["error"]
        assert found["message"] == "full"
        assert found["code"] in (7, -32603)


def test_a_well_formed_result_passes_as_the_same_object() -> None:
    text = {"type": "text", "text": "a", "annotations": {"priority": 0.5}, "more": 1}
    result = first_level({"content": [text], "isError": False, "structuredContent": {"a": 1}})
    assert complete_result(row_of("tools/call"), {}, result, Oddities()) is result


@pytest.mark.parametrize(("kind", "is_same"), [("text", True), ("table", False)])
def test_large_content_is_judged_by_its_first_block(kind: str, is_same: bool) -> None:
    result = first_level({"content": [{"type": kind, "text": "a" * LARGE}]})
    assert (complete_result(row_of("tools/call"), {}, result, Oddities()) is result) is is_same


def test_each_kind_is_noted() -> None:
    oddities = Oddities()
    complete_result(row_of("tools/call"), {}, first_level({"content": None}), oddities)
    read_capabilities(None, oddities)
    assert len(oddities.sentences) == 2


def test_an_error_without_id_waits_until_only_one_request_can_be_meant() -> None:
    errors = AnonymousErrors()
    said = ErrorResponse(None, read_error())
    assert errors.take(said.error, [1, 2, 3]) is None
    assert errors.answered([2, 3, 4]) == []
    assert errors.answered([3, 4]) == [(3, said.error)]
    assert errors.take(said.error, [7]) == 7


def read_error() -> Any:
    message = read_message(b'{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"full"}}', Oddities())
    assert isinstance(message, ErrorResponse)
    return message.error
