"""The one `subscriptions/listen` stream of an upstream (2026-07-28, subscriptions), for all lists, URIs and tasks.

When the filter changes, a new stream is opened, and the old one closed once the new one is acknowledged, so that no
notification is missed. Does no I/O: the conversation provides a function that listens, and passes in messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final, NamedTuple

import anyio
import msgspec
import structlog
from anyio.abc import TaskGroup

from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.clients import ListChanged, ResourceUpdated, TaskChanged
from mcproxy.call.errors import Party, Reason
from mcproxy.call.upstreams import PushChannel, UnannouncedLists
from mcproxy.catalog.uris import canonical
from mcproxy.concurrency import backoff
from mcproxy.concurrency.wakeup import Wakeup
from mcproxy.pending_requests import PeerGone
from mcproxy.protocol.capabilities import tells_changes
from mcproxy.protocol.envelope import META, without_hop_meta
from mcproxy.protocol.eras import META_SUBSCRIPTION
from mcproxy.protocol.json.bounds import parse_texts
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    ErrorObject,
    ErrorResponse,
    InvalidMessage,
    Notification,
    Params,
    RequestId,
    Response,
    nonnull,
    parse_id,
    parse_object,
    parse_text,
    raw,
)
from mcproxy.protocol.methods import (
    ACKNOWLEDGED,
    CHANGED,
    LISTEN,
    LISTEN_FLAGS,
    LISTEN_URIS,
    RESOURCE_UPDATED,
    Kind,
)
from mcproxy.protocol.tasks import LISTEN_TASKS, TASK_ID, TASK_NOTIFICATION, listened, listening_for
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.link import NotAccepted, Rejected, task_group

log = structlog.get_logger()

STABLE_AFTER: Final = 5.0
"""Seconds after which a stream counts as stable: when it ends, it is reopened after the first delay (R6)."""

Listen = Callable[[Params, Callable[[RequestId], None]], Awaitable[Response | ErrorResponse]]
"""Sends one `subscriptions/listen`, reports its id, and returns its final answer.

Raises NotAccepted, PeerGone or Rejected.
"""


SPARE: Final = 1000
"""Names that an acknowledgement may have beyond twice the requested ones; one with more is not read."""


class FilterEntry(NamedTuple):
    """One name in a filter: `member` is LISTEN_URIS or LISTEN_TASKS."""

    member: str
    name: str


class ListenFilter(msgspec.Struct, frozen=True):
    """The notifications that a stream requests, or has agreed to."""

    flags: frozenset[str] = frozenset()
    """A subset of `LISTEN_FLAGS`."""
    uris: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()

    @classmethod
    def of(cls, flags: frozenset[str], named: Collection[FilterEntry]) -> ListenFilter:
        """The filter with these flags, and with the URIs and tasks in `named`."""
        uris = frozenset(name for member, name in named if member == LISTEN_URIS)
        return cls(flags, uris, frozenset(name for member, name in named if member == LISTEN_TASKS))

    def __bool__(self) -> bool:
        return bool(self.flags or self.named)

    @property
    def named(self) -> frozenset[FilterEntry]:
        """The URIs and tasks, one entry each."""
        uris = frozenset(FilterEntry(LISTEN_URIS, uri) for uri in self.uris)
        return uris | {FilterEntry(LISTEN_TASKS, id) for id in self.tasks}

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The lists that the flags stand for."""
        return tuple(kind for flag, kinds in LISTEN_FLAGS.items() if flag in self.flags for kind in kinds)

    def params(self) -> Params:
        """The params of a `subscriptions/listen` request (2026-07-28, subscriptions)."""
        members: dict[str, object] = dict.fromkeys(sorted(self.flags), True)
        if self.uris:
            members[LISTEN_URIS] = sorted(self.uris)
        if self.tasks:
            members[LISTEN_TASKS] = sorted(self.tasks)
        return {"notifications": raw(members)}

    def agreed(self, params: Params) -> ListenFilter:
        """The part of this filter that an acknowledgement honours.

        A URI may come back spelt differently (requirement R63).
        """
        try:
            members = nonnull(parse_object(params.get("notifications", EMPTY_OBJECT)))
            uris = parse_texts(members.get(LISTEN_URIS, b"[]"), 2 * len(self.uris) + SPARE)
            named = set(map(canonical, uris))
            tasks = self.tasks.intersection(listened(params, 2 * len(self.tasks) + SPARE))
        except (InvalidMessage, msgspec.MsgspecError, RecursionError):
            return ListenFilter()
        flags = frozenset(flag for flag in self.flags if bytes(members.get(flag, b"")) == b"true")
        return ListenFilter(flags, frozenset(uri for uri in self.uris if canonical(uri) in named), tasks)


def announced(capabilities: Params) -> frozenset[str]:
    """The flags for the lists whose changes a server declares that it announces."""
    return frozenset(flag for flag, kinds in LISTEN_FLAGS.items() if tells_changes(capabilities, kinds[0].capability))


class _WantedEntry(msgspec.Struct, eq=False):
    """One resource or task whose notifications are wanted. `error` says why they are not available."""

    settled: anyio.Event = msgspec.field(default_factory=anyio.Event)
    error: ErrorObject | None = None

    @property
    def granted(self) -> bool:
        return self.settled.is_set() and self.error is None

    def settle(self, error: ErrorObject | None) -> None:
        self.error = error
        self.settled.set()


class _ListenResponse(msgspec.Struct, eq=False):
    asked: ListenFilter
    since: float
    scope: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)
    opened: anyio.Event = msgspec.field(default_factory=anyio.Event)
    """Set once acknowledged, or if it ended before."""
    agreed: ListenFilter | None = None
    end: ErrorObject | None = None
    """The reason why it ended, once it has."""

    @property
    def covers(self) -> ListenFilter:
        """The filter that need not be requested again.

        Includes flags that the server did not honour: it would not again.
        """
        return ListenFilter.of(self.asked.flags, self.agreed.named if self.agreed is not None else ())

    def acknowledged(self, params: Params) -> None:
        if self.agreed is None:
            self.agreed = self.asked.agreed(params)
            self.opened.set()

    def ended(self, why: ErrorObject) -> None:
        self.end = why
        self.opened.set()


class ListenStream:
    """`run` owns the streams; calls and messages come from other tasks."""

    def __init__(
        self,
        context: LinkContext,
        flags: frozenset[str],
        listen: Listen,
        delays: Callable[[int], float] = backoff.delay,
    ) -> None:
        self._context = context
        self._flags = flags
        self._listen = listen
        self._delays = delays
        self._wanted: dict[FilterEntry, _WantedEntry] = {}
        self._streams: dict[RequestId, _ListenResponse] = {}
        """The streams that are open or being opened: two while one replaces the other."""
        self._stream: _ListenResponse | None = None
        """The acknowledged stream."""
        self._unsupported: ErrorObject | None = None
        self._closed: str | None = None
        self._channel_lost = False
        """Whether wanted notifications do not arrive (requirement R21)."""
        self._failures = 0
        self._unannounced: frozenset[Kind] = frozenset()
        """The lists whose flags the server did not honour."""
        self._reports = False
        """Whether changes of the channel's state are published; `report` publishes the first."""
        self._first_attempt = anyio.Event()
        self._wakeup = Wakeup()

    async def begin(self, timeout: float) -> None:
        """Returns once the stream is open, if one is wanted, or after `timeout` seconds."""
        if not self._flags:
            return
        with anyio.move_on_after(timeout):
            await self._first_attempt.wait()
        self._channel_lost |= self._stream is None

    async def report(self) -> None:
        """Publishes that the channel is lost, or that flags were not honoured. Call it once the link is published."""
        self._reports = True
        if self._channel_lost:
            self._context.publish(PushChannel.LOST)
        elif self._unannounced:
            self._context.publish(UnannouncedLists(self._unannounced))

    async def subscribe(self, call: Call) -> Outcome:
        """Answers once the server agreed or refused to report updates. Raises PeerGone if the link ends before."""
        uri = _uri(call)
        if uri is None:
            return Failed(ErrorObject(INVALID_PARAMS, f"{call.method} needs a URI"), Party.CLIENT)
        if self._unsupported is not None:
            return Failed(self._unsupported, Party.UPSTREAM)
        name = FilterEntry(LISTEN_URIS, uri)
        entry = self._wanted.setdefault(name, _WantedEntry())
        self._wakeup.notify_all()
        try:
            with anyio.move_on_after(self._timeout):
                await entry.settled.wait()
        finally:
            if not entry.granted:
                self._withdraw(name, entry)
        if entry.granted:
            return Complete({})
        if self._closed is not None:
            raise PeerGone(self._closed)
        return Failed(entry.error, Party.UPSTREAM) if entry.error is not None else self._late()

    async def unsubscribe(self, call: Call) -> Outcome:
        """Answers at once: updates that still arrive do no harm."""
        name = FilterEntry(LISTEN_URIS, _uri(call) or "")
        if name in self._wanted:
            self._withdraw(name, self._wanted[name])
        return Complete({})

    async def listen(self, call: Call) -> Outcome:
        """Listens to exactly the tasks that a filter names from now on; the result names the honoured ones.

        Raises PeerGone if the link ends before.
        """
        if self._unsupported is not None:
            return Failed(self._unsupported, Party.UPSTREAM)
        names = dict.fromkeys(FilterEntry(LISTEN_TASKS, id) for id in listened(call.params))
        for old in [name for name in self._wanted if name.member == LISTEN_TASKS and name not in names]:
            self._withdraw(old, self._wanted[old])
        entries = {name: self._wanted.setdefault(name, _WantedEntry()) for name in names}
        self._wakeup.notify_all()
        try:
            with anyio.move_on_after(self._timeout):
                for entry in entries.values():
                    await entry.settled.wait()
        finally:
            for name, entry in entries.items():
                if not entry.granted:
                    self._withdraw(name, entry)
        if self._closed is not None:
            raise PeerGone(self._closed)
        return Complete(listening_for(name.name for name, entry in entries.items() if entry.granted))

    def close(self, reason: str) -> list[RequestId]:
        """Ends all waits, as the link is closed. Returns the streams to end."""
        self._closed = reason
        for entry in self._wanted.values():
            if not entry.granted:
                entry.settle(self._error(reason))
        return list(self._streams)

    def holds(self, id: RequestId) -> bool:
        """Whether `id` is that of a stream that is open or being opened."""
        return id in self._streams

    def take(self, notification: Notification, cause: RequestId | None) -> bool:
        """Takes a notification from the response stream of `cause`, or (None) from a shared channel.

        On a shared channel `_meta` must name the stream; some servers leave it out. Then the change counts for the open
        stream, as all streams report the same. Returns False if it is unknown, or belongs to no stream of ours.
        """
        id = cause if cause is not None else _subscription(notification.params)
        stream = self._streams.get(id) if id is not None else None
        if notification.method == ACKNOWLEDGED:
            if stream is not None:
                stream.acknowledged(notification.params)
            return stream is not None
        unnamed = cause is None and META not in notification.params
        if stream is None and not (unnamed and self._streams):
            return False
        if notification.method == RESOURCE_UPDATED:
            return self._updated(without_hop_meta(notification.params))
        if notification.method == TASK_NOTIFICATION:
            return self._task_changed(without_hop_meta(notification.params))
        kinds = CHANGED.get(notification.method, ())
        self._publish_changed(kinds)
        return bool(kinds)

    async def run(self) -> None:
        """Keeps a stream open for all that is wanted, until cancelled, or until the server lacks the method."""
        async with task_group() as tasks:
            while self._unsupported is None and self._closed is None:
                wanted = ListenFilter.of(self._flags, self._wanted)
                if self._stream is not None and self._stream.end is not None:
                    await self._lost(self._stream, self._stream.end)
                elif self._channel_lost and not wanted:
                    self._restore_channel()
                elif wanted == (self._stream.covers if self._stream is not None else ListenFilter()):
                    await self._wakeup.wait()
                elif not wanted:
                    self._replace(None)
                else:
                    await self._open(wanted, tasks)

    async def _open(self, wanted: ListenFilter, tasks: TaskGroup) -> None:
        """Opens a stream.

        Once acknowledged, it is open and replaces the earlier one (subscriptions, Acknowledgment).
        """
        stream = _ListenResponse(wanted, anyio.current_time())
        tasks.start_soon(self._follow, stream)
        with anyio.move_on_after(self._timeout):
            await stream.opened.wait()
        if stream.agreed is not None:
            self._adopt(stream, stream.agreed)
            self._first_attempt.set()
            return
        stream.scope.cancel()
        await self._refused(wanted, stream.end or self._late().error)

    async def _follow(self, stream: _ListenResponse) -> None:
        id: RequestId | None = None

        def begun(minted: RequestId) -> None:
            nonlocal id
            id = minted
            self._streams[minted] = stream

        why = "it ended"
        try:
            with stream.scope:
                answer = await self._listen(stream.asked.params(), begun)
                if isinstance(answer, ErrorResponse):
                    stream.ended(self._context.redacted(answer.error))
        except (NotAccepted, PeerGone, Rejected) as error:
            why = str(error)
        finally:
            if id is not None:
                del self._streams[id]
            if stream.end is None:
                stream.ended(self._context.redacted(self._error(why)))
            self._wakeup.notify_all()
        if stream is self._stream and self._closed is None:
            # At once, even while another stream waits for its acknowledgement: until then nothing is reported.
            self._lose_channel()

    def _adopt(self, stream: _ListenResponse, agreed: ListenFilter) -> None:
        self._replace(stream)
        if self._settle(stream.asked, agreed):
            self._lose_channel()
        self._restore_channel()
        missing = ListenFilter(stream.asked.flags - agreed.flags).kinds
        if frozenset(missing) != self._unannounced:
            self._unannounced = frozenset(missing)
            log.warning("an upstream does not announce changes that it declares", upstream=self._context.spec.name)
            if self._reports:
                self._context.publish(UnannouncedLists(self._unannounced))

    def _replace(self, stream: _ListenResponse | None) -> None:
        old, self._stream = self._stream, stream
        if old is not None:
            old.scope.cancel()

    def _settle(self, asked: ListenFilter, agreed: ListenFilter) -> bool:
        """Settles the entries that a stream asked for; returns whether granted updates of a resource have ended."""
        ceased, honoured = False, agreed.named
        for name in asked.named & self._wanted.keys():
            entry = self._wanted[name]
            if name in honoured:
                entry.settle(None)
                continue
            if entry.granted and name.member == LISTEN_URIS:
                log.warning("an upstream no longer reports updates", upstream=self._context.spec.name, uri=name.name)
                ceased = True
            self._refuse(name, ErrorObject(INVALID_PARAMS, f"{self._name} does not report updates of {name.name}"))
        return ceased

    def _lose_channel(self) -> None:
        if not self._channel_lost:
            self._channel_lost, self._unannounced = True, frozenset()
            if self._reports:
                self._context.publish(PushChannel.LOST)

    def _restore_channel(self) -> None:
        if self._channel_lost:
            self._channel_lost = False
            if self._reports:
                self._context.publish(PushChannel.RESTORED)

    async def _refused(self, asked: ListenFilter, why: ErrorObject) -> None:
        """Handles a stream that could not be opened: new names are refused, granted ones tried again."""
        for name in asked.named & self._wanted.keys():
            if not self._wanted[name].granted:
                self._refuse(name, why)
        if self._stream is None:
            if self._flags:
                self._lose_channel()
            if why.code == METHOD_NOT_FOUND:
                self._unsupported = why
        log.warning(
            "an upstream tells no changes", upstream=self._context.spec.name, reason=self._context.redact(why.message)
        )
        self._first_attempt.set()
        self._failures += 1
        await anyio.sleep(self._delays(self._failures))

    async def _lost(self, stream: _ListenResponse, why: ErrorObject) -> None:
        """Handles a stream that ended: while a server keeps closing streams, the delay grows (requirement R6)."""
        log.debug(
            "a stream of changes ended", upstream=self._context.spec.name, reason=self._context.redact(why.message)
        )
        self._stream = None
        self._lose_channel()
        self._failures = 0 if anyio.current_time() - stream.since > STABLE_AFTER else self._failures + 1
        await anyio.sleep(self._delays(self._failures))

    def _refuse(self, name: FilterEntry, why: ErrorObject) -> None:
        self._wanted.pop(name).settle(why)

    def _withdraw(self, name: FilterEntry, entry: _WantedEntry) -> None:
        if self._wanted.get(name) is entry:
            del self._wanted[name]
            self._wakeup.notify_all()

    def _updated(self, params: Params) -> bool:
        uri = parse_text(params.get("uri", b""))
        if uri is None:
            return False
        self._context.publish(ResourceUpdated(uri, params))
        return True

    def _task_changed(self, params: Params) -> bool:
        id = parse_text(params.get(TASK_ID, b""))
        if id is None:
            return False
        self._context.publish(TaskChanged(id, TASK_NOTIFICATION, params))
        return True

    def _publish_changed(self, kinds: tuple[Kind, ...]) -> None:
        for kind in kinds:
            self._context.publish(ListChanged(kind))

    @property
    def _timeout(self) -> float:
        return self._context.spec.timeouts.idle

    @property
    def _name(self) -> str:
        return f"upstream {self._context.spec.name!r}"

    def _late(self) -> Failed:
        error = self._error(f"no acknowledgement after {self._timeout:g} s (idle)")
        return Failed(error, Party.UPSTREAM, Reason.TIMEOUT)

    def _error(self, why: str) -> ErrorObject:
        return ErrorObject(INTERNAL_ERROR, f"{self._name}, {LISTEN}: {why}")


def _subscription(params: Params) -> RequestId | None:
    """The stream that a notification names in `_meta` (subscriptions, Receiving Notifications)."""
    try:
        return parse_id(parse_object(params.get(META, EMPTY_OBJECT)).get(META_SUBSCRIPTION, b""))
    except InvalidMessage:
        return None


def _uri(call: Call) -> str | None:
    return parse_text(call.params.get(call.row.subject_key or "", b""))
