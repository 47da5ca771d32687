from __future__ import annotations

import pytest

from tests.protocol.test_jsonrpc import refusal

NOT_JSON = {
    "half of a surrogate pair": rb'{"a":"\ud800"}',
    "NaN": b'{"a":NaN}',
    "invalid UTF-8": b'{"a":"\xff"}',
    "a bare word": b'{"a":yes}',
    "cut short": b'{"a":[1,',
    "deep nesting": b"[" * 100_000 + b"]" * 100_000,
}


@pytest.mark.parametrize("params", NOT_JSON.values(), ids=NOT_JSON.keys())
@pytest.mark.parametrize(
    "message",
    [
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":%b}',
        b'{ "method" : "tools/call", "params" : %b, "jsonrpc" : "2.0", "id" : 7 }\n',
        b'{"id":7,"method":"tools/call","params":%b}',
        b'\xef\xbb\xbf{"params":%b,"id":7}',
        b'{"params":%b,"id":7,"jsonrpc":"2.0","method":"tools/call"}',
    ],
)
def test_what_is_not_json_is_refused_with_the_id_that_can_be_read(message: bytes, params: bytes) -> None:
    assert refusal(message % params).id == 7


@pytest.mark.parametrize(
    "message",
    [
        b'{"params":{"id":7,"a":NaN}}',
        b'{"params":{"a":NaN,"id":7},"x":{}}',
        b'{"id":7.5,"params":NaN}',
        b'{"id":{},"params":NaN}',
        b'{"id":7',
        b'"id":7,NaN}' + b" " * 5000,
    ],
)
def test_what_is_not_json_has_no_id_where_none_is_its_own(message: bytes) -> None:
    assert refusal(message).id is None


def test_an_id_of_text_is_read_of_what_is_not_json() -> None:
    assert refusal(b'{"jsonrpc":"2.0","id":"a\\"b","params":NaN}').id == 'a"b'
