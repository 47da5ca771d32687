"""The twin of `mcproxy.gateway.tasks.places`."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from mcproxy.call.calls import Complete, Failed, Outcome
from mcproxy.call.clients import TaskChanged
from mcproxy.call.errors import Party
from mcproxy.call.identity import Principal
from mcproxy.call.upstreams import Retired
from mcproxy.gateway.tasks.places import CHECK, LONGEST_UNSEEN, LOST
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, LIMIT_EXCEEDED, ErrorObject, parse_object, raw
from mcproxy.settings import Settings
from tests.fakes.upstream import House, complete, decoded, error, house
from tests.gateway.tasks.test_relay import DECLARED, core, create, described, extended
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

ONE: dict[str, Any] = {"limits": {"rules": {"one": {"at_once": 1, "per": ["principal"], "tools": ["*"]}}}}
REMOTE = {"a": {"command": None, "url": "http://127.0.0.1:9/mcp"}}
UNKNOWN = Failed(ErrorObject(INVALID_PARAMS, "no such task"), Party.UPSTREAM)


async def is_full(h: House, **options: Any) -> bool:
    """Whether a further call is refused."""
    outcome = await h.call("tools/call", name="a__slow", **options)
    if isinstance(outcome, Complete):
        return False
    assert error(outcome).code == LIMIT_EXCEEDED
    return True


async def passes(h: House, seconds: float) -> None:
    """Lets time pass, and waits until what is done then was done."""
    h.clock.now += seconds
    assert len(h.gateway._task_places)
    with anyio.fail_after(GUARD):
        while not (before := h.sleeper.asked.count(CHECK)):
            await anyio.lowlevel.checkpoint()
        h.sleeper.wake()
        while len(h.gateway._task_places) and h.sleeper.asked.count(CHECK) == before:
            await anyio.lowlevel.checkpoint()


async def test_r73_a_call_that_became_a_task_holds_its_place_until_the_task_ends() -> None:
    async with house(core(), access=ONE) as h:
        await h.ready()
        made = 0
        for number in range(50):
            outcome = await h.call("tools/call", name="a__slow", task={}, session=f"s{number}")
            made += isinstance(outcome, Complete)
        assert made == 1
        assert await is_full(h)
        assert not await is_full(h, principal=Principal("bob"))


@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel", "tasks/result"])
async def test_what_a_caller_hears_of_the_end_frees_the_place(method: str) -> None:
    async with house(core(), access=ONE) as h:
        await h.ready()
        id = await create(h)
        decoded(await h.call("tasks/get", taskId=id))
        assert await is_full(h)
        h["a"].answers["tasks/get"] = lambda call: complete(**described("1", "completed"))
        decoded(await h.call(method, taskId=id))
        assert not await is_full(h)


async def test_a_task_of_the_extension_holds_its_place_until_its_state_says_that_it_ended() -> None:
    stateless: dict[str, Any] = {"version": LATEST, "capabilities": DECLARED}
    async with house(extended(), access=ONE) as h:
        await h.ready()
        id = decoded(await h.call("tools/call", **stateless, name="a__slow"))["taskId"]
        assert await is_full(h, **stateless)
        decoded(await h.call("tasks/get", **stateless, taskId=id))
        assert not await is_full(h, **stateless)


async def test_a_notification_of_the_end_frees_the_place() -> None:
    async with house(core(), access=ONE) as h:
        await h.ready()
        await create(h)
        for status in ("working", "failed"):
            assert await is_full(h)
            state = parse_object(raw(described("1", status)))
            h["a"].announce(TaskChanged("1", "notifications/tasks/status", state))
        assert not await is_full(h)


@pytest.mark.parametrize("answer", [complete(**described("1", "completed")), UNKNOWN])
async def test_a_server_is_asked_about_a_task_that_nobody_asks_for(answer: Outcome) -> None:
    async with house(core(), access=ONE) as h:
        await h.ready()
        await create(h)
        await passes(h, 20)
        assert h["a"].count("tasks/get") == 1
        assert await is_full(h)
        h["a"].answers["tasks/get"] = lambda call: answer
        await passes(h, 20)
        assert not await is_full(h)


@pytest.mark.parametrize("is_retired", [False, True])
async def test_a_task_ends_with_its_child_process(is_retired: bool) -> None:
    async with house(core(), access=ONE) as h:
        await h.ready()
        await create(h)
        h["a"].disconnect()
        if is_retired:
            h.gateway.on_event(Retired("a", None))
        h["a"].connect()
        assert not await is_full(h)


async def test_a_task_of_a_server_that_is_away_holds_its_place_for_a_time() -> None:
    async with house(core(), access=ONE, options=REMOTE) as h:
        await h.ready()
        await create(h)
        h["a"].disconnect()
        await passes(h, LOST - 1)
        assert len(h.gateway._task_places) == 1
        await passes(h, 2)
        assert len(h.gateway._task_places) == 0


async def test_no_caller_gets_its_place_back_by_a_short_ttl() -> None:
    up = core()
    up.answers["tools/call"] = lambda call: complete(task={**described("1"), "ttl": 1})
    async with house(up, access=ONE, options=REMOTE) as h:
        await h.ready()
        await create(h)
        await passes(h, 60)
        assert await is_full(h)
        h["a"].disconnect()
        await passes(h, LONGEST_UNSEEN - 1)
        assert len(h.gateway._task_places) == 1
        await passes(h, 2)
        assert len(h.gateway._task_places) == 0


async def test_r49_a_place_is_held_over_a_reload() -> None:
    async with house(core(), access=ONE) as h:
        await h.ready()
        id = await create(h)
        changed = {**h.settings.model_dump(), "access": {"limits": {**ONE["limits"], "max_keys": 7}}}
        h.gateway.reconfigure(Settings.model_validate(changed), dict(h.upstreams))
        assert await is_full(h)
        decoded(await h.call("tasks/cancel", taskId=id))
        assert not await is_full(h)


async def test_a_task_that_no_limit_counts_is_not_asked_about() -> None:
    async with house(core()) as h:
        await h.ready()
        await create(h)
        assert len(h.gateway._task_places) == 0
