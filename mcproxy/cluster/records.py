"""What a session needs to live on at another replica: its subscriptions and log level, or that it has ended.

Written through to the store when a client changes it; read when a replica opens a session of one that is gone. A
session whose record cannot be read is refused (404), so that its client initializes anew: it would lack subscriptions
that its client counts on. Each restored subscription tells its client of one update, since some may have gone unheard.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal

import anyio
import msgspec
import structlog
from anyio.abc import TaskGroup

from mcproxy.call.calls import Call, Complete, Failed, Handler, Outcome
from mcproxy.call.clients import Listener, ResourceUpdated
from mcproxy.call.errors import McpError
from mcproxy.cluster.store.protocol import Store, StoreUnavailable
from mcproxy.downstream.handshake.client_requests import NoClient
from mcproxy.downstream.handshake.streamable_http import TRANSPORT
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import DEFAULT_LOG_LEVEL, METHODS, SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE
from mcproxy.sealing import Sealer, Unsealable
from mcproxy.telemetry.metrics import Metrics

PATIENCE: Final = 2.0
"""Seconds for which a record is asked for again where the store is late: without it, the session ends."""
AGAIN: Final = 0.1
"""Seconds until a store that failed is asked again."""
MAX_UNSAVED: Final = 100_000
"""Records that wait for a store that is away; the oldest are dropped."""

_PURPOSE: Final = "session record"
_RECORDED: Final = tuple(METHODS[name] for name in (SUBSCRIBE, UNSUBSCRIBE, SET_LEVEL))

log = structlog.get_logger()


class SessionRecord(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a session."""

    uris: list[str] = []
    """The resources that it watches, in its own names."""
    level: str = DEFAULT_LOG_LEVEL
    has_ended: bool = False


class SessionRecords:
    """Implements `downstream.io.context.Subscribers`.

    `uris` tells what a listener watches, and `subscribe` answers a subscription without counting it as a call.
    `end_session` ends a session whose subscriptions could not be restored. `lifetime` tells for how many seconds ids
    of sessions are good. `patience`: seconds for which a record may be late.
    """

    def __init__(
        self,
        store: Store,
        sealer: Sealer,
        uris: Callable[[Listener], Sequence[str]],
        subscribe: Callable[[Call], Awaitable[Outcome]],
        end_session: Callable[[Listener], None],
        lifetime: Callable[[], float],
        on_loss: Literal["reopen", "404"],
        tasks: TaskGroup,
        metrics: Metrics,
        tell_ended: Callable[[str], None],
        patience: float = PATIENCE,
    ) -> None:
        self._patience = patience
        self._tell_ended = tell_ended
        self._store = store
        self._sealer = sealer
        self._uris = uris
        self._subscribe = subscribe
        self._end_session = end_session
        self._lifetime = lifetime
        self._on_loss = on_loss
        self._tasks = tasks
        self._metrics = metrics
        self._unsaved: dict[str, Listener | None] = {}
        """Sessions whose latest record could not be written, by key; None for one that has ended."""
        self._fetched: dict[str, SessionRecord | None] = {}
        """The records of sessions that are about to be opened again; None where a session is refused."""
        self._awaited: Counter[str] = Counter()
        """How many requests go by each of these."""
        self._restoring: dict[str, asyncio.Event] = {}

    # downstream.io.context.Subscribers

    def add(self, key: str, issued: int) -> None:
        """Nothing to do: `recorded` has written it."""

    def end(self, key: str) -> None:
        self._note(key, None)
        self._tell_ended(key)
        self._tasks.start_soon(self._save, key)

    def is_lost(self, key: str, issued: int) -> bool:
        return key in self._fetched and self._fetched[key] is None

    def reopened(self, key: str, listener: Listener) -> None:
        record = self._fetched.get(key)
        if record is None:
            return
        listener.set_log_level(record.level)
        if record.uris:
            self._restoring[key] = asyncio.Event()
            self._tasks.start_soon(self._restore, key, listener, record)
        else:
            self._metrics.cluster_adoptions.labels("restored").inc()

    # For the gateway

    def recorded(self, handler: Handler) -> Handler:
        """Wraps the pipeline: what a session's client changes is written before it is answered."""

        async def recording(call: Call) -> Outcome:
            key = call.caller.session
            restoring = self._restoring.get(key) if key is not None else None
            if restoring is not None:
                await restoring.wait()
            outcome = await handler(call)
            if key is not None and call.listener is not None and _changes_record(call, outcome):
                self._note(key, call.listener)
                await self._save(key)
            return outcome

        def passing(call: Call) -> Awaitable[Outcome]:
            if call.row in _RECORDED or self._restoring:
                return recording(call)
            return handler(call)

        return passing

    @asynccontextmanager
    async def fetched(self, key: str) -> AsyncIterator[None]:
        """Entered around a request that may open a session of another process here: its record is known meanwhile."""
        if key not in self._fetched:
            record = await self._read(key) if self._on_loss == "reopen" else None
            # Another request of the same session may have been as quick: all must go by the same record.
            self._fetched.setdefault(key, record)
            if self._fetched[key] is None:
                self._metrics.cluster_adoptions.labels("refused").inc()
        self._awaited[key] += 1
        try:
            yield
        finally:
            self._awaited[key] -= 1
            if not self._awaited[key]:
                del self._awaited[key], self._fetched[key]

    def write_again(self, remembered: Iterable[tuple[str, Listener | None]]) -> None:
        """Writes the records of these sessions soon: the store lost its data. None stands for one that has ended."""
        for key, listener in remembered:
            if listener is None or (key not in self._restoring and self._record(listener) != SessionRecord()):
                self._note(key, listener)

    async def run(self, pause: float) -> None:
        """Writes what could not be written, every `pause` seconds, until cancelled."""
        while True:
            await anyio.sleep(pause)
            for key in list(self._unsaved):
                if not await self._save(key):
                    break

    def _note(self, key: str, listener: Listener | None) -> None:
        self._unsaved[key] = listener
        if len(self._unsaved) > MAX_UNSAVED:
            del self._unsaved[next(iter(self._unsaved))]

    async def _save(self, key: str) -> bool:
        """Writes the record of a session as it is now; returns whether that succeeded."""
        if key not in self._unsaved:
            return True
        listener = self._unsaved[key]
        record = SessionRecord(has_ended=True) if listener is None else self._record(listener)
        sealed = self._sealer.seal(_PURPOSE, msgspec.json.encode([key, record])).encode()
        try:
            await self._store.put(self._names(key)[0], sealed, self._lifetime())
        except StoreUnavailable:
            return False
        if key in self._unsaved and self._unsaved[key] is listener:
            del self._unsaved[key]
        return True

    def _record(self, listener: Listener) -> SessionRecord:
        return SessionRecord(list(self._uris(listener)), listener.caller.log_level or DEFAULT_LOG_LEVEL)

    async def _read(self, key: str) -> SessionRecord | None:
        """What is known of a session; None where it has ended, or nothing can be found out in time."""
        until = anyio.current_time() + self._patience
        while True:
            try:
                return await self._held(key)
            except StoreUnavailable:
                if anyio.current_time() + AGAIN > until:
                    return None
            await anyio.sleep(AGAIN)

    async def _held(self, key: str) -> SessionRecord | None:
        """As `_read`, asking the store once. Raises StoreUnavailable."""
        for name in self._names(key):
            sealed = await self._store.get(name, self._patience / 2)
            if sealed is not None:
                return self._opened(key, sealed)
        return SessionRecord()

    def _opened(self, key: str, sealed: bytes) -> SessionRecord | None:
        try:
            opened = self._sealer.open(_PURPOSE, sealed.decode())
            whose, record = msgspec.json.decode(opened, type=tuple[str, SessionRecord])
        except (Unsealable, msgspec.MsgspecError, UnicodeDecodeError):
            log.warning("the record of a session was not sealed with our secret and is ignored")
            return None
        return record if whose == key and not record.has_ended else None

    def _names(self, key: str) -> tuple[str, ...]:
        return tuple(f"session:{digest}" for digest in self._sealer.digests("session record", key.encode()))

    async def _restore(self, key: str, listener: Listener, record: SessionRecord) -> None:
        """Subscribes for a session, as it did itself; its calls wait until this is over."""
        try:
            for uri in record.uris:
                call = Call(METHODS[SUBSCRIBE], {"uri": raw(uri)}, listener.caller, NoClient(), listener)
                failure = await _failure(self._subscribe(call))
                if failure is not None:
                    log.warning("a session could not be restored: its client has to initialize anew", why=failure)
                    self._metrics.cluster_adoptions.labels("refused").inc()
                    self._end_session(listener)
                    return
                listener.signal(ResourceUpdated(uri))
            self._metrics.cluster_adoptions.labels("restored").inc()
        finally:
            self._restoring.pop(key).set()


def _changes_record(call: Call, outcome: Outcome) -> bool:
    """Only sessions of Streamable HTTP outlive their connections."""
    return call.row in _RECORDED and call.caller.transport == TRANSPORT and isinstance(outcome, Complete)


async def _failure(subscription: Awaitable[Outcome]) -> str | None:
    """Why a subscription failed; None where it did not."""
    try:
        outcome = await subscription
    except McpError as refusal:
        return refusal.message
    return outcome.error.message if isinstance(outcome, Failed) else None
