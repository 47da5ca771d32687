"""The twin of `mcproxy.call`."""

from __future__ import annotations

from dataclasses import fields

from mcproxy.call import ANONYMOUS, Call, Caller, Notes
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import raw
from tests.fakes.upstream import FakeClient, FakeListener


def test_a_call_goes_onward_with_all_that_it_has() -> None:
    caller = Caller(ANONYMOUS, LATEST)
    call = Call("tools/call", {}, caller, FakeClient(), FakeListener(), True, 7, Notes(asked=True), "session")
    assert all(getattr(call, field.name) != field.default for field in fields(Call))
    onward = call.onward({}, call.client, call.listener, repeatable=True)
    assert all(
        getattr(onward, field.name) is getattr(call, field.name) for field in fields(Call) if field.name != "params"
    )


def test_other_params_change_nothing_else() -> None:
    call = Call("tools/call", {}, Caller(ANONYMOUS, LATEST), FakeClient(), FakeListener(), True, 7)
    other = call.with_params({"name": raw("x")})
    assert other.params == {"name": raw("x")}
    assert (other.client, other.listener, other.repeatable, other.notes) == (
        call.client, call.listener, True, call.notes,
    )  # fmt: skip
