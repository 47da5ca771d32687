"""The twin of `mcproxy.upstream.idling`: what keeps a link in use, and when it may be ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio
import pytest

from mcproxy.call.calls import Call, Complete, InputRequired, Outcome
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.pending_requests import PeerGone
from mcproxy.protocol.eras import LATEST, Era
from mcproxy.protocol.jsonrpc import first_level, raw
from mcproxy.upstream.idling import MAX_TASKS, Idling, UsedLink
from tests.fakes.upstream import quiet
from tests.upstream.support import DONE, FakeLink, request, tool

pytestmark = pytest.mark.anyio

STOP_AFTER, INPUT_WITHIN = 600.0, 3600.0
STATELESS = ServerIdentity(Era.STATELESS, LATEST, {})


@dataclass
class Rig:
    """A link over which calls are made, and the time, which passes when a test says so."""

    link: FakeLink = field(default_factory=FakeLink)
    now: float = 1000.0
    used: UsedLink = field(init=False)

    def __post_init__(self) -> None:
        self.used = UsedLink(self.link, Idling(STOP_AFTER, INPUT_WITHIN), lambda: self.now)

    async def call(self, call: Call, *outcomes: Outcome | Exception) -> None:
        self.link.outcomes.extend(outcomes)
        await self.used(call)


def made_1(ttl: int | None) -> Complete:
    return Complete(first_level({"task": {"taskId": "1", "status": "working", "ttl": ttl}}))


def made_2(ttl: int | None) -> Complete:
    return Complete(first_level({"resultType": "task", "taskId": "1", "status": "working", "ttlMs": ttl}))


def state(status: str) -> Complete:
    return Complete(first_level({"taskId": "1", "status": status}))


async def test_a_link_may_be_ended_once_so_much_time_has_passed_since_the_last_call() -> None:
    it = Rig()
    it.now += 500
    await it.call(tool("a"))
    assert it.used.seconds_left() == STOP_AFTER
    it.now += STOP_AFTER
    assert it.used.seconds_left() == 0


async def test_fetching_lists_is_no_use_so_that_polling_keeps_no_child() -> None:
    it = Rig()
    it.now += STOP_AFTER
    await it.call(request("tools/list"))
    assert it.used.seconds_left() == 0


async def test_r83_a_call_that_runs_keeps_the_link_however_long_it_takes() -> None:
    it = Rig()
    it.link.hold = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(it.used, tool("slow"))
        await quiet()
        it.now += 10 * STOP_AFTER
        assert it.used.seconds_left() == STOP_AFTER
        it.link.hold.set()
    it.now += STOP_AFTER
    assert it.used.seconds_left() == 0


async def test_a_call_that_fails_or_is_cancelled_no_longer_keeps_the_link() -> None:
    it = Rig()
    with pytest.raises(PeerGone):
        await it.call(tool("a"), PeerGone("lost"))
    it.link.hold = anyio.Event()
    with anyio.move_on_after(0):
        await it.used(tool("a"))
    it.now += STOP_AFTER
    assert it.used.seconds_left() == 0


async def test_r83_the_link_is_kept_while_a_client_may_still_give_the_input_that_was_asked_for() -> None:
    it = Rig()
    await it.call(tool("a"), InputRequired({}, "state", {}))
    it.now += INPUT_WITHIN
    assert it.used.seconds_left() == STOP_AFTER
    it.now += STOP_AFTER
    assert it.used.seconds_left() == 0


STATES = pytest.mark.parametrize("state", ["its state", None])


def asking(state: str | None) -> InputRequired:
    return InputRequired({}, state, {})


def answer(state: str | None, name: str = "a") -> Call:
    made = request("tools/call", name=name, inputResponses={})
    return made if state is None else made.with_params({**made.params, "requestState": raw(state)})


@STATES
async def test_input_that_was_given_keeps_the_link_no_longer(state: str | None) -> None:
    it = Rig()
    await it.call(request("tools/call", name="a"), asking(state))
    it.now += STOP_AFTER
    assert it.used.seconds_left() == STOP_AFTER
    await it.call(answer(state), DONE)
    it.now += STOP_AFTER
    assert it.used.seconds_left() == 0


@STATES
@pytest.mark.parametrize(("other", "name"), [("its state", "a"), ("another", "a"), (None, "a"), (None, "b")])
async def test_r83_the_link_is_kept_while_another_call_waits_for_input(
    state: str | None, other: str | None, name: str
) -> None:
    it = Rig()
    await it.call(request("tools/call", name=name), asking(other))
    await it.call(request("tools/call", name="a"), asking(state))
    await it.call(answer(state), DONE)
    for _ in range(5):
        it.now += STOP_AFTER
        assert it.used.seconds_left() == STOP_AFTER
    it.now += INPUT_WITHIN
    assert it.used.seconds_left() < 0


async def test_r83_a_subscription_keeps_the_link_until_it_is_ended() -> None:
    it = Rig()
    await it.call(request("resources/subscribe", uri="file:///a"))
    await it.call(request("resources/subscribe", uri="file:///b"))
    await it.call(request("resources/unsubscribe", uri="file:///b"))
    it.now += 10 * STOP_AFTER
    assert it.used.seconds_left() == STOP_AFTER
    await it.call(request("resources/unsubscribe", uri="file:///a"))
    it.now += STOP_AFTER
    assert it.used.seconds_left() == 0


@pytest.mark.parametrize(
    ("identity", "made", "ends"),
    [
        (FakeLink().identity, made_1(None), [(request("tasks/result", taskId="1"), DONE)]),
        (FakeLink().identity, made_1(None), [(request("tasks/cancel", taskId="1"), state("cancelled"))]),
        (STATELESS, made_2(None), [(request("tasks/get", taskId="1"), state("completed"))]),
        (STATELESS, made_2(None), [(request("tasks/get", taskId="1"), state("failed"))]),
    ],
    ids=["its result was fetched", "it was cancelled", "its state holds the result", "its state holds the error"],
)
async def test_r83_a_task_keeps_the_link_until_nothing_of_it_is_left_to_be_fetched(
    identity: ServerIdentity, made: Complete, ends: Sequence[tuple[Call, Complete]]
) -> None:
    it = Rig(FakeLink(identity=identity))
    await it.call(tool("slow"), made)
    await it.call(request("tasks/get", taskId="1"), state("working"))
    it.now += 1e6
    assert it.used.seconds_left() == STOP_AFTER
    for call, outcome in ends:
        await it.call(call, outcome)
    it.now += STOP_AFTER
    assert it.used.seconds_left() == 0


@pytest.mark.parametrize(
    ("identity", "made"), [(FakeLink().identity, made_1(5000)), (STATELESS, made_2(5000))], ids=["core", "extension"]
)
async def test_a_task_keeps_the_link_for_no_longer_than_it_lives(identity: ServerIdentity, made: Complete) -> None:
    it = Rig(FakeLink(identity=identity))
    await it.call(tool("slow"), made)
    it.now += 4
    assert it.used.seconds_left() == STOP_AFTER
    it.now += STOP_AFTER
    assert it.used.seconds_left() == 0


async def test_no_more_than_so_many_tasks_are_remembered() -> None:
    it = Rig(FakeLink(identity=STATELESS))
    for number in range(MAX_TASKS + 1):
        result = {"resultType": "task", "taskId": str(number), "status": "working", "ttlMs": None}
        await it.call(tool("slow"), Complete(first_level(result)))
    for number in range(1, MAX_TASKS + 1):
        await it.call(request("tasks/get", taskId=str(number)), state("completed"))
    it.now += STOP_AFTER
    assert it.used.seconds_left() == 0
