"""`mcproxy.pending_requests`: how long requests are waited for, and who is told when they are not (R46, R25)."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from contextvars import ContextVar

import anyio
import pytest

from mcproxy.pending_requests import PeerGone, PendingRequests, RequestTimeout, Timeouts, with_progress_token
from mcproxy.protocol.jsonrpc import Message, Notification, Params, Request, Response, parse_object, raw
from mcproxy.protocol.methods import PROGRESS
from tests.http.timers import COMMANDED, commanded_loop
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

CALL: ContextVar[object] = ContextVar("CALL")
QUICK = Timeouts(0.01, 60)
SLOW = Timeouts(60, 60)


class Peer:
    """What was sent to it, and the ids of requests. `on_request` happens as each is sent."""

    def __init__(self, on_request: Callable[[Request], None] = lambda request: None) -> None:
        self.heard: list[Message] = []
        self._on_request = on_request

    async def send(self, message: Message) -> None:
        self.heard.append(message)
        if isinstance(message, Request):
            self._on_request(message)

    @property
    def cancelled(self) -> list[Params]:
        return [message.params for message in self.heard if isinstance(message, Notification)]


async def ask(
    requests: PendingRequests, peer: Peer, timeouts: Timeouts, *, progress: list[Params] | None = None
) -> object:
    def notify(method: str, params: Params) -> None:
        assert method == PROGRESS
        assert progress is not None
        progress.append(params)

    return await requests.exchange(
        "m", {}, peer.send, timeouts, notify=notify if progress is not None else None, send_cancel=peer.send
    )


async def test_an_answer_may_come_while_its_request_is_still_sent() -> None:
    requests = PendingRequests()
    peer = Peer(lambda request: requests.fail_all(PeerGone("gone")) if request.id == 2 else None)
    answering = Peer(lambda request: _settle(requests, request))
    assert await ask(requests, answering, SLOW) == Response(1, {})
    with pytest.raises(PeerGone, match="gone"):
        await ask(requests, peer, SLOW)
    assert (len(requests), peer.cancelled) == (0, [])


@pytest.mark.parametrize("meta", [{}, {"_meta": raw({"a": 1})}])
async def test_progress_is_asked_for_by_the_id_as_a_text_which_strict_servers_take(meta: Params) -> None:
    asking = with_progress_token({"name": raw("t"), **meta}, PendingRequests().mint())
    assert parse_object(asking["_meta"])["progressToken"] == raw("1")


@pytest.mark.parametrize(("id", "taken"), [("1", True), ("one", False), ("2", False), ("1" * 5000, False)])
async def test_an_id_that_comes_back_as_a_text_is_the_number_that_it_spells(id: str, taken: bool) -> None:
    reports: list[Params] = []

    def answer(request: Request) -> None:
        assert requests.progress({"progressToken": raw(id), "progress": raw(1)}) is taken
        assert (requests.settle(Response(id, {})) == 1) is taken
        requests.settle(Response(1, {}))

    requests = PendingRequests()
    assert await ask(requests, Peer(answer), SLOW, progress=reports) == Response(id if taken else 1, {})
    assert reports == [{"progress": raw(1)}] * taken


@COMMANDED
async def test_r46_each_wait_ends_at_its_own_time_in_any_order() -> None:
    requests, peer, ended = PendingRequests(), Peer(), []

    async def wait(name: str, timeouts: Timeouts) -> None:
        with pytest.raises(RequestTimeout) as late:
            await ask(requests, peer, timeouts)
        ended.append((name, late.value.limit))

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, "later", Timeouts(5, 60))
            tasks.start_soon(wait, "last", Timeouts(60, 10))
            tasks.start_soon(wait, "first", Timeouts(1, 60))
            for seconds, over in ((0, 0), (1, 1), (3, 1), (1, 2), (4, 2), (1, 3)):
                await commanded_loop().advance(seconds)
                assert len(ended) == over
    assert ended == [("first", "idle"), ("later", "idle"), ("last", "total")]
    assert [params["requestId"] for params in peer.cancelled] == [raw(3), raw(1), raw(2)]


@COMMANDED
async def test_r46_a_wait_that_began_while_the_alarm_of_an_earlier_one_stood_ends_in_time() -> None:
    requests, peer, ended = PendingRequests(), Peer(), list[str]()
    answering = Peer(lambda request: _settle(requests, request))

    async def wait(timeouts: Timeouts) -> None:
        with pytest.raises(RequestTimeout) as late:
            await ask(requests, peer, timeouts)
        ended.append(late.value.limit)

    async with anyio.create_task_group() as tasks:
        for standing, timeouts in ((5, Timeouts(10, 600)), (600, Timeouts(10, 600))):
            await ask(requests, answering, Timeouts(standing, standing))
            tasks.start_soon(wait, timeouts)
            await commanded_loop().advance(0)
            await commanded_loop().advance(9)
            assert ended == []
            await commanded_loop().advance(1)
            assert ended == ["idle"]
            ended.clear()


@COMMANDED
async def test_r46_progress_renews_the_wait_and_does_not_lengthen_the_total() -> None:
    requests, peer, reports, ended = PendingRequests(), Peer(), list[Params](), list[str]()

    async def wait() -> None:
        with pytest.raises(RequestTimeout) as late:
            await ask(requests, peer, Timeouts(10, 30), progress=reports)
        ended.append(late.value.limit)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await commanded_loop().advance(0)
        for _ in range(5):
            await commanded_loop().advance(5)
            assert requests.progress({"progressToken": raw(1), "progress": raw(1)})
        await commanded_loop().advance(4)
        assert ended == []
        await commanded_loop().advance(1)
        assert ended == ["total"]
    assert reports == [{"progress": raw(1)}] * 5


@COMMANDED
async def test_r46_what_waits_for_us_has_no_idle_bound_until_it_has_its_answer() -> None:
    requests, peer, ended = PendingRequests(), Peer(), anyio.Event()

    async def wait() -> None:
        with pytest.raises(RequestTimeout):
            await ask(requests, peer, Timeouts(1, 1000))
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await commanded_loop().advance(0)
        with requests.held([1]):
            await commanded_loop().advance(100)
        await commanded_loop().advance(0.5)
        assert not ended.is_set()
        await commanded_loop().advance(0.5)
        assert ended.is_set()


async def test_r46_a_send_that_carries_the_exchange_is_ended_too() -> None:
    async def send(message: Message) -> None:
        await anyio.sleep_forever()

    with anyio.fail_after(GUARD), pytest.raises(RequestTimeout):
        await PendingRequests().exchange("m", {}, send, QUICK)
    await anyio.lowlevel.checkpoint()  # nothing is left of the cancellation


async def test_r25_a_wait_that_is_cancelled_is_taken_back_and_one_that_is_over_is_not() -> None:
    requests, scope = PendingRequests(), anyio.CancelScope()
    answering, peer = Peer(lambda request: _settle(requests, request)), Peer(lambda request: scope.cancel())
    with scope:
        await ask(requests, answering, SLOW)
        await ask(requests, peer, SLOW)
    assert scope.cancelled_caught
    assert answering.cancelled == []
    assert peer.cancelled == [{"requestId": raw(2), "reason": raw("no longer wanted")}]


async def test_an_alarm_that_stands_holds_nothing_of_the_call_that_it_was_set_in() -> None:
    requests, answering = PendingRequests(), Peer(lambda request: _settle(requests, request))
    call = Peer()
    token = CALL.set(call)
    await ask(requests, answering, SLOW)
    CALL.reset(token)
    held = weakref.ref(call)
    del call, token
    gc.collect()
    assert held() is None


async def test_waits_without_end_need_no_alarm() -> None:
    requests, peer = PendingRequests(), Peer()
    with anyio.move_on_after(0.01) as scope:
        await ask(requests, peer, Timeouts(math.inf, math.inf))
    assert scope.cancelled_caught
    assert len(requests) == 0


def _settle(requests: PendingRequests, request: Request) -> None:
    requests.settle(Response(request.id, {}))
