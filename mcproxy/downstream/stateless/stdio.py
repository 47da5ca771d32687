"""The stateless era over stdio (2026-07-28, stdio): many requests at once, told apart by their ids.

The client cancels by `notifications/cancelled`; subscription streams share the connection, each message tagged with
its request's id. Reads and writes no bytes of the connection itself.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Final

import anyio

from mcproxy.call.errors import McpError
from mcproxy.call.identity import Principal
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.inbound import Incoming, speaks_stateless
from mcproxy.downstream.io.responses import cut_off, shutting_down
from mcproxy.downstream.stateless.conversation import Admitted, admit, respond
from mcproxy.downstream.stateless.subscriptions import Subscription, SubscriptionOutlet
from mcproxy.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    ErrorResponse,
    Notification,
    Params,
    Request,
    RequestId,
    parse_id,
    raw,
)
from mcproxy.protocol.methods import CANCELLED


class StatelessPipe:
    """The stateless requests of one connection, all answered to `outlet`."""

    def __init__(
        self, context: TransportContext, principal: Principal, endpoint: str, outlet: SubscriptionOutlet
    ) -> None:
        self._context = context
        self._principal = principal
        self._endpoint = endpoint
        self._outlet = outlet
        self._calls: dict[RequestId, anyio.CancelScope] = {}
        self._subscriptions: dict[RequestId, Subscription] = {}
        self._idle = anyio.Event()
        self._idle.set()
        self._draining = False
        self._cut_off = False

    def receive(self, incoming: Incoming) -> bool:
        """Takes a message of this era; returns whether it was one. Each message says so itself (versioning)."""
        match incoming:
            case Request() if speaks_stateless(incoming):
                self._begin(incoming)
                return True
            case Notification(method=method, params=params):
                handle = _OWN_NOTIFICATIONS.get(method)
                return (handle is not None and handle(self, params)) or speaks_stateless(incoming)
            case _:
                return False

    def cancel(self, id: RequestId | None) -> bool:
        """Cancels one request in flight. False where none has that id (cancellation, "Error Handling")."""
        if id is None or id not in self._calls:
            return False
        self._calls[id].cancel()
        return True

    def send_changes(self) -> bool:
        """Sends pending changes of one subscription, in turns, so that little waits to be written.

        Returns whether there may be more.
        """
        for id, subscription in self._subscriptions.items():
            if subscription.has_changes:
                subscription.send_changes()
                self._subscriptions[id] = self._subscriptions.pop(id)
                return True
        return False

    def drain(self) -> None:
        """Takes no more requests and ends subscriptions; calls go on (requirement R9)."""
        self._draining = True
        for id, subscription in self._subscriptions.items():
            acknowledged = subscription.acknowledged
            subscription.close()
            if acknowledged:
                # cancellation: a server MUST send this when it tears down a listen stream, and for nothing else. Behind
                # the closing result, which says that the end is graceful (subscriptions).
                self._outlet.send(Notification(CANCELLED, {"requestId": raw(id)}))

    async def wait_idle(self) -> None:
        """Returns once no request is in flight."""
        await self._idle.wait()

    def cut_off(self) -> None:
        """Cancels the requests that outlast the gateway's grace; each is answered with an error (requirement R9)."""
        self._cut_off = True
        self.end()

    def end(self) -> None:
        """Cancels every request: the connection is gone."""
        for scope in self._calls.values():
            scope.cancel()

    def _begin(self, request: Request) -> None:
        try:
            self._check_room(request.id)
            work = self._work(admit(self._context, request, self._principal, self._endpoint))
        except McpError as refusal:
            self._outlet.send(ErrorResponse(request.id, refusal.error()))
            return
        self._calls[request.id] = anyio.CancelScope()
        if self._idle.is_set():
            self._idle = anyio.Event()
        self._context.tasks.start_soon(self._carry_out, request.id, work)

    def _work(self, admitted: Admitted) -> Callable[[], Coroutine[object, object, None]]:
        if not admitted.stays_open:
            return partial(respond, self._context, admitted, self._outlet.send)
        subscription = Subscription(self._context, admitted, self._outlet)
        self._subscriptions[admitted.id] = subscription
        return subscription.run

    async def _carry_out(self, id: RequestId, work: Callable[[], Coroutine[object, object, None]]) -> None:
        try:
            with self._calls[id] as scope:
                await work()
            if scope.cancelled_caught and self._cut_off:
                self._outlet.send(cut_off(id))
        finally:
            del self._calls[id]
            self._subscriptions.pop(id, None)
            if not self._calls:
                self._idle.set()

    def _check_room(self, id: RequestId) -> None:
        if self._draining:
            raise shutting_down()
        if id in self._calls:
            raise McpError(INVALID_REQUEST, f"the id {id!r} is that of a request still in flight")
        if len(self._calls) >= self._context.proxy.limits.max_calls_per_session:
            raise McpError(INTERNAL_ERROR, "busy: too many requests at once (limits.max_calls_per_session)")


def _cancel(pipe: StatelessPipe, params: Params) -> bool:
    return pipe.cancel(parse_id(params.get("requestId", b"")))


_OWN_NOTIFICATIONS: Final[Mapping[str, Callable[[StatelessPipe, Params], bool]]] = {CANCELLED: _cancel}
"""Notifications that this era acts on; each returns whether it concerned a request of this era."""
