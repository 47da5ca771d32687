"""The twin of `mcproxy.access.audit.records`."""

from __future__ import annotations

import pytest

from mcproxy.access.audit.records import trace_id
from mcproxy.sealing import Sealer
from tests.access.audit.recorded_calls import TRACE, call, params, record


def test_equal_arguments_have_one_hash_which_is_of_no_use_without_the_key() -> None:
    hashes = [record(call(arguments=arguments), arguments="hash").arguments_hash for arguments in ("a", "a", "b")]
    assert hashes[0] == hashes[1] != hashes[2]
    assert Sealer(b"another key").digest("audit arguments", b'"a"') != hashes[0]
    assert record(call(arguments="a"), arguments="hash").arguments is None
    without = record(call(arguments="a"), arguments="none")
    assert (without.arguments, without.arguments_hash) == (None, None)


@pytest.mark.parametrize("parent", [7, "", "00-" + "0" * 32 + "-1111111111111111-01", f"{TRACE}", f"00-{TRACE}"])
def test_a_call_that_belongs_to_no_trace_gets_one_of_its_own(parent: object) -> None:
    assert trace_id(params(_meta={"traceparent": parent})) is None
    assert len(record(call(_meta={"traceparent": parent})).trace) == 32
