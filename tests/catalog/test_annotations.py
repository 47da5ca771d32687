"""The twin of `mcproxy.catalog.annotations`."""

from __future__ import annotations

import pytest

from mcproxy.catalog.annotations import is_read_only, is_repeatable
from mcproxy.protocol.jsonrpc import raw


@pytest.mark.parametrize(
    ("annotations", "read_only", "repeatable"),
    [
        ({"readOnlyHint": True}, True, True),
        ({"idempotentHint": True}, False, True),
        ({"readOnlyHint": False, "idempotentHint": False}, False, False),
        ({"title": "t"}, False, False),
        ({"readOnlyHint": "yes"}, False, False),
        ([], False, False),
        (None, False, False),
    ],
)
def test_r4_only_a_tool_that_says_so_may_be_called_again(
    annotations: object, read_only: bool, repeatable: bool
) -> None:
    entry = raw({"name": "t", "annotations": annotations})
    assert (is_read_only(entry), is_repeatable(entry)) == (read_only, repeatable)


def test_r4_a_tool_without_annotations_may_not_be_called_again() -> None:
    assert not is_repeatable(raw({"name": "t"}))
