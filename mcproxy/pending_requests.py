"""Requests that wait for a peer's answer: ids, answers, progress, timeouts and cancellation.

Keeps none that is over. Works over any duplex, in both directions: upstream links send calls through it, handshake
sessions ask their clients through it. Opens and reads no connection: its owner passes in answers and notifications.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Final

import anyio
import msgspec
from msgspec import Raw

from mcproxy.protocol.eras import META_PROGRESS_TOKEN
from mcproxy.protocol.jsonrpc import (
    ErrorResponse,
    Message,
    Notification,
    Params,
    Request,
    RequestId,
    Response,
    parse_id,
    parse_object,
    raw,
)
from mcproxy.protocol.methods import CANCELLED, PROGRESS

CANCEL_TIMEOUT = 1.0
"""Seconds that sending a cancellation may take."""

_DIGITS: Final = 15
_PROGRESS_ALONE: Final = b'{"%b":"%%b"}' % META_PROGRESS_TOKEN.encode()

Send = Callable[[Message], Awaitable[None]]


class PeerGone(Exception):
    """The connection ended before the answer came. The text says how."""


class RequestTimeout(Exception):
    """No answer in time. `elapsed` is in seconds; `limit` names the bound that was hit."""

    def __init__(self, elapsed: float, limit: str) -> None:
        super().__init__(f"no answer after {elapsed:.1f} s ({limit})")
        self.elapsed = elapsed
        self.limit = limit


class Timeouts(msgspec.Struct, frozen=True):
    """In seconds. `idle` restarts with each report of progress, `total` does not (requirement R46)."""

    idle: float
    total: float


class _Pending(msgspec.Struct, eq=False):
    """One request, and the task that waits for its answer."""

    task: asyncio.Task[Any]
    cancelling: int
    """`Task.cancelling()` when the wait began."""
    timeouts: Timeouts
    started: float
    heard: float
    """The time of the last progress."""
    notify: Callable[[str, Params], None] | None
    answer: Response | ErrorResponse | Exception | None = None
    holds: int = 0
    expired: bool = False
    waiter: asyncio.Future[None] | None = None

    @property
    def deadline(self) -> float:
        if self.expired:
            return math.inf
        idle = math.inf if self.holds else self.timeouts.idle
        return min(self.heard + idle, self.started + self.timeouts.total)

    def settle(self, answer: Response | ErrorResponse | Exception) -> None:
        if self.answer is None:
            self.answer = answer
            if self.waiter is not None and not self.waiter.done():
                self.waiter.set_result(None)

    def expire(self) -> None:
        """Ends the wait, as `asyncio.timeout` does."""
        self.expired = True
        self.task.cancel()

    def uncancel(self) -> bool:
        """Whether only this timeout cancelled the task; takes that cancellation back."""
        return self.expired and self.task.uncancel() <= self.cancelling


class PendingRequests:
    """The table of one connection. Ids are minted here, counting up, and serve as progress tokens too, as texts.

    While a request is pending there is one timer, due no later than the first deadline. It outlives the request that it
    was set for: mostly another has begun by then, and a timer for each would cost more.
    """

    __slots__ = ("_last_id", "_loop", "_pending", "_timer", "_timer_due")

    def __init__(self) -> None:
        self._pending: dict[RequestId, _Pending] = {}
        self._last_id = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf

    def __len__(self) -> int:
        return len(self._pending)

    def mint(self) -> RequestId:
        """An id that no other request of this connection has."""
        self._last_id += 1
        return self._last_id

    async def exchange(
        self,
        method: str,
        params: Params,
        send: Send,
        timeouts: Timeouts,
        *,
        notify: Callable[[str, Params], None] | None = None,
        send_cancel: Send | None = None,
        id: RequestId | None = None,
    ) -> Response | ErrorResponse:
        """Sends a request and waits for its answer.

        `send` may return at once, or carry the exchange until the answer has been settled. Each report of progress
        (without its token) goes to `notify` and renews `idle`; `params` ask for it (`with_progress_token`).
        Where the wait ends without an answer, `send_cancel` (if any) gets `notifications/cancelled`.
        `id` is minted where none is given. Raises PeerGone, RequestTimeout, and what `send` raises.
        """
        if id is None:
            id = self.mint()
        pending = self._pending[id] = self._new(timeouts, notify)
        try:
            await send(Request(id, method, params))
            if pending.answer is None:
                pending.waiter = self._loop.create_future()
                await pending.waiter
        except BaseException as error:
            if not (pending.uncancel() and isinstance(error, asyncio.CancelledError)):
                raise
        finally:
            del self._pending[id]
            if pending.answer is None and send_cancel is not None:
                await _send_cancelled(send_cancel, id, "timed out" if pending.expired else "no longer wanted")
        answer = pending.answer
        if answer is None:
            elapsed = self._loop.time() - pending.started
            raise RequestTimeout(elapsed, "total" if elapsed >= timeouts.total else "idle")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _new(self, timeouts: Timeouts, notify: Callable[[str, Params], None] | None) -> _Pending:
        task = asyncio.current_task(self._loop)
        assert task is not None
        now = self._loop.time()
        deadline = now + min(timeouts.idle, timeouts.total)
        if deadline < self._timer_due:
            self._wake_by(deadline)
        return _Pending(task, task.cancelling(), timeouts, now, now, notify)

    def settle(self, answer: Response | ErrorResponse) -> RequestId | None:
        """Gives an answer to the task that waits for it. Returns the id as it was minted, where it is of a request."""
        id = answer.id
        if id is None:
            return None
        pending = self._pending.get(id)
        if pending is None:
            id = as_minted(id)
            pending = self._pending.get(id)
        if pending is not None:
            pending.settle(answer)
        return id

    def settled(self, id: RequestId) -> bool:
        """Whether request `id` is answered, or not pending."""
        pending = self._pending.get(id)
        return pending is None or pending.answer is not None

    def in_flight(self) -> list[RequestId]:
        """The requests that are not answered, oldest first."""
        return [id for id, pending in self._pending.items() if pending.answer is None]

    @contextmanager
    def held(self, ids: Iterable[RequestId]) -> Iterator[None]:
        """Suspends the idle timeout of some requests: meanwhile their peer waits for us."""
        held = [self._pending[id] for id in ids if id in self._pending]
        self._hold(held, 1)
        try:
            yield
        finally:
            self._hold(held, -1)

    def is_held(self, id: RequestId) -> bool:
        """Whether the idle timeout of request `id` is suspended, since its peer waits for us."""
        pending = self._pending.get(id)
        return pending is not None and pending.holds > 0

    def is_any_held(self) -> bool:
        """As `is_held`, of any request."""
        return any(pending.holds for pending in self._pending.values())

    def progress(self, params: Params) -> bool:
        """Takes a `notifications/progress`. False where its token is not of a request in flight."""
        token = parse_id(params.get(META_PROGRESS_TOKEN, b""))
        if token is None:
            return False
        pending = self._pending.get(token) or self._pending.get(as_minted(token))
        if pending is None or pending.notify is None or pending.answer is not None:
            return False
        pending.heard = self._loop.time()
        report = params.copy()
        del report[META_PROGRESS_TOKEN]
        pending.notify(PROGRESS, report)
        return True

    def fail(self, id: RequestId, error: Exception) -> None:
        """Ends one wait with `error`."""
        pending = self._pending.get(id)
        if pending is not None:
            pending.settle(error)

    def fail_all(self, error: Exception) -> None:
        """Ends every wait with `error`: the connection is gone."""
        for pending in list(self._pending.values()):
            pending.settle(error)

    def _hold(self, held: Iterable[_Pending], change: int) -> None:
        for pending in held:
            pending.holds += change
            pending.heard = self._loop.time()
            self._wake_by(pending.deadline)

    def _wake_by(self, when: float) -> None:
        if when < self._timer_due:
            if self._timer is not None:
                self._timer.cancel()
            # In an empty context: the timer may outlive the call that it is set in.
            self._timer, self._timer_due = self._loop.call_at(when, self._wake, context=Context()), when

    def _wake(self) -> None:
        """Expires the requests whose deadline has passed, and sets the timer for the others."""
        self._timer, self._timer_due = None, math.inf
        now = self._loop.time()
        for pending in self._pending.values():
            if pending.deadline <= now:
                pending.expire()
        self._wake_by(min((pending.deadline for pending in self._pending.values()), default=math.inf))


def as_minted(id: RequestId) -> RequestId:
    """The number that a text of digits spells: some peers send ids back as texts, which SDKs of old take too."""
    return int(id) if isinstance(id, str) and id.isdecimal() and len(id) <= _DIGITS else id


def with_progress_token(params: Params, id: RequestId) -> Params:
    """`params` of a request that asks for reports of its progress: its token is the id as a text.

    basic, Progress: a token may be a text or a number; Spring AI's servers hand it to functions that take a text alone.
    """
    asking, token = params.copy(), str(id)
    if "_meta" in params:
        asking["_meta"] = raw({**parse_object(params["_meta"]), META_PROGRESS_TOKEN: token})
    else:
        asking["_meta"] = Raw(_PROGRESS_ALONE % token.encode())
    return asking


async def _send_cancelled(send: Send, id: RequestId, reason: str) -> None:
    # cancellation: "SHOULD include a reason"; the peer may be gone, which is no news here.
    with anyio.move_on_after(CANCEL_TIMEOUT, shield=True):
        try:
            await send(Notification(CANCELLED, {"requestId": raw(id), "reason": raw(reason)}))
        except (OSError, PeerGone, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return
