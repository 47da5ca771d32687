"""Answers `resources/read` from the cache or an upstream, as `policy` decides, in the upstream's own names.

Whether a caller may read is decided before a call comes here; what to answer and keep, in `policy`. This carries it
out: it reads upstream in tasks of its own, and tells the policies what upstreams report.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from typing import Protocol, assert_never

import anyio
import msgspec
from msgspec.structs import replace

from mcproxy.call.calls import Call, Complete, Handler, Outcome
from mcproxy.call.clients import ListChanged, Listener, Notice, ResourceUpdated, TaskChanged
from mcproxy.call.identity import LinkOwner, owner
from mcproxy.call.upstreams import (
    Connected,
    Disconnected,
    Idled,
    LoginAwaited,
    PushChannel,
    Retired,
    UnannouncedLists,
    Upstream,
    UpstreamChanged,
    UpstreamEvent,
    UpstreamStatus,
)
from mcproxy.catalog.annotations import is_read_only
from mcproxy.catalog.views.snapshots import EMPTY
from mcproxy.concurrency.clock import Clock
from mcproxy.gateway.cache.policy import CachePolicy, Hit, unreachable
from mcproxy.gateway.cache.singleflight import ReadWaiter, SharedRead
from mcproxy.gateway.cache.store import ReaderKeys, fit
from mcproxy.gateway.cache.watches import Watch, WatchChanges
from mcproxy.gateway.component import LINK_EVENTS, Component, Reconfiguration
from mcproxy.gateway.listings.keys import LinkKey, ResourceKey
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.gateway.pipeline import contained
from mcproxy.protocol.jsonrpc import parse_text
from mcproxy.protocol.methods import METHODS, Kind, Method, Subject
from mcproxy.settings import Settings, UpstreamSettings
from mcproxy.settings.differences import enabled, same_but_for_links
from mcproxy.telemetry.metrics import Metrics

ReadOnly = Callable[[str, LinkOwner, str], bool]
"""Returns whether an upstream annotates a tool as read-only, over the link of an owner."""


class WatchTable(Protocol):
    """The table in which clients' subscriptions, and the cache's own, are counted (`subscriptions.resources`)."""

    async def watch(self, key: ResourceKey, listener: Listener, spelling: str) -> Outcome:
        """Returns once the upstream reports changes of `key`, or at once where the upstream is away."""

    def unwatch(self, key: ResourceKey, listener: Listener, spelling: str) -> None:
        """Ends a `watch`; does nothing where there is none."""


class Cause(Enum):
    """The reason why entries are dropped; the values are a label of metrics."""

    UPDATED = "updated"
    LIST_CHANGED = "list_changed"
    DISCONNECTED = "disconnected"
    UNHEARD = "unheard"
    RETIRED = "retired"
    TOOL_CALL = "tool_call"
    ELSEWHERE = "elsewhere"
    """Another process saw or made a change, after which entries may be stale."""
    RELOAD = "reload"


class CachedUpstream(msgspec.Struct, frozen=True):
    """`upstream`, with its calls of `methods` answered by `handler`."""

    upstream: Upstream
    name: str
    methods: frozenset[str]
    handler: Handler

    @property
    def status(self) -> UpstreamStatus:
        return self.upstream.status

    def __call__(self, call: Call) -> Awaitable[Outcome]:
        return self.handler(call) if call.row.name in self.methods else self.upstream(call)

    def release(self, owner: str) -> None:
        self.upstream.release(owner)


class ReadCache(Component):
    """The cache of all upstreams. While `run` does not run, every call goes straight to its upstream.

    `around` is its stage.
    """

    goes_by = frozenset({"access", "proxy", "upstreams"})  # access: upstreams come wrapped where it enforces pins
    heeds = LINK_EVENTS | {ResourceUpdated, ListChanged, PushChannel}

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        read_only: ReadOnly,
        now: Clock = time.monotonic,
    ) -> None:
        self._specs = enabled(settings)
        self._limits = settings.proxy.cache
        self._policies = {name: CachePolicy(spec, self._limits.max_entry_bytes) for name, spec in self._specs.items()}
        self._metrics = metrics
        self._read_only = read_only
        self._now = now
        self._subscriptions: WatchTable | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._loop: asyncio.AbstractEventLoop
        """The running event loop, kept because asking for it costs a system call before Python 3.12."""
        self.on_write: Callable[[str], None] = _unheard
        """Called with the name of an upstream whose tool was called and may have written."""

    def watch_through(self, subscriptions: WatchTable) -> None:
        """Makes the cache watch resources by `subscriptions`; call it once, before `run`."""
        self._subscriptions = subscriptions

    async def run(self) -> None:
        """Carries out shared reads until cancelled."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as self._tasks:
            try:
                await anyio.sleep_forever()
            finally:
                self._tasks = None

    def reconfigure(self, change: Reconfiguration) -> None:
        """Puts other settings in force; drops what was read from upstreams that were made anew."""
        before, self._policies = self._policies, {}
        old_specs, self._specs = self._specs, enabled(change.settings)
        limits = change.settings.proxy.cache
        same_limits, self._limits = limits == self._limits, limits
        for name, spec in self._specs.items():
            old = before.get(name)
            if (
                old is not None
                and name in change.kept
                and same_limits
                and same_but_for_links([old_specs[name]], [spec])
            ):
                self._policies[name] = before.pop(name)
                continue
            fresh = self._policies[name] = CachePolicy(spec, limits.max_entry_bytes)
            if old is not None and name in change.kept:
                fresh.succeed(old)
        for name, policy in before.items():
            self._count(name, Cause.RELOAD)
            self._apply(policy, policy.end())

    def invalidate(self, key: ResourceKey) -> None:
        """Drops what was read of a resource that may have changed without a report from its upstream."""
        self.on_event(UpstreamChanged(key.link.upstream, key.link.owner, ResourceUpdated(key.uri)))

    def forget(self, upstream: str | None) -> None:
        """Drops what was read from an upstream, or from all (None), since changes may have gone unreported."""
        for name, policy in self._policies.items():
            if upstream in {None, name}:
                self._count(name, Cause.ELSEWHERE)
                policy.changed()

    def around(self, upstream: Upstream) -> Upstream:
        """`upstream`, with its reads cached."""
        policy = self._policies[upstream.name]
        self._metrics.cache_bytes.labels(upstream.name).set_function(lambda: policy.store.bytes)
        self._metrics.cache_entries.labels(upstream.name).set_function(lambda: len(policy.store))
        methods = _concerned(self._specs[upstream.name])
        return CachedUpstream(upstream, upstream.name, methods, partial(self._answer, upstream, policy))

    def on_event(self, event: UpstreamEvent) -> None:
        """Invalidates the entries that `event` makes stale.

        Called before any client hears of it, as clients read again at once.
        """
        policy = self._policies.get(event.upstream)
        if policy is None:
            return
        match event:
            case Connected(owner=owner, identity=identity):
                self._apply(policy, policy.connected(owner, identity, self._now()))
            case Disconnected(owner=owner) | Idled(owner=owner):
                self._count(event.upstream, Cause.DISCONNECTED)
                self._apply(policy, policy.lost(owner, self._now()))
            case Retired(owner=owner):
                self._count(event.upstream, Cause.RETIRED)
                self._apply(policy, policy.retired(owner, self._now()))
            case UpstreamChanged():
                self._change(policy, event)
            case LoginAwaited():
                pass  # After the login a new link is made, whose `Connected` counts.
            case _:
                assert_never(event)

    def _change(self, policy: CachePolicy, event: UpstreamChanged) -> None:
        name, owner, change = event.upstream, event.owner, event.change
        match change:
            case ResourceUpdated(uri=uri):
                self._count(name, Cause.UPDATED)
                policy.updated(uri)
            case ListChanged(kind=Kind.RESOURCES):
                self._count(name, Cause.LIST_CHANGED)
                policy.changed()
            case PushChannel.LOST:
                self._count(name, Cause.UNHEARD)
                self._apply(policy, policy.deafened(owner))
            case PushChannel.RESTORED:
                policy.heard(owner)
            case ListChanged() | TaskChanged() | Notice() | UnannouncedLists():
                return
            case _:
                assert_never(change)

    def _answer(self, upstream: Upstream, policy: CachePolicy, call: Call) -> Awaitable[Outcome]:
        row = call.row
        if self._tasks is None:
            return upstream(call)
        if row.cacheable:
            return self._read(upstream, policy, call, row)
        if self._may_write(upstream.name, call, row):
            return self._write(upstream, call)
        return upstream(call)

    async def _read(self, upstream: Upstream, policy: CachePolicy, call: Call, row: Method) -> Outcome:
        keys = policy.keys(call, row)
        if keys is None:
            return await upstream(call)
        hit = policy.find(keys, self._now())
        if hit is not None:
            return self._counted(upstream.name, hit)
        outcome = await self._fetch(upstream, policy, keys, call)
        if not unreachable(outcome):
            return outcome
        in_need = policy.find_in_need(keys, self._now())
        return outcome if in_need is None else self._counted(upstream.name, in_need)

    async def _fetch(self, upstream: Upstream, policy: CachePolicy, keys: ReaderKeys, call: Call) -> Outcome:
        """Joins or begins a shared read; reads for this caller alone where the outcome may not be shared."""
        for key in policy.shared_read_keys(keys):
            if self._tasks is None:
                break
            waiter = ReadWaiter(call, keys, self._loop.create_future())
            shared_read = policy.join(key, waiter)
            is_leader = waiter is shared_read.leader
            self._metrics.cache_reads.labels(upstream.name, "miss" if is_leader else "coalesced").inc()
            if is_leader:
                self._begin(self._tasks, upstream, policy, shared_read)
            outcome = await shared_read.wait(waiter)
            if outcome is not None:
                return outcome
        return await upstream(call)

    def _begin(
        self, tasks: asyncio.TaskGroup, upstream: Upstream, policy: CachePolicy, shared_read: SharedRead
    ) -> None:
        shared_read.read = tasks.create_task(self._run(upstream, policy, shared_read))
        # A callback, not the task's own `finally`: a task that is cancelled before its first step never runs.
        shared_read.read.add_done_callback(lambda _: policy.abandon(shared_read))

    async def _run(self, upstream: Upstream, policy: CachePolicy, shared_read: SharedRead) -> None:
        outcome = await contained(upstream)(replace(shared_read.leader.call, client=shared_read))
        self._land(upstream.name, policy, shared_read, outcome)
        # Released here: the waiters need not wait a turn of the loop for the task to end.
        shared_read.release()

    def _land(self, name: str, policy: CachePolicy, shared_read: SharedRead, outcome: Outcome) -> None:
        kept = policy.finish(shared_read, outcome, self._now())
        if kept.placed:
            self._metrics.cache_evictions.labels(name).inc(kept.evicted)
            self._fit()
        self._apply(policy, kept.watches)

    def _fit(self) -> None:
        """Evicts until all stores together are within their limit."""
        by_store = {each.store: name for name, each in self._policies.items()}
        for store in fit(by_store, self._limits.max_bytes):
            self._metrics.cache_evictions.labels(by_store[store]).inc()

    async def _write(self, upstream: Upstream, call: Call) -> Outcome:
        try:
            return await upstream(call)
        finally:
            # However it ended, it may have written; what was read meanwhile may be of before.
            policy = self._policies.get(upstream.name)
            if policy is not None:
                self._count(upstream.name, Cause.TOOL_CALL)
                policy.changed()
                self.on_write(upstream.name)

    def _may_write(self, name: str, call: Call, row: Method) -> bool:
        assert row.subject_key is not None
        tool = parse_text(call.params.get(row.subject_key, b""))
        return tool is None or not self._read_only(name, owner(self._specs[name], call.caller), tool)

    def _apply(self, policy: CachePolicy, changes: WatchChanges) -> None:
        if self._tasks is None or self._subscriptions is None:
            return
        for watch in changes.ended:
            self._subscriptions.unwatch(_key_of(watch), watch, watch.uri)
        if changes.began is not None:
            self._tasks.create_task(self._watch(self._subscriptions, policy, changes.began))

    async def _watch(self, subscriptions: WatchTable, policy: CachePolicy, watch: Watch) -> None:
        """Has the upstream report changes. Where it does not, the entry lives by its TTL alone."""
        outcome = await subscriptions.watch(_key_of(watch), watch, watch.uri)
        if isinstance(outcome, Complete) and not policy.confirm(watch):
            subscriptions.unwatch(_key_of(watch), watch, watch.uri)

    def _count(self, name: str, cause: Cause) -> None:
        self._metrics.cache_invalidations.labels(name, cause.value).inc()

    def _counted(self, name: str, hit: Hit) -> Outcome:
        self._metrics.cache_reads.labels(name, "stale" if hit.stale else "hit").inc()
        return hit.result


def _unheard(upstream: str) -> None:
    return


def _concerned(spec: UpstreamSettings) -> frozenset[str]:
    """The methods that the cache answers or has to observe."""
    writes = spec.cache.invalidate_on_tool_calls
    rows = METHODS.values()
    return frozenset(row.name for row in rows if row.cacheable or (writes and row.subject is Subject.TOOL))


def _key_of(watch: Watch) -> ResourceKey:
    return ResourceKey(LinkKey(watch.upstream, None), watch.uri)


def annotated_in(catalogue: Catalogue) -> ReadOnly:
    """A `ReadOnly` that goes by the tools as the upstreams list them (schema, `ToolAnnotations`)."""

    def read_only(upstream: str, owner: LinkOwner, name: str) -> bool:
        listings = [catalogue.known.listing(LinkKey(upstream, each), Kind.TOOLS) for each in (owner, None)]
        listing = next(filter(None, listings), EMPTY)
        entry = next((entry.data for entry in listing.entries if entry.key == name), None)
        return entry is not None and is_read_only(entry)

    return read_only
