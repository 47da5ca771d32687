from __future__ import annotations

import pytest

from mcproxy.protocol.json.bounds import LONG
from mcproxy.protocol.jsonrpc import (
    MAX_MEMBERS,
    InvalidMessage,
    Notification,
    Response,
    parse_message,
    parse_object,
)


@pytest.mark.parametrize("filler", [0, 100_000])
@pytest.mark.parametrize("members", [MAX_MEMBERS, MAX_MEMBERS + 1])
def test_members_are_bounded_in_large_objects_with_few_quotes_and_with_many(members: int, filler: int) -> None:
    first = b'"0":["%s"]' % (b'","' * filler)
    text = b"{" + b",".join([first, *(b'"%d":["%s"]' % (number, b"x" * 40) for number in range(1, members))]) + b"}"
    if members <= MAX_MEMBERS:
        assert len(parse_object(text)) == members
    else:
        with pytest.raises(InvalidMessage, match=f"more than {MAX_MEMBERS} members"):
            parse_object(text)


def members(number: int, size: int) -> bytes:
    """So many members, of which the last has `size` bytes more."""
    return b"{%b}" % b",".join(b'"%d":"%b"' % (each, b"x" * size * (each == number - 1)) for each in range(number))


@pytest.mark.parametrize("size", [0, LONG])
@pytest.mark.parametrize("said", [b'"id":1,"result":', b'"method":"a","params":'])
def test_the_members_of_a_message_are_bounded_whether_it_is_long_or_short(said: bytes, size: int) -> None:
    text = b'{"jsonrpc":"2.0",%b%b}'
    message = parse_message(text % (said, members(MAX_MEMBERS, size)))
    assert isinstance(message, Response | Notification)
    read = message.result if isinstance(message, Response) else message.params
    assert read == parse_object(members(MAX_MEMBERS, size))
    with pytest.raises(InvalidMessage, match=f"more than {MAX_MEMBERS} members"):
        parse_message(text % (said, members(MAX_MEMBERS + 1, size)))


def test_each_object_of_a_long_message_is_counted_for_itself() -> None:
    both = members(MAX_MEMBERS, 0), members(2, LONG)
    message = parse_message(b'{"jsonrpc":"2.0","method":"a","result":%b,"params":%b}' % both)
    assert message == Notification("a", parse_object(both[1]))


def test_a_key_that_a_long_object_has_twice_counts_twice_and_has_its_last_value() -> None:
    assert parse_object(b'{"a":"%b","a":2}' % (b"x" * LONG)) == parse_object(b'{"a":2}')
    with pytest.raises(InvalidMessage, match="members"):
        parse_object(b'{%b"b":"%b"}' % (b'"a":1,' * MAX_MEMBERS, b"x" * LONG))
