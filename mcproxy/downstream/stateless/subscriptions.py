"""`subscriptions/listen` (2026-07-28, subscriptions): one request, answered by a stream of changes until it ends.

The acknowledgement goes first and names what is honoured; only changes that were asked for are sent. Pending changes
are a set. A stream is a state machine: `TRANSITIONS` has all of it. Knows no transport.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping
from enum import Enum
from itertools import compress
from typing import Final, Protocol, assert_never

import anyio
import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.calls import Call, Complete, Failed, InputRequired, Outcome
from mcproxy.call.clients import Change, InputRequest, ListChanged, Notice, ResourceUpdated, TaskChanged
from mcproxy.call.errors import McpError
from mcproxy.call.identity import Caller
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.pending_changes import BATCH, PendingChanges, as_notification
from mcproxy.downstream.io.responses import shutting_down
from mcproxy.downstream.stateless.conversation import Admitted, answer, not_asked
from mcproxy.protocol.capabilities import tells_changes
from mcproxy.protocol.envelope import META, with_meta
from mcproxy.protocol.eras import META_SUBSCRIPTION
from mcproxy.protocol.json.bounds import TooMany, parse_array, parse_texts
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_CLIENT_CAPABILITY,
    ErrorResponse,
    InvalidMessage,
    Message,
    Notification,
    Params,
    encode,
    nonnull,
    parse_object,
    raw,
    size_of,
    with_param,
)
from mcproxy.protocol.methods import ACKNOWLEDGED, DISCOVER, LISTEN, LISTEN_FLAGS, LISTEN_URIS, METHODS, SUBSCRIBE, Kind
from mcproxy.protocol.tasks import LISTEN_TASKS, NEEDED, UNDECLARED, listened, listening_for, offer
from mcproxy.settings import LimitSettings

MAX_CONCURRENT: Final = 16
"""Resources of one stream that are subscribed at the same time."""

MAX_CLIENT_BYTES: Final = 16 * 1024
"""Of what a client says of itself in the request of a stream."""

_flag = msgspec.json.Decoder(bool)


class ListenState(Enum):
    """What a stream's client was sent."""

    SUBSCRIBING = "nothing yet: it is being found out what can be honoured"
    CLOSING = "nothing yet, and an error as soon as that was found out"
    OPEN = "the acknowledgement, and changes since"
    ANSWERED = "its closing result or an error, which nothing follows"
    ENDED = "nothing more: its subscriptions were let go of"


class ListenEvent(Enum):
    """What happens to a stream."""

    ACKNOWLEDGED = "what is honoured was found out"
    REFUSED = "the request is answered with an error"
    CLOSED = "the gateway shuts down, or the credentials are no longer good"
    LET_GO = "its request is over, or its connection is gone"


_S, _E = ListenState, ListenEvent
TRANSITIONS: Final[Mapping[ListenState, Mapping[ListenEvent, ListenState]]] = {
    _S.SUBSCRIBING: {
        _E.ACKNOWLEDGED: _S.OPEN,
        _E.REFUSED: _S.ANSWERED,
        _E.CLOSED: _S.CLOSING,
        _E.LET_GO: _S.ENDED,
    },
    _S.CLOSING: {
        _E.REFUSED: _S.ANSWERED,
        _E.CLOSED: _S.CLOSING,
        _E.LET_GO: _S.ENDED,
    },
    _S.OPEN: {
        _E.CLOSED: _S.ANSWERED,
        _E.LET_GO: _S.ENDED,
    },
    _S.ANSWERED: {
        _E.CLOSED: _S.ANSWERED,
        _E.LET_GO: _S.ENDED,
    },
    _S.ENDED: {},
}

_OPEN: Final = ListenState.OPEN


class SubscriptionFilter(msgspec.Struct, frozen=True):
    """The changes that a client asks for, or that the gateway agreed to send."""

    flags: frozenset[str] = frozenset()
    uris: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    """Task ids, as the client knows them."""

    @property
    def kinds(self) -> frozenset[Kind]:
        """The lists of whose changes the client is told."""
        return frozenset(kind for flag in self.flags for kind in LISTEN_FLAGS[flag])

    def matches(self, change: Change) -> bool:
        """Whether the client is told of a change; of updates, only those of resources that it watches come here."""
        # An update may concern thousands, and `match` takes several times as long.
        if isinstance(change, ResourceUpdated):
            return bool(self.uris)
        match change:
            case ListChanged(kind=kind):
                return kind in self.kinds
            case TaskChanged(id=id):
                return id in self.tasks
            case Notice():
                # subscriptions, logging: messages of a request go on the stream of that request.
                return False
            case _:
                assert_never(change)

    def members(self) -> dict[str, object]:
        """The members of `notifications`, as a request or its acknowledgement has them; what is empty is left out."""
        named = {LISTEN_URIS: self.uris, LISTEN_TASKS: self.tasks}
        return {**dict.fromkeys(sorted(self.flags), True), **{key: names for key, names in named.items() if names}}


def read_filter(params: Params, limits: LimitSettings) -> SubscriptionFilter:
    """The filter of a request. Raises McpError where it is malformed, or names more than a session may watch."""
    if "notifications" not in params:
        raise McpError(INVALID_PARAMS, '"notifications" is missing: an object that names the changes to be told of')
    most_uris, most_tasks = limits.max_subscriptions_per_session, limits.max_tasks_per_session
    try:
        members = nonnull(parse_object(params["notifications"]))
        _check_entries(members, LISTEN_URIS, most_uris, "max_subscriptions_per_session")
        _check_entries(members, LISTEN_TASKS, most_tasks, "max_tasks_per_session")
        flags = frozenset(name for name in LISTEN_FLAGS if name in members and _flag.decode(members[name]))
        uris = tuple(dict.fromkeys(parse_texts(members.get(LISTEN_URIS, b"[]"), 2 * most_uris)))
        tasks = listened(params, 2 * most_tasks)
    except (InvalidMessage, msgspec.MsgspecError) as error:
        sentence = f'"notifications" must be an object of booleans, and {LISTEN_URIS} in it a list of URIs: {error}'
        raise McpError(INVALID_PARAMS, sentence) from error
    _check_number(uris, "resources", most_uris, "max_subscriptions_per_session")
    _check_number(tasks, "tasks", most_tasks, "max_tasks_per_session")
    size = sum(len(name) for name in (*uris, *tasks))
    if size > limits.max_subscription_bytes_per_principal:
        most = limits.max_subscription_bytes_per_principal
        sentence = f"{size} bytes of names in one subscription; at most {most}"
        raise McpError(INVALID_PARAMS, f"{sentence} (limits.max_subscription_bytes_per_principal)")
    return SubscriptionFilter(flags, uris, tasks)


def _check_size(caller: Caller) -> None:
    """Raises McpError where a client says more of itself than is kept for as long as a stream lasts."""
    size = size_of(caller.capabilities) + len(caller.info or b"")
    if size > MAX_CLIENT_BYTES:
        sentence = f"{size} bytes of client capabilities and info; at most {MAX_CLIENT_BYTES} in a subscription"
        raise McpError(INVALID_PARAMS, sentence)


def _check_entries(members: Params, name: str, most: int, limit: str) -> None:
    """Raises McpError for a list that is too long even if each entry comes twice: it is not read."""
    try:
        parse_array(members.get(name, b"[]"), 2 * most)
    except TooMany as error:
        sentence = f"{name} names too much for one subscription; at most {most} (limits.{limit})"
        raise McpError(INVALID_PARAMS, sentence) from error
    except (msgspec.MsgspecError, RecursionError):
        return  # It is refused as what it is where it is read.


def _check_number(names: tuple[str, ...], what: str, most: int, limit: str) -> None:
    if len(names) > most:
        raise McpError(INVALID_PARAMS, f"{len(names)} {what} in one subscription; at most {most} (limits.{limit})")


def _check_tasks(admitted: Admitted) -> None:
    """Raises McpError for tasks of a client that did not declare the extension (tasks extension, Protocol Errors)."""
    try:
        members = nonnull(parse_object(admitted.params.get("notifications", EMPTY_OBJECT)))
    except InvalidMessage:
        return
    caller = admitted.caller
    if LISTEN_TASKS in members and offer(caller.version, caller.capabilities) is None:
        raise McpError(MISSING_CLIENT_CAPABILITY, UNDECLARED, {"requiredCapabilities": NEEDED})


class SubscriptionOutlet(Protocol):
    """The way to the client of a subscription."""

    def send(self, message: Message) -> None:
        """Never blocks."""

    def put(self, notification: bytes, *, droppable: bool) -> None:
        """Sends an encoded notification; a droppable one is dropped where there is no room."""

    def notify_writer(self) -> None:
        """Has the writer look: the subscription has changes to send."""


class Subscription:
    """One stream, as its client's listener (implements `call.clients.Listener`)."""

    def __init__(self, context: TransportContext, admitted: Admitted, outlet: SubscriptionOutlet) -> None:
        """Raises McpError where the request cannot be served."""
        self.caller: Final = admitted.caller
        _check_tasks(admitted)
        _check_size(admitted.caller)
        self._wanted = read_filter(admitted.params, context.proxy.limits)
        self._context = context
        # Without its params: they refer to the whole message, which may be long, and the stream may last.
        self._admitted = replace(admitted, params={})
        self._outlet = outlet
        self._tag = {META_SUBSCRIPTION: admitted.id}
        self._meta = b'"%b":%b' % (META.encode(), raw(self._tag))
        self._changes = PendingChanges(context.proxy.limits)
        self._filter = SubscriptionFilter()
        self._watched = array("q")
        """The keys of its lists and resources in `ended_streams`, once it is acknowledged."""
        self.state = ListenState.SUBSCRIBING
        self._closing: McpError | None = None
        """What its request is answered with, where it was closed before it was acknowledged."""
        self._closed: asyncio.Event | None = None
        """Made by the first that waits for it."""

    def set_log_level(self, level: str) -> None:
        """Does nothing: log messages belong to requests."""

    def notify(self, method: str, params: Params) -> None:
        """Does nothing: messages of a request do not go on this stream (subscriptions)."""

    def signal(self, change: Change) -> None:
        if self._filter.matches(change):
            self._changes.note(change)
            self._outlet.notify_writer()

    async def ask(self, request: InputRequest) -> Raw:
        raise not_asked(request)

    def _advance(self, event: ListenEvent) -> bool:
        """False where it has ended: what comes of its request then is for nobody."""
        if self.state is ListenState.ENDED:
            return False
        self.state = TRANSITIONS[self.state][event]
        return True

    @property
    def acknowledged(self) -> bool:
        """Whether it was acknowledged, and is open still."""
        return self.state is _OPEN

    @property
    def has_changes(self) -> bool:
        """Whether changes are pending that may be sent now."""
        return self.state is _OPEN and len(self._changes) > 0

    def send_changes(self) -> bool:
        """Sends a batch of pending changes; returns whether there may be more."""
        if self.state is not _OPEN:
            return False
        changes = self._changes.take()
        for change in changes:
            self._outlet.put(self._encoded(change), droppable=True)
        return len(changes) == BATCH

    async def run(self) -> None:
        """Begins, and lasts until `close`. Where it is cancelled, it sends nothing more."""
        try:
            await self.begin()
            if self.acknowledged:
                self._closed = asyncio.Event()
                await self._closed.wait()
        finally:
            self.end()

    async def begin(self) -> None:
        """Subscribes, and sends the acknowledgement or an error. `end` must follow in any case."""
        self._context.audience.join(self)
        try:
            await self._subscribe()
        except McpError as refusal:
            self._refuse(refusal)
            return
        if self._closing is not None:
            self._refuse(self._closing)
            return
        if not self._advance(ListenEvent.ACKNOWLEDGED):
            return
        honoured = {"notifications": raw(self._filter.members())}
        self._outlet.send(Notification(ACKNOWLEDGED, with_meta(honoured, self._tag)))
        self._note_missed(self._filter)
        # The gateway keeps the URIs, and sends updates of these alone: here it matters only whether there are any.
        self._filter = SubscriptionFilter(self._filter.flags, self._filter.uris[:1], self._filter.tasks)
        self._outlet.notify_writer()

    def _refuse(self, refusal: McpError) -> None:
        if self._advance(ListenEvent.REFUSED):
            self._outlet.send(ErrorResponse(self._admitted.id, refusal.error()))

    def _note_missed(self, agreed: SubscriptionFilter) -> None:
        """R21: what a stream before this one watched may have changed while there was none."""
        ended = self._context.ended_streams
        flags = sorted(agreed.flags)
        self._watched = ended.keys(self.caller, (*flags, *agreed.uris))
        missed = [ended.missed(key) for key in self._watched]
        for flag in compress(flags, missed):
            for kind in LISTEN_FLAGS[flag]:
                self._changes.note(ListChanged(kind))
        for uri in compress(agreed.uris, missed[len(flags) :]):
            self._changes.note(ResourceUpdated(uri))

    def close(self, refusal: McpError | None = None) -> None:
        """Ends the stream with its closing result (subscriptions, "Graceful Closure").

        Before it was acknowledged, the request is answered with `refusal`, by default that the gateway shuts down.
        """
        was_open = self.acknowledged
        if not self._advance(ListenEvent.CLOSED):
            return
        self._closing = refusal or shutting_down()
        if was_open:
            self._outlet.send(answer(self._context, self._admitted, Complete(with_meta({}, self._tag))))
        if self._closed is not None:
            self._closed.set()

    def end(self) -> None:
        """Sends no more changes, and lets go of its subscriptions. Idempotent."""
        self._advance(ListenEvent.LET_GO)
        self._context.ended_streams.note(self._watched)
        self._watched = array("q")
        self._context.audience.leave(self)

    async def _subscribe(self) -> None:
        """Finds out what is honoured; changes outside of that are not noted meanwhile. Raises McpError."""
        wanted = self._wanted
        flags = await self._announced() if wanted.flags else frozenset()
        self._filter = SubscriptionFilter(flags, wanted.uris, wanted.tasks)
        tasks = await self._agreed_tasks() if wanted.tasks else ()
        self._filter = SubscriptionFilter(flags, await self._agreed(), tasks)
        self._wanted = SubscriptionFilter()

    async def _announced(self) -> frozenset[str]:
        """The flags of lists whose changes the endpoint announces (`listChanged`)."""
        discovered = _result(await self._context.handler(self._call(DISCOVER, {})))
        capabilities = parse_object(discovered.get("capabilities", EMPTY_OBJECT))
        return frozenset(
            flag
            for flag in self._wanted.flags
            if all(tells_changes(capabilities, kind.capability) for kind in LISTEN_FLAGS[flag])
        )

    async def _agreed(self) -> tuple[str, ...]:
        """The resources whose upstreams agreed to send updates, in the order of the request."""
        agreed: set[str] = set()
        limiter = anyio.CapacityLimiter(MAX_CONCURRENT)

        async def subscribe(uri: str) -> None:
            async with limiter:
                outcome = await self._context.handler(self._call(SUBSCRIBE, {"uri": raw(uri)}))
            if isinstance(outcome, Complete):
                agreed.add(uri)

        async with anyio.create_task_group() as tasks:
            for uri in self._wanted.uris:
                tasks.start_soon(subscribe, uri)
        return tuple(uri for uri in self._wanted.uris if uri in agreed)

    async def _agreed_tasks(self) -> tuple[str, ...]:
        """The tasks whose changes will be sent, in the order of the request; none where the gateway refuses."""
        outcome = await self._context.handler(self._call(LISTEN, listening_for(self._wanted.tasks)))
        if not isinstance(outcome, Complete):
            return ()
        agreed = frozenset(listened(outcome.result))
        return tuple(id for id in self._wanted.tasks if id in agreed)

    def _call(self, method: str, params: Params) -> Call:
        return Call(METHODS[method], params, self.caller, client=self, listener=self)

    def _encoded(self, change: Change) -> bytes:
        """The notification of a change, tagged with this stream's id; the rest is the same for every client."""
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
            raise McpError(INTERNAL_ERROR, "a subscription cannot ask for input")
        case _:
            assert_never(outcome)
