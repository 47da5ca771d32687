"""`subscriptions/listen` (2026-07-28, subscriptions): one request, answered by a stream of changes until it ends.

The acknowledgement goes first and says what is honoured; nothing else is told that was not asked for. What the
client has still to be told is a set. Knows no transport.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol, assert_never

import anyio
import msgspec
from msgspec import Raw

from mcproxy.call.calls import Call, Complete, Failed, InputRequired, Outcome
from mcproxy.call.clients import Change, InputRequest, ListChanged, Notice, ResourceUpdated, TaskChanged
from mcproxy.call.errors import McpError
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.pending_changes import AT_ONCE, PendingChanges, as_notification
from mcproxy.downstream.io.shutdown import SHUTTING_DOWN
from mcproxy.downstream.stateless.conversation import Admitted, answer
from mcproxy.protocol.capabilities import tells_changes
from mcproxy.protocol.envelope import META, with_meta
from mcproxy.protocol.eras import META_SUBSCRIPTION
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    MISSING_CLIENT_CAPABILITY,
    ErrorObject,
    ErrorResponse,
    InvalidMessage,
    Message,
    Notification,
    Params,
    encode,
    parse_object,
    raw,
    with_param,
)
from mcproxy.protocol.methods import ACKNOWLEDGED, DISCOVER, LISTEN, LISTEN_FLAGS, LISTEN_URIS, METHODS, SUBSCRIBE, Kind
from mcproxy.protocol.tasks import LISTEN_TASKS, NEEDED, UNDECLARED, listened, listening_for, offer
from mcproxy.settings import LimitSettings

SUBSCRIBED_AT_ONCE: Final = 16
"""How many resources of one stream are subscribed at the same time."""

_flag = msgspec.json.Decoder(bool)
_uris = msgspec.json.Decoder(list[str])


@dataclass(frozen=True, slots=True)
class SubscriptionFilter:
    """What a client wants to hear of, or is agreed to be told."""

    flags: frozenset[str] = frozenset()
    uris: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    """By the ids that the client knows."""

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset(kind for flag in self.flags for kind in LISTEN_FLAGS[flag])

    def admits(self, change: Change) -> bool:
        # An update may concern thousands, and `match` takes several times as long.
        if isinstance(change, ResourceUpdated):
            return bool(self.uris)
        match change:
            case ListChanged(kind=kind):
                return kind in self.kinds
            case TaskChanged(id=id):
                return id in self.tasks
            case Notice():
                # subscriptions, logging: what belongs to requests goes on the streams of requests.
                return False
            case _:
                assert_never(change)

    def members(self) -> dict[str, object]:
        named = {LISTEN_URIS: self.uris, LISTEN_TASKS: self.tasks}
        return {**dict.fromkeys(sorted(self.flags), True), **{key: names for key, names in named.items() if names}}


def read_filter(params: Params, limits: LimitSettings) -> SubscriptionFilter:
    """What a request asks for. Raises McpError, as well where it names more than it may."""
    try:
        members = parse_object(params.get("notifications", b""))
        flags = frozenset(name for name in LISTEN_FLAGS if name in members and _flag.decode(members[name]))
        uris = tuple(dict.fromkeys(_uris.decode(members[LISTEN_URIS]))) if LISTEN_URIS in members else ()
        tasks = listened(params)
    except (InvalidMessage, msgspec.MsgspecError) as error:
        sentence = f'"notifications" must be an object of booleans, and {LISTEN_URIS} in it a list of URIs: {error}'
        raise McpError(INVALID_PARAMS, sentence) from error
    _check_number(uris, "resources", limits.max_subscriptions_per_session, "max_subscriptions_per_session")
    _check_number(tasks, "tasks", limits.max_tasks_per_session, "max_tasks_per_session")
    return SubscriptionFilter(flags, uris, tasks)


def _check_number(names: tuple[str, ...], what: str, most: int, limit: str) -> None:
    if len(names) > most:
        raise McpError(INVALID_PARAMS, f"{len(names)} {what} in one subscription; at most {most} (limits.{limit})")


def _check_tasks(admitted: Admitted) -> None:
    """tasks extension, Protocol Errors: MUST, for who names tasks and did not declare it. Raises McpError."""
    try:
        members = parse_object(admitted.params.get("notifications", EMPTY_OBJECT))
    except InvalidMessage:
        return
    caller = admitted.caller
    if LISTEN_TASKS in members and offer(caller.version, caller.capabilities) is None:
        raise McpError(MISSING_CLIENT_CAPABILITY, UNDECLARED, {"requiredCapabilities": NEEDED})


class SubscriptionOutlet(Protocol):
    """The way to the client."""

    def send(self, message: Message) -> None:
        """Never blocks."""

    def put(self, notification: bytes, *, may_miss: bool) -> None:
        """Sends one that is encoded already; what may be missed is dropped where there is no room."""

    def wake(self) -> None:
        """Says that there may be changes to tell."""


class Subscription:
    """One stream, as its client's listener (`call.clients.Listener`)."""

    def __init__(self, edge: TransportContext, admitted: Admitted, line: SubscriptionOutlet) -> None:
        """Raises McpError where the request says nothing that can be served."""
        self.caller: Final = admitted.caller
        _check_tasks(admitted)
        self._wanted = read_filter(admitted.params, edge.proxy.limits)
        self._edge = edge
        self._admitted = admitted
        self._line = line
        self._tag = {META_SUBSCRIPTION: admitted.id}
        self._meta = b'"%b":%b' % (META.encode(), raw(self._tag))
        self._changes = PendingChanges(edge.proxy.limits)
        self._filter = SubscriptionFilter()
        self._acknowledged = False
        self._closing = False
        self._closed: asyncio.Event | None = None
        """Made by who waits for it."""

    def set_log_level(self, level: str) -> None:
        """Does nothing: log messages belong to requests."""

    def notify(self, method: str, params: Params) -> None:
        """Does nothing: what belongs to a request does not go on this stream (subscriptions)."""

    def signal(self, change: Change) -> None:
        if self._filter.admits(change):
            self._changes.note(change)
            self._line.wake()

    async def ask(self, request: InputRequest) -> Raw:
        raise McpError(INVALID_REQUEST, f"{request.method}: this client can be asked by an answer alone")

    @property
    def has_news(self) -> bool:
        """Whether the client has still to be told something, and has the acknowledgement."""
        return self._acknowledged and len(self._changes) > 0

    def tell_changes(self) -> bool:
        """Sends some of it; whether there may be more."""
        if not self._acknowledged:
            return False
        changes = self._changes.take()
        for change in changes:
            self._line.put(self._told(change), may_miss=True)
        return len(changes) == AT_ONCE

    @property
    def lasts(self) -> bool:
        """Whether it is acknowledged, and has not ended."""
        return self._acknowledged

    async def run(self) -> None:
        """Begins, and lasts until `close`. Cancelled, it says nothing."""
        try:
            await self.begin()
            if self.lasts:
                self._closed = asyncio.Event()
                await self._closed.wait()
        finally:
            self.end()

    async def begin(self) -> None:
        """Subscribes and acknowledges, or answers why not. `end` is due in any case."""
        self._edge.audience.join(self)
        try:
            await self._subscribe()
        except McpError as refusal:
            self._line.send(ErrorResponse(self._admitted.id, refusal.error()))
            return
        if self._closing:
            self._line.send(ErrorResponse(self._admitted.id, ErrorObject(INTERNAL_ERROR, SHUTTING_DOWN)))
            return
        self._acknowledged = True
        honoured = {"notifications": raw(self._filter.members())}
        self._line.send(Notification(ACKNOWLEDGED, with_meta(honoured, self._tag)))
        self._line.wake()

    def close(self) -> None:
        """Ends the stream with its closing result (subscriptions, "Graceful Closure")."""
        self._closing = True
        if self._acknowledged:
            self._acknowledged = False
            self._line.send(answer(self._edge, self._admitted, Complete(with_meta({}, self._tag))))
        if self._closed is not None:
            self._closed.set()

    def end(self) -> None:
        """Nothing is told any more. Idempotent."""
        self._acknowledged = False
        self._edge.audience.leave(self)

    async def _subscribe(self) -> None:
        """Settles what is honoured. Until then nothing is noted that might not be. Raises McpError."""
        flags = await self._announced() if self._wanted.flags else frozenset()
        self._filter = SubscriptionFilter(flags, self._wanted.uris, self._wanted.tasks)
        tasks = await self._agreed_tasks() if self._wanted.tasks else ()
        self._filter = SubscriptionFilter(flags, await self._agreed(), tasks)

    async def _announced(self) -> frozenset[str]:
        """The flags for lists that the endpoint says it tells changes of."""
        discovered = _result(await self._edge.handler(self._call(DISCOVER, {})))
        capabilities = parse_object(discovered.get("capabilities", EMPTY_OBJECT))
        return frozenset(
            flag
            for flag in self._wanted.flags
            if all(tells_changes(capabilities, kind.capability) for kind in LISTEN_FLAGS[flag])
        )

    async def _agreed(self) -> tuple[str, ...]:
        """The resources whose upstreams agreed, in the order of the request."""
        agreed: set[str] = set()
        limiter = anyio.CapacityLimiter(SUBSCRIBED_AT_ONCE)

        async def subscribe(uri: str) -> None:
            async with limiter:
                outcome = await self._edge.handler(self._call(SUBSCRIBE, {"uri": raw(uri)}))
            if isinstance(outcome, Complete):
                agreed.add(uri)

        async with anyio.create_task_group() as tasks:
            for uri in self._wanted.uris:
                tasks.start_soon(subscribe, uri)
        return tuple(uri for uri in self._wanted.uris if uri in agreed)

    async def _agreed_tasks(self) -> tuple[str, ...]:
        """The tasks of which the client will be told, in the order of the request; none where there is no answer."""
        outcome = await self._edge.handler(self._call(LISTEN, listening_for(self._wanted.tasks)))
        if not isinstance(outcome, Complete):
            return ()
        agreed = frozenset(listened(outcome.result))
        return tuple(id for id in self._wanted.tasks if id in agreed)

    def _call(self, method: str, params: Params) -> Call:
        return Call(METHODS[method], params, self.caller, client=self, listener=self)

    def _told(self, change: Change) -> bytes:
        """What tells the client of a change. It says of which stream it is; the rest is the same to all."""
        if isinstance(change, ResourceUpdated) and META not in change.params:
            return with_param(change.notification, self._meta)
        notification = as_notification(change)
        return encode(Notification(notification.method, with_meta(notification.params, self._tag)))


def _result(outcome: Outcome) -> Params:
    match outcome:
        case Complete(result=result):
            return result
        case Failed(error=error):
            raise McpError(error.code, error.message, error.data)
        case InputRequired():
            raise McpError(INTERNAL_ERROR, "asked for input where none can be given")
        case _:
            assert_never(outcome)
