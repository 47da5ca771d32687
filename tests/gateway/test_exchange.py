"""The twin of `mcproxy.gateway.exchange`."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from mcproxy.call.calls import Failed, Outcome
from mcproxy.call.errors import Reason
from mcproxy.call.identity import ANONYMOUS, Principal
from mcproxy.protocol.methods import Kind
from tests.fakes.upstream import FakeUpstream, House, complete, decoded, error, house, quiet, tool

pytestmark = pytest.mark.anyio

ALICE, BOB = Principal("alice"), Principal("bob")


def working() -> FakeUpstream:
    upstream = FakeUpstream("up", tools={})
    upstream.lists[Kind.TOOLS] = [tool("work")]
    upstream.answers["tools/call"] = lambda call: complete(content=[], structuredContent={"done": True})
    return upstream


async def work(h: House, principal: Principal) -> Outcome:
    return await h.call("tools/call", principal=principal, name="up__work")


@pytest.mark.parametrize(
    ("options", "share"),
    [({"max_in_flight": 4}, 3), ({"max_in_flight": 4, "max_in_flight_per_principal": 1}, 1), ({"max_in_flight": 1}, 1)],
)
async def test_no_principal_takes_all_calls_that_an_upstream_has_in_flight(
    options: dict[str, object], share: int
) -> None:
    async with house(working(), options={"up": options}) as h, anyio.create_task_group() as tasks:
        await h.ready()
        h["up"].gate.shut()
        for _ in range(share):
            tasks.start_soon(work, h, ALICE)
        await h["up"].gate.holds(share)
        refused = await work(h, ALICE)
        assert isinstance(refused, Failed)
        assert refused.reason is Reason.UNAVAILABLE
        assert f"{share} calls of yours" in error(refused).message
        tasks.start_soon(work, h, BOB)
        await h["up"].gate.holds(share + 1)
        h["up"].gate.open()
        await quiet()
        assert decoded(await work(h, ALICE))["structuredContent"] == {"done": True}


async def test_an_anonymous_caller_has_the_share_of_its_address() -> None:
    async with house(working(), options={"up": {"max_in_flight": 4}}) as h, anyio.create_task_group() as tasks:
        await h.ready()
        h["up"].gate.shut()
        for _ in range(3):
            tasks.start_soon(work, h, replace(ANONYMOUS, address="203.0.113.7"))
        await h["up"].gate.holds(3)
        refused = await work(h, replace(ANONYMOUS, address="203.0.113.7"))
        assert isinstance(refused, Failed)
        assert "3 calls of yours" in error(refused).message
        tasks.start_soon(work, h, replace(ANONYMOUS, address="203.0.113.8"))
        await h["up"].gate.holds(4)
        h["up"].gate.open()


async def test_anonymous_callers_that_cannot_be_told_apart_are_no_single_caller() -> None:
    async with house(working(), options={"up": {"max_in_flight": 4}}) as h, anyio.create_task_group() as tasks:
        await h.ready()
        h["up"].gate.shut()
        for _ in range(6):
            tasks.start_soon(work, h, ANONYMOUS)
        await h["up"].gate.holds(6)
        h["up"].gate.open()


async def test_a_call_that_is_cancelled_gives_its_share_back() -> None:
    async with house(working(), options={"up": {"max_in_flight": 1}}) as h:
        await h.ready()
        h["up"].gate.shut()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work, h, ALICE)
            await h["up"].gate.holds(1)
            tasks.cancel_scope.cancel()
        h["up"].gate.open()
        assert decoded(await work(h, ALICE))["structuredContent"] == {"done": True}
