"""The gateway put together: what answers calls, what follows upstreams, and who hears of changes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Final, assert_never

import anyio

from mcproxy.access.audit import AuditLog
from mcproxy.access.limits import Limits
from mcproxy.access.pins import Pins, approved
from mcproxy.access.policy import Policy
from mcproxy.call.calls import Call, Complete, Failed, Handler, Outcome
from mcproxy.call.clients import Audience, ListChanged, Listener, Notice, ResourceUpdated, TaskChanged
from mcproxy.call.errors import McpError, Party
from mcproxy.call.identity import AGGREGATE, ANONYMOUS, Caller, ForwardedCredentials, Principal
from mcproxy.call.upstreams import Disconnected, PushChannel, Retired, Upstream, UpstreamChanged, UpstreamEvent
from mcproxy.catalog.merging import View
from mcproxy.catalog.naming import Layout, RefusedEntry, layouts
from mcproxy.catalog.uri_matching import matcher, readings
from mcproxy.concurrency.clock import Clock, Sleep
from mcproxy.configuration.lock import PINNED
from mcproxy.gateway.cache.read_cache import ReadCache, annotated_in
from mcproxy.gateway.credential_leases import CredentialLeases
from mcproxy.gateway.explaining import Explanation, explain
from mcproxy.gateway.input.bridge import InputBridge
from mcproxy.gateway.listings.fetcher import ListFetcher
from mcproxy.gateway.listings.keys import LinkKey, ResourceKey
from mcproxy.gateway.listings.listeners import Listeners, label_of
from mcproxy.gateway.listings.lists import Lists
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.gateway.log_levels import LogLevels
from mcproxy.gateway.pipeline import Traces, audited, build, limited, traced
from mcproxy.gateway.resolving.call_subjects import SubjectResolver
from mcproxy.gateway.resolving.targets import Resolver
from mcproxy.gateway.resolving.task_ids import TaskIds
from mcproxy.gateway.routing import Router
from mcproxy.gateway.subscriptions.resources import Subscriptions
from mcproxy.gateway.tasks.lists import TaskLists
from mcproxy.gateway.tasks.registry import TaskRegistry
from mcproxy.gateway.tasks.relay import TaskRelay
from mcproxy.gateway.tasks.subscriptions import TaskSubscriptions
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.headers import MirroredParameter
from mcproxy.protocol.jsonrpc import Params
from mcproxy.protocol.methods import DISCOVER, LISTEN, METHODS, ROOTS_CHANGED, SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE, Kind
from mcproxy.protocol.tasks import TASK_LIST
from mcproxy.sealing import Sealer
from mcproxy.settings import Settings
from mcproxy.settings import UpstreamSettings as Spec
from mcproxy.settings.access.pins import Approved
from mcproxy.telemetry.metrics import UNKNOWN, Metrics

SWEEPS: Final = 4
"""How often, in the time that credentials may idle, idle ones are looked for."""


class Gateway:
    """`upstreams` are those that are enabled, by name. An `Audience` itself."""

    def __init__(
        self,
        settings: Settings,
        upstreams: Mapping[str, Upstream],
        metrics: Metrics,
        sealer: Sealer,
        gateway_id: str | None = None,
        sleep: Sleep = anyio.sleep,
        now: Clock = time.monotonic,
        audit: AuditLog | None = None,
        traces: Traces | None = None,
    ) -> None:
        proxy = settings.proxy
        self._metrics = metrics
        self._sealer = sealer
        self._id = gateway_id
        self._now = now
        self._traces = traces
        self._catalogue = Catalogue(
            _layouts(settings), _policy(settings), settings.access.policy.max_views, Pins(settings.access.pins)
        )
        metrics.calls.subjects.most = proxy.limits.max_metric_subjects
        self._cache = ReadCache(_enabled(settings), proxy.cache, metrics, annotated_in(self._catalogue), now)
        self._behind = upstreams
        self._upstreams = {name: self._behind_cache(upstream) for name, upstream in upstreams.items()}
        self._listeners = Listeners(self._catalogue, metrics)
        self._fetcher = ListFetcher(self._catalogue, self._upstreams, self._listeners, settings, metrics, sleep, now)
        self._task_ids = TaskIds(self._catalogue, sealer)
        self._registry = TaskRegistry(proxy.limits.max_tasks_per_session)
        self._tasks = TaskRelay(self._catalogue, self._task_ids, self._registry, self._listeners)
        self._task_subscriptions = TaskSubscriptions(
            self._catalogue, self._task_ids, self._registry, self._listeners, self._upstreams
        )
        self._resolver = Resolver(self._catalogue, self._fetcher.reach, self._task_ids)
        self.subject_of = SubjectResolver(self._catalogue, self._task_ids)
        self._seen = SubjectResolver(self._catalogue, self._task_ids, beyond=True)
        self._limits = Limits(settings.access.limits)
        self.audit = audit or AuditLog(settings.access.audit, metrics)
        self._subscriptions = Subscriptions(
            self._catalogue,
            self._resolver,
            self._upstreams,
            self._listeners,
            proxy.limits.max_subscriptions_per_session,
            metrics,
            self._invalidate,
            sleep,
            now,
        )
        self._log_levels = LogLevels(self._catalogue, self._upstreams, self._listeners, proxy.list_wait)
        self._bridge = InputBridge(
            proxy.bridge,
            sealer,
            self._resolver.owner,
            self._resolver.check_allowed,
            self._resolver.asks_by_results,
            metrics,
            sleep=sleep,
        )
        self._credential_leases = CredentialLeases(
            proxy.limits.session_idle, proxy.limits.max_credentials_per_principal
        )
        self._sleep = sleep
        self._pipeline = self._built(settings)
        self._count_unapproved()

    def handler(self, call: Call) -> Awaitable[Outcome]:
        """The whole way of a call, as it is laid when the call begins; what its own credentials reach comes first."""
        own = call.caller.credentials
        return self._pipeline(call) if own is None else self._with_credentials(call, own)

    async def _with_credentials(self, call: Call, own: ForwardedCredentials) -> Outcome:
        try:
            with self._credential_leases.used(own.key, call.caller.principal.name, self._now()) as is_new:
                if is_new:
                    await self._fetcher.introduced(call.caller)
                return await self._pipeline(call)
        except McpError as refusal:
            return Failed(refusal.error(), Party.GATEWAY, refusal.reason)

    def reconfigure(self, settings: Settings, upstreams: Mapping[str, Upstream]) -> None:
        """Goes by other settings and upstreams from now on (R49): in one step, so that no call sees half of it.

        Calls that run end where they are. An upstream that is the same object has kept its links.
        """
        proxy = settings.proxy
        stay = {name for name, upstream in upstreams.items() if self._behind.get(name) is upstream}
        for name in self._behind.keys() - stay:
            self._part_with(name, returns=name in upstreams)
        with self._fetcher.announcing(UNKNOWN):
            self._catalogue.reconfigure(
                _layouts(settings), _policy(settings), settings.access.policy.max_views, Pins(settings.access.pins)
            )
        self._cache.reconfigure(_enabled(settings), proxy.cache, stay)
        self._behind = upstreams
        self._upstreams.clear()
        self._upstreams.update({name: self._behind_cache(upstream) for name, upstream in upstreams.items()})
        self._fetcher.reconfigure(settings)
        self._fetcher.introduce(upstreams.keys() - stay)
        self._subscriptions.reconfigure(proxy.limits.max_subscriptions_per_session)
        self._log_levels.reconfigure(proxy.list_wait)
        self._metrics.calls.subjects.most = proxy.limits.max_metric_subjects
        self._registry.most = proxy.limits.max_tasks_per_session
        self._bridge.reconfigure(proxy.bridge)
        self._limits.reconfigure(settings.access.limits)
        self._credential_leases.reconfigure(proxy.limits.session_idle, proxy.limits.max_credentials_per_principal)
        self._pipeline = self._built(settings)
        self._count_unapproved()

    def _part_with(self, name: str, *, returns: bool) -> None:
        """Takes leave of an upstream's links. What it offered stays listed where it `returns` (R10)."""
        for link in self._catalogue.links_of(name):
            stays = returns and link.owner is None
            lost = Disconnected(name, None, "its configuration changed") if stays else Retired(name, link.owner)
            self.on_event(lost)

    def _behind_cache(self, upstream: Upstream) -> Upstream:
        return self._cache.around(upstream if self._traces is None else self._traces.sent(upstream))

    def _built(self, settings: Settings) -> Handler:
        proxy = settings.proxy
        listing = Lists(self._catalogue, self._fetcher, proxy, self._sealer, self._id, self._now)
        tasks = TaskLists(self._catalogue, self._task_ids, self._registry, self._upstreams, proxy)
        answers = {**self._answers(listing), TASK_LIST: tasks.answer}
        router = Router(self._catalogue, self._resolver, self._upstreams, answers, self._tasks, self._metrics)
        return build(
            router,
            metrics=self._metrics,
            label=self._resolver.label,
            traced=traced(self._traces, self._resolver.label),
            audited=audited(self.audit, self._seen.judged, self._sealer.digest),
            limited=limited(self._limits, self.subject_of, self._metrics),
            bridged=self._bridge.bridged,
        )

    @property
    def audience(self) -> Audience:
        return self

    def listeners(self) -> list[Listener]:
        """Who hears of changes now."""
        return list(self._listeners)

    def catalogue(self, endpoint: str = AGGREGATE) -> View:
        """What an endpoint shows to who may use everything, without a session; and what is renamed or refused."""
        return self._catalogue.whole_view(Caller(ANONYMOUS, LATEST, endpoint=endpoint))

    def exists(self, endpoint: str, principal: Principal) -> bool:
        """Whether there is an endpoint, as far as `principal` can see."""
        return self._catalogue.exists(endpoint, principal)

    def explain(self, caller: Caller, kind: Kind, subject: str, arguments: Params) -> Explanation:
        """Why `caller` may use what it knows as `subject`, or may not."""
        return explain(self._catalogue, self._upstreams, caller, kind, subject, arguments)

    def mirrored(self, caller: Caller, tool: str) -> tuple[MirroredParameter, ...]:
        """The parameters of a tool that the caller sees which come in headers too."""
        route = self._catalogue.routes(caller).find(Kind.TOOLS, tool)
        return () if route is None else route.shown.mirrored

    def unapproved(self) -> list[RefusedEntry]:
        """What upstreams offer over links that all share, and is not as `access.pins` has it approved."""
        return [entry for name in self._behind for kind in Kind for entry in self._unapproved(name, kind)]

    def _unapproved(self, upstream: str, kind: Kind) -> tuple[RefusedEntry, ...]:
        return self._catalogue.unapproved(LinkKey(upstream, None), kind)

    def offered(self) -> dict[str, Approved | None]:
        """What upstreams offer now, each as it would be approved; None of one of which that is not known."""
        return {name: self._offered(LinkKey(name, None)) for name in self._behind}

    def _offered(self, link: LinkKey) -> Approved | None:
        identity = self._catalogue.identity(link)
        listings = {kind: self._catalogue.listing(link, kind) for kind in PINNED}
        if identity is None or None in listings.values():
            return None
        entries = {kind: {e.key: e.data for e in listing.entries} for kind, listing in listings.items() if listing}
        return approved(identity.instructions, entries)

    def _count_unapproved(self) -> None:
        """Counted when somebody looks."""
        for name in self._behind:
            for kind in PINNED:
                count = partial(self._unapproved_count, name, kind)
                self._metrics.pins_refused.labels(name, kind.value).set_function(count)
            instructions = self._metrics.pins_refused.labels(name, "instructions")
            instructions.set_function(partial(self._unapproved_instructions, name))

    def _unapproved_count(self, upstream: str, kind: Kind) -> int:
        return len(self._unapproved(upstream, kind))

    def _unapproved_instructions(self, upstream: str) -> int:
        return not self._catalogue.has_approved_instructions(LinkKey(upstream, None))

    async def _let_go(self) -> None:
        """Ends the links of credentials that nobody uses any more, for ever."""
        while True:
            await self._credential_leases.begun()
            await self._sleep(self._credential_leases.idle / SWEEPS)
            heard = [key for listener in self._listeners for key in listener.caller.owners]
            for key in self._credential_leases.lapsed(heard, self._now()):
                for link in self._catalogue.credential_links(key):
                    self._upstreams[link.upstream].release(key)

    async def settled(self) -> None:
        """Returns when every upstream's first attempt is over, and the lists of those that connected are known."""
        await self._fetcher.settled()

    async def run(self) -> None:
        """Fetches, subscribes, sets levels and carries parked calls until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._fetcher.run)
            tasks.start_soon(self._subscriptions.run)
            tasks.start_soon(self._log_levels.run)
            tasks.start_soon(self._task_subscriptions.run)
            tasks.start_soon(self._cache.run, self._subscriptions)
            tasks.start_soon(self._bridge.run)
            tasks.start_soon(self._let_go)

    def on_event(self, event: UpstreamEvent) -> None:
        """Takes in what happened upstream, and tells whom it concerns. Never blocks."""
        self._cache.on_event(event)
        self._fetcher.on_event(event)
        self._subscriptions.on_event(event)
        self._log_levels.on_event(event)
        self._task_subscriptions.on_event(event)
        if isinstance(event, UpstreamChanged):
            self._heard(event)

    def _heard(self, event: UpstreamChanged) -> None:
        if isinstance(event.change, PushChannel):
            return
        if event.upstream in self._upstreams:
            self._metrics.upstream_notifications.labels(event.upstream, label_of(event.change)).inc()
        link = LinkKey(event.upstream, event.owner)
        match event.change:
            case Notice() as notice:
                self._listeners.announce(link, notice)
            case TaskChanged() as changed:
                self._tasks.tell(link, changed)
            case ListChanged() | ResourceUpdated():
                pass
            case _:
                assert_never(event.change)

    def _invalidate(self, topic: ResourceKey) -> None:
        """What was read of a resource may be out of date, and no upstream said so."""
        self._cache.on_event(UpstreamChanged(topic.link.upstream, topic.link.owner, ResourceUpdated(topic.uri)))

    def join(self, listener: Listener) -> None:
        self._listeners.add(listener)
        own = listener.caller.credentials
        if own is not None:
            self._credential_leases.keep(own.key, listener.caller.principal.name, self._now())
        self._fetcher.welcome(listener)
        self._subscriptions.follow(listener)

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        self._subscriptions.drop(listener)
        self._log_levels.drop(listener)
        self._task_subscriptions.drop(listener)
        session = listener.caller.session
        if session is not None and self._listeners.of(session) is None:
            for link in self._catalogue.own_links(session):
                self._upstreams[link.upstream].release(session)

    async def _roots_changed(self, call: Call) -> Outcome:
        """Concerns the session's own links alone: a shared one has no roots of a client's (R60)."""

        async def tell(link: LinkKey) -> None:
            await self._upstreams[link.upstream](call)

        async with anyio.create_task_group() as tasks:
            for link in self._catalogue.links(call.caller):
                if link.owner is not None and self._catalogue.is_up(link):
                    tasks.start_soon(tell, link)
        return Complete({})

    def _answers(self, listing: Lists) -> dict[str, Handler]:
        lists: dict[str, Handler] = {row.name: listing.list for row in METHODS.values() if row.lists is not None}
        return {
            **lists,
            DISCOVER: listing.discover,
            SUBSCRIBE: self._subscriptions.subscribe,
            UNSUBSCRIBE: self._subscriptions.unsubscribe,
            SET_LEVEL: self._log_levels.set_level,
            LISTEN: self._task_subscriptions.listen,
            ROOTS_CHANGED: self._roots_changed,
        }


def _layouts(settings: Settings) -> dict[str, Layout]:
    return layouts(settings.upstreams, settings.proxy.naming.max_name_length, settings.endpoints)


def _policy(settings: Settings) -> Policy:
    others = [role for endpoint in settings.endpoints.values() for role in endpoint.roles]
    return Policy(settings.access.policy, readings=readings, matcher=matcher, others=others)


def _enabled(settings: Settings) -> list[Spec]:
    return [spec for spec in settings.upstreams if spec.enabled]
