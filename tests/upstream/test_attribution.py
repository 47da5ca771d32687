"""Whom a question on a shared connection may be for (requirement R26)."""

from __future__ import annotations

from weakref import ref

from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.calls import Call
from mcproxy.call.identity import Principal
from mcproxy.upstream.attribution import LINGER, Ambiguous, Attributed, CallsInFlight, SharedByPrincipals, Unsolicited
from tests.upstream.support import request, tool


def test_a_message_without_a_call_in_flight_is_unsolicited() -> None:
    assert CallsInFlight(lambda: 0).on_shared_stream() == Unsolicited()


def test_a_message_is_attributed_to_the_only_call_in_flight() -> None:
    causes, call = CallsInFlight(lambda: 0), tool("a")
    causes.begin(1, call)
    assert causes.on_shared_stream() == Attributed(call, (1,))


def test_calls_that_may_not_ask_are_not_attributed_to() -> None:
    causes, call = CallsInFlight(lambda: 0), tool("a")
    causes.begin(1, call)
    causes.begin(2, request("tools/list"))
    assert causes.on_shared_stream() == Attributed(call, (1,))


def test_two_clients_are_ambiguous_until_one_is_answered() -> None:
    causes, one, two = CallsInFlight(lambda: 0), tool("a"), tool("a")
    causes.begin(1, one)
    causes.begin(2, two)
    assert causes.on_shared_stream() == Ambiguous()
    assert causes.of(2) == Attributed(two, (2,))
    causes.answered(1)
    assert causes.on_shared_stream() == Attributed(two, (2,))
    causes.end(1)
    assert causes.on_shared_stream() == Attributed(two, (2,))


def test_of_calls_that_are_equal_one_ends_alone() -> None:
    causes, one = CallsInFlight(lambda: 0), tool("a", session="s")
    two = replace(one)
    assert one == two
    causes.begin(1, one)
    causes.begin(2, two)
    causes.answered(1)
    causes.end(1)
    assert causes.on_shared_stream() == Attributed(two, (2,))
    causes.answered(2)
    causes.end(2)
    assert causes.on_shared_stream() == Unsolicited()


def test_a_message_about_a_task_is_attributed_to_the_call_that_waits_for_its_result() -> None:
    causes, waiting = CallsInFlight(lambda: 0), request("tasks/result", taskId="1")
    causes.begin(1, waiting)
    causes.begin(2, request("tasks/get", taskId="2"))
    assert causes.of_task("1") == Attributed(waiting, (1,))
    assert causes.of_task("2") == Ambiguous()


def test_several_calls_of_one_session_are_one_client() -> None:
    causes, one, two = CallsInFlight(lambda: 0), tool("a", session="s"), tool("a", session="s")
    causes.begin(1, one)
    causes.begin(2, two)
    assert causes.on_shared_stream() == Attributed(one, (1, 2))


def test_a_cancelled_call_counts_until_its_server_answers_or_a_time_has_passed() -> None:
    now = 0.0
    causes, cancelled, late = CallsInFlight(lambda: now), tool("a"), tool("a")
    causes.begin(1, cancelled)
    causes.end(1)
    causes.begin(2, late)
    now = LINGER / 2
    assert causes.on_shared_stream() == Ambiguous()
    now = LINGER
    assert causes.on_shared_stream() == Attributed(late, (2,))
    causes.begin(3, cancelled)
    causes.end(3)
    assert causes.on_shared_stream() == Ambiguous()
    causes.answered(3)
    assert causes.on_shared_stream() == Attributed(late, (2,))
    assert causes.of(3) == Ambiguous()


def of_principal(name: str, call: Call) -> Call:
    return replace(call, caller=replace(call.caller, principal=Principal(name)))


def test_r77_once_two_principals_have_called_nothing_on_the_shared_stream_is_attributed() -> None:
    now = 0.0
    calls = CallsInFlight(lambda: now)
    calls.begin(1, of_principal("ann", tool("a")))
    calls.answered(1)
    calls.end(1)
    late = of_principal("bob", tool("a"))
    calls.begin(2, late)
    now = 1000 * LINGER
    assert calls.on_shared_stream() == SharedByPrincipals()
    assert calls.of(2) == Attributed(late, (2,))
    calls.answered(2)
    assert calls.on_shared_stream() == SharedByPrincipals()


def test_r77_what_the_gateway_asks_for_all_is_of_no_principal() -> None:
    calls, own = CallsInFlight(lambda: 0), of_principal("ann", tool("a"))
    calls.begin(1, request("tools/list"))
    calls.begin(2, request("resources/subscribe", uri="a:1"))
    calls.begin(3, own)
    assert calls.principal == "ann"
    assert calls.on_shared_stream() == Attributed(own, (3,))


def test_an_abandoned_call_that_asks_does_not_hold_up_the_others_of_its_principal() -> None:
    calls, parked, other = CallsInFlight(lambda: 0), tool("a"), tool("b")
    calls.begin(1, parked)
    calls.begin(2, other)
    assert calls.on_shared_stream() == Ambiguous()
    assert calls.on_shared_stream(lambda id: id == 1) == Attributed(other, (2,))
    calls.answered(2)
    assert calls.on_shared_stream(lambda id: id == 1) == Attributed(parked, (1,))


def given_up(calls: CallsInFlight, id: int, call: Call) -> ref[object]:
    """A weak reference to the client of a call that began, and ended without an answer of its server."""
    calls.begin(id, call)
    calls.end(id)
    return ref(call.client)


def test_r54_a_call_that_its_server_never_answers_is_forgotten_in_time() -> None:
    now = 0.0
    calls = CallsInFlight(lambda: now)
    first = given_up(calls, 1, tool("a"))
    assert first() is not None
    now = LINGER + 1
    given_up(calls, 2, tool("a"))
    assert first() is None


def test_r54_of_a_call_that_was_given_up_its_arguments_are_not_kept() -> None:
    calls, arguments = CallsInFlight(lambda: 0), bytearray(1000)
    held = memoryview(arguments)
    call = tool("a")
    given_up(calls, 1, replace(call, params={**call.params, "arguments": Raw(held)}))
    del held
    arguments.append(0)  # which a view that is held prevents


def test_r54_on_a_link_of_several_principals_no_call_that_was_given_up_is_kept() -> None:
    calls = CallsInFlight(lambda: 0)
    first = given_up(calls, 1, of_principal("ann", tool("a")))
    second = given_up(calls, 2, of_principal("bob", tool("a")))
    assert (first(), second()) == (None, None)
