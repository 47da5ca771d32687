from __future__ import annotations

import pytest

from mcproxy.protocol.jsonrpc import (
    MAX_MEMBERS,
    InvalidMessage,
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
