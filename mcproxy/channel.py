"""Requests that we sent to a peer and have no answer to yet: ids, answers, progress, timeouts, cancelling.

Works over any duplex, in both directions: upstream links send calls through it, handshake sessions ask their
clients through it. Opens no connection, and reads none: its owner feeds it what arrives.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio

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
from mcproxy.protocol.methods import CANCELLED

GOODBYE = 1.0
"""Seconds that telling a peer of a cancellation may take."""

Send = Callable[[Message], Awaitable[None]]


class PeerGone(Exception):
    """The connection ended before the answer came. The text says how."""


class RequestTimeout(Exception):
    """No answer in time. `elapsed` is in seconds; `limit` names the bound that was hit."""

    def __init__(self, elapsed: float, limit: str) -> None:
        super().__init__(f"no answer after {elapsed:.1f} s ({limit})")
        self.elapsed = elapsed
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Timeouts:
    """In seconds. `idle` starts afresh with each sign of life, `total` does not (requirement R46)."""

    idle: float
    total: float


@dataclass(slots=True)
class _Pending:
    done: asyncio.Event
    bound: asyncio.Timeout
    timeouts: Timeouts
    give_up_at: float
    on_progress: Callable[[Params], None] | None
    answer: Response | ErrorResponse | Exception | None = None
    holds: int = 0
    over: bool = False

    def touch(self, now: float) -> None:
        if not (self.over or self.bound.expired()):
            patience = math.inf if self.holds else self.timeouts.idle
            self.bound.reschedule(_finite(min(now + patience, self.give_up_at)))

    def hold(self, change: int) -> None:
        self.holds += change
        self.touch(anyio.current_time())

    def settle(self, answer: Response | ErrorResponse | Exception) -> None:
        if self.answer is None:
            self.answer = answer
            self.done.set()


class Requests:
    """The table of one connection. Ids are minted here, counting up, and serve as progress tokens too."""

    def __init__(self) -> None:
        self._pending: dict[RequestId, _Pending] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._pending)

    async def exchange(
        self,
        method: str,
        params: Params,
        send: Send,
        timeouts: Timeouts,
        *,
        on_progress: Callable[[Params], None] | None = None,
        send_cancel: Send | None = None,
        id: RequestId | None = None,
    ) -> Response | ErrorResponse:
        """Sends a request and waits for its answer.

        `send` may return at once, or carry the exchange until the answer has been settled. With `on_progress`
        the request asks for progress, and each report (without its token) goes there and renews `idle`.
        Where the wait ends without an answer, `send_cancel` (if any) gets `notifications/cancelled`.
        `id` is minted where none is given. Raises PeerGone, RequestTimeout, and whatever `send` raises.
        """
        if id is None:
            self._last_id += 1
            id = self._last_id
        if on_progress is not None:
            params = _with_progress_token(params, id)
        start = asyncio.get_running_loop().time()
        # asyncio's own bound and event: every call has one, and anyio's cost several times as much.
        bound = asyncio.timeout_at(_finite(start + min(timeouts.idle, timeouts.total)))
        pending = _Pending(asyncio.Event(), bound, timeouts, start + timeouts.total, on_progress)
        self._pending[id] = pending
        try:
            async with bound:
                await send(Request(id, method, params))
                if pending.answer is None:
                    await pending.done.wait()
        except TimeoutError:
            if not bound.expired():
                raise
        finally:
            pending.over = True
            del self._pending[id]
            if pending.answer is None and send_cancel is not None:
                await _say_cancelled(send_cancel, id, "timed out" if bound.expired() else "no longer wanted")
        answer = pending.answer
        if answer is None:
            elapsed = anyio.current_time() - start
            raise RequestTimeout(elapsed, "total" if elapsed >= timeouts.total else "idle")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def settle(self, answer: Response | ErrorResponse) -> bool:
        """Hands an answer to whoever waits for it. False where nobody does: late, or never asked for."""
        pending = self._pending.get(answer.id) if answer.id is not None else None
        if pending is None:
            return False
        pending.settle(answer)
        return True

    def settled(self, id: RequestId) -> bool:
        """Whether nobody waits for the answer to `id` (any more)."""
        pending = self._pending.get(id)
        return pending is None or pending.answer is not None

    @contextmanager
    def held(self, ids: Iterable[RequestId]) -> Iterator[None]:
        """Stops the idle bound of some requests meanwhile: it is their peer that waits, for us."""
        held = [self._pending[id] for id in ids if id in self._pending]
        for pending in held:
            pending.hold(1)
        try:
            yield
        finally:
            for pending in held:
                pending.hold(-1)

    def progress(self, params: Params) -> bool:
        """Takes a `notifications/progress`. False where its token is not of a request in flight."""
        token = parse_id(params.get(META_PROGRESS_TOKEN, b""))
        pending = self._pending.get(token) if token is not None else None
        if pending is None or pending.on_progress is None or pending.answer is not None:
            return False
        pending.touch(anyio.current_time())
        pending.on_progress({key: value for key, value in params.items() if key != META_PROGRESS_TOKEN})
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


def _finite(when: float) -> float | None:
    return None if math.isinf(when) else when


def _with_progress_token(params: Params, token: RequestId) -> Params:
    meta = parse_object(params["_meta"]) if "_meta" in params else {}
    return {**params, "_meta": raw({**meta, META_PROGRESS_TOKEN: token})}


async def _say_cancelled(send: Send, id: RequestId, reason: str) -> None:
    # cancellation: "SHOULD include a reason"; the peer may be gone, which is no news here.
    with anyio.move_on_after(GOODBYE, shield=True):
        try:
            await send(Notification(CANCELLED, {"requestId": raw(id), "reason": raw(reason)}))
        except (OSError, PeerGone, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return
