"""The stateless era over one duplex (2026-07-28, stdio): many requests at once, told apart by their ids.

The client cancels by `notifications/cancelled`; streams of changes share the channel, each tagged with its request's
id. Reads and writes no bytes of the connection itself.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Final

import anyio

from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import Principal
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.inbound import Incoming, speaks_stateless
from mcproxy.downstream.io.shutdown import CUT_OFF, SHUTTING_DOWN
from mcproxy.downstream.stateless.conversation import Admitted, admit, respond
from mcproxy.downstream.stateless.subscriptions import Subscription, SubscriptionOutlet
from mcproxy.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    ErrorObject,
    ErrorResponse,
    Notification,
    Params,
    Request,
    RequestId,
    parse_id,
)
from mcproxy.protocol.methods import CANCELLED


class StatelessPipe:
    """The stateless requests of one connection. `line` is woken when there is something for `tell_changes` to tell."""

    def __init__(self, edge: TransportContext, principal: Principal, endpoint: str, line: SubscriptionOutlet) -> None:
        self._edge = edge
        self._principal = principal
        self._endpoint = endpoint
        self._line = line
        self._calls: dict[RequestId, anyio.CancelScope] = {}
        self._subscriptions: dict[RequestId, Subscription] = {}
        self._idle = anyio.Event()
        self._idle.set()
        self._draining = False
        self._abandoned = False

    def receive(self, incoming: Incoming) -> bool:
        """Takes what is of this era. False where it is not: era by era, a message says so itself (versioning)."""
        match incoming:
            case Request() if speaks_stateless(incoming):
                self._begin(incoming)
                return True
            case Notification(method=method, params=params):
                hear = _HEARD.get(method)
                return (hear is not None and hear(self, params)) or speaks_stateless(incoming)
            case _:
                return False

    def cancel(self, id: RequestId | None) -> bool:
        """Cancels one request in flight. False where none has that id (cancellation, "Error Handling")."""
        if id is None or id not in self._calls:
            return False
        self._calls[id].cancel()
        return True

    def tell_changes(self) -> bool:
        """Sends news of one subscription, so that what waits to be written stays little; they take turns.

        Whether there may be more.
        """
        for id, subscription in self._subscriptions.items():
            if subscription.has_news:
                subscription.tell_changes()
                self._subscriptions[id] = self._subscriptions.pop(id)
                return True
        return False

    def drain(self) -> None:
        """Admits nothing more, and ends the streams of changes; calls go on (requirement R9)."""
        self._draining = True
        for subscription in self._subscriptions.values():
            subscription.close()

    async def idle(self) -> None:
        """Returns once no request is in flight."""
        await self._idle.wait()

    def abandon(self) -> None:
        """Cuts off the requests that outlast the gateway's grace; each is answered an error (requirement R9)."""
        self._abandoned = True
        self.end()

    def end(self) -> None:
        """The connection is gone, and whoever waited for answers."""
        for scope in self._calls.values():
            scope.cancel()

    def _begin(self, request: Request) -> None:
        try:
            self._check_room(request.id)
            work = self._work(admit(self._edge, request, self._principal, self._endpoint))
        except McpError as refusal:
            self._line.send(ErrorResponse(request.id, refusal.error()))
            return
        self._calls[request.id] = anyio.CancelScope()
        if self._idle.is_set():
            self._idle = anyio.Event()
        self._edge.tasks.start_soon(self._carry_out, request.id, work)

    def _work(self, admitted: Admitted) -> Callable[[], Coroutine[object, object, None]]:
        if not admitted.stays_open:
            return partial(respond, self._edge, admitted, self._line.send)
        subscription = Subscription(self._edge, admitted, self._line)
        self._subscriptions[admitted.id] = subscription
        return subscription.run

    async def _carry_out(self, id: RequestId, work: Callable[[], Coroutine[object, object, None]]) -> None:
        try:
            with self._calls[id] as scope:
                await work()
            if scope.cancelled_caught and self._abandoned:
                self._line.send(ErrorResponse(id, ErrorObject(INTERNAL_ERROR, CUT_OFF)))
        finally:
            del self._calls[id]
            self._subscriptions.pop(id, None)
            if not self._calls:
                self._idle.set()

    def _check_room(self, id: RequestId) -> None:
        if self._draining:
            raise McpError(INTERNAL_ERROR, SHUTTING_DOWN, reason=Reason.UNAVAILABLE)
        if id in self._calls:
            raise McpError(INVALID_REQUEST, f"the id {id!r} is that of a request still in flight")
        if len(self._calls) >= self._edge.proxy.limits.max_calls_per_session:
            raise McpError(INTERNAL_ERROR, "busy: too many requests at once (limits.max_calls_per_session)")


def _cancel(pipe: StatelessPipe, params: Params) -> bool:
    return pipe.cancel(parse_id(params.get("requestId", b"")))


_HEARD: Final[Mapping[str, Callable[[StatelessPipe, Params], bool]]] = {CANCELLED: _cancel}
"""The notifications of this era; whether they concerned it."""
