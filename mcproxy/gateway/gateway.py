"""Assembles the gateway: the pipeline that answers calls, and the components that live between calls.

Everything here is wiring. `pipeline` and `routing` define what happens to a call; `component` defines what a component
is.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.access.audit.audit_log import AuditLog
from mcproxy.call.calls import Call, Complete, Handler, Outcome
from mcproxy.call.clients import Audience, Listener
from mcproxy.call.identity import AGGREGATE, ANONYMOUS, Caller, Principal
from mcproxy.call.upstreams import Disconnected, Retired, Upstream, UpstreamChanged, UpstreamEvent
from mcproxy.catalog.instructions import INSTRUCTIONS_URI
from mcproxy.catalog.views.view import View
from mcproxy.concurrency.clock import Clock, Sleep
from mcproxy.concurrency.retirement import Retirable, Retirement
from mcproxy.gateway.cache.read_cache import ReadCache, annotated_in
from mcproxy.gateway.component import Component, Reconfiguration
from mcproxy.gateway.exchange import UpstreamExchange
from mcproxy.gateway.explaining import Explanation, explain
from mcproxy.gateway.feature import ROUTING, Core, Feature, Listed, PipelineRow, Place, Placed, PlacedUpstream
from mcproxy.gateway.input.bridge import InputBridge
from mcproxy.gateway.input.logins import LoginPages
from mcproxy.gateway.listings.fetcher import ListFetcher
from mcproxy.gateway.listings.listeners import Listeners
from mcproxy.gateway.listings.lists import Lists
from mcproxy.gateway.listings.state import Catalogue, rules_of
from mcproxy.gateway.log_levels import LogLevels
from mcproxy.gateway.own_links import OwnLinks
from mcproxy.gateway.pipeline import (
    accounted,
    attributed,
    contained,
    judges_params,
    stack,
    unambiguous,
)
from mcproxy.gateway.resolving.call_subjects import SubjectResolver
from mcproxy.gateway.resolving.targets import Resolver
from mcproxy.gateway.resolving.task_ids import Task, TaskIds
from mcproxy.gateway.routing import Router
from mcproxy.gateway.subscriptions.resources import ResourceSubscriptions
from mcproxy.gateway.tasks.lists import TaskLists
from mcproxy.gateway.tasks.places import TaskPlaces
from mcproxy.gateway.tasks.registry import TaskRegistry
from mcproxy.gateway.tasks.relay import TaskRelay
from mcproxy.gateway.tasks.states import TaskStates
from mcproxy.gateway.tasks.subscriptions import TaskSubscriptions
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.headers import MirroredParameter
from mcproxy.protocol.jsonrpc import Params, first_level
from mcproxy.protocol.methods import (
    DISCOVER,
    LISTEN,
    METHODS,
    ROOTS_CHANGED,
    SET_LEVEL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Kind,
    Subject,
)
from mcproxy.protocol.tasks import TASK_LIST
from mcproxy.sealing import Sealer
from mcproxy.settings import Settings
from mcproxy.settings.differences import changed_sections
from mcproxy.settings.upstreams.upstream import UpstreamTimeouts
from mcproxy.telemetry.logs import masking
from mcproxy.telemetry.metrics import Metrics

_TOOLS: Final = Kind.TOOLS


F = TypeVar("F", bound=Feature)


class Gateway:
    """Answers calls, and is the `Audience` that clients join. `upstreams` holds the enabled upstreams by name."""

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
        login_pages: LoginPages | None = None,
        features: Callable[[Settings], Sequence[Listed]] = lambda settings: (),
        stages: Sequence[Placed] = (),
        state: Path | None = None,
    ) -> None:
        self._metrics = metrics
        self._sealer = sealer
        self._id = gateway_id
        self._now = now
        self._features_of = features
        self._further = list(stages)
        """Stages added by the process that runs the gateway."""
        self._supervised = dict(upstreams)
        self._timeouts = timeouts = _timeouts_of(settings)
        """Timeouts by upstream; the same mapping object after each reload."""
        self.audit = audit or AuditLog(settings.access.audit, metrics)
        self._catalogue = catalogue = Catalogue(rules_of(settings))
        self._task_ids = task_ids = TaskIds(catalogue, sealer)
        self._task_registry = TaskRegistry(settings.proxy.limits.max_tasks_per_session)
        self._listeners = listeners = Listeners(catalogue, metrics, sleep)
        self._upstreams: dict[str, Upstream] = dict(upstreams)
        """The upstreams, wrapped in the server-side stages; the same mapping object after each reload."""
        self._cache = ReadCache(settings, metrics, annotated_in(catalogue), now)
        self._fetcher = ListFetcher(catalogue, self._upstreams, timeouts, listeners, settings, metrics, sleep, now)
        self._resolver = Resolver(catalogue, self._fetcher.reach, task_ids)
        self.subject_of = SubjectResolver(catalogue, task_ids)
        self._unrestricted_subject_of = SubjectResolver(catalogue, task_ids, beyond=True)
        self.subscriptions = ResourceSubscriptions(
            catalogue,
            self._resolver,
            self._upstreams,
            timeouts,
            listeners,
            limits=settings.proxy.limits,
            metrics=metrics,
            invalidate=self._cache.invalidate,
            sleep=sleep,
            now=now,
        )
        self._cache.watch_through(self.subscriptions)
        self._log_levels = LogLevels(catalogue, self._upstreams, listeners, settings.proxy.list_wait)
        self.prepare: Final = self._log_levels.prepare
        """Sends what must precede all calls over a new link."""
        self._own: dict[Subject, Handler] = {}
        """Handlers for entries that the gateway itself adds to lists; the same mapping object after each reload."""
        self._exchange = UpstreamExchange(self._upstreams, metrics, self._log_levels.ask_for, self._own)
        self._task_states = TaskStates(catalogue, task_ids, self._withholds, self._is_judged)
        self._task_places = TaskPlaces(catalogue, self._upstreams, timeouts, sleep, now)
        self._task_relay = TaskRelay(
            catalogue,
            task_ids,
            self._task_states,
            self._task_registry,
            listeners,
            self._task_places,
            self._exchange,
        )
        self._task_subscriptions = TaskSubscriptions(
            catalogue, task_ids, self._task_registry, listeners, self._upstreams, timeouts
        )
        self._own_links = OwnLinks(catalogue, self._upstreams, listeners, self._fetcher, settings, sleep, now)
        self._bridge = InputBridge(
            settings.proxy.bridge,
            sealer,
            self._resolver,
            metrics,
            sleep=sleep,
            awaits_login=catalogue.known.awaits_login,
            pages=login_pages,
        )
        self._retirement = Retirement()
        self._runs: dict[str, anyio.CancelScope] = {}
        """The scope in which each feature runs, by the feature's name."""
        self._tasks: TaskGroup | None = None
        """Only set while `run` is running."""
        self._core = Core(
            settings,
            catalogue,
            self._fetcher,
            listeners,
            self._resolver,
            self.subject_of,
            task_ids,
            sealer,
            metrics,
            self.audit,
            self._bridge.resumes,
            sleep,
            now,
            state,
        )
        self._features: dict[str, Feature] = {}
        self._provision(settings)
        self._components: Final[tuple[Component, ...]] = (
            listeners,  # first: all others look up in it who listens, and who has just left
            self._cache,  # forgets what changed before a client can hear of the change and read again
            self._fetcher,  # updates the catalogue, which all that follow consult for links, routes and permissions
            self.subscriptions,  # from here on, the order makes no difference
            self.subscriptions.updates,
            self._log_levels,
            self._task_places,
            self._task_relay,
            self._task_subscriptions,
            self._bridge,
            self._own_links,  # last: when a session's links end, nothing else still sends over them
        )
        self._hearers: Final = {
            kind: tuple(component.on_event for component in self._components if kind in component.heeds)
            for kind in frozenset().union(*(component.heeds for component in self._components))
        }
        """The components to call for an event or a change, by its type, in order."""
        self._settings = settings
        self._wrap_upstreams()
        self._handler = self._built(settings)

    def handler(self, call: Call) -> Awaitable[Outcome]:
        """Takes a call through the whole pipeline, under the settings in force when the call begins."""
        return self._handler(call)

    def _viewed(self, handler: Handler) -> Handler:
        """Builds the caller's view before the call looks up names in it, in bounded steps: a large one takes long."""
        catalogue = self._catalogue

        @contained
        async def viewing(call: Call) -> Outcome:
            await catalogue.turns.take(catalogue.viewing(call.caller))
            return await handler(call)

        def stage(call: Call) -> Awaitable[Outcome]:
            if catalogue.latest_caller is call.caller or catalogue.has_routes(call.caller):
                return handler(call)
            return viewing(call)

        return stage

    def _leased(self, handler: Handler) -> Handler:
        """Opens the links that belong to the caller before its first call, and holds them while a call lasts."""

        @contained
        async def leasing(call: Call) -> Outcome:
            async with self._own_links.used(call):
                return await handler(call)

        def stage(call: Call) -> Awaitable[Outcome]:
            if call.caller.credentials is not None or self._own_links.has_principals:
                return leasing(call)
            return handler(call)

        return stage

    def reconfigure(self, settings: Settings, upstreams: Mapping[str, Upstream]) -> None:
        """Puts new settings and upstreams into force (R49), in one step, so that no call sees half of the change.

        Running calls finish in the old pipeline. An upstream that is the same object as before keeps its links.
        """
        kept = frozenset(name for name, upstream in upstreams.items() if self._supervised.get(name) is upstream)
        for name in self._supervised.keys() - kept:
            self._lose_links_of(name, returns=name in upstreams)
        changed = changed_sections(self._settings, settings)
        if upstreams != self._supervised:
            changed |= {"upstreams"}
        self._settings, self._supervised = settings, dict(upstreams)
        self._timeouts.clear()
        self._timeouts.update(_timeouts_of(settings))
        self._upstreams.clear()
        self._upstreams.update(self._supervised)
        change = Reconfiguration(settings, self._upstreams, kept)
        for component in self._components:
            if changed & component.goes_by:
                component.reconfigure(change)
        # Features come after the core, whose catalogue they consult, and before their stages wrap the upstreams.
        self._provision(settings, kept)
        self._wrap_upstreams()
        self._handler = self._built(settings)

    def on_event(self, event: UpstreamEvent) -> None:
        """Passes an upstream event to features and components. Never blocks."""
        for feature in self._features.values():
            screened = feature.screen(event)
            if screened is None:
                return
            event = screened
        kind = type(event.change) if isinstance(event, UpstreamChanged) else type(event)
        for tell in self._hearers.get(kind, ()):
            tell(event)
        for feature in self._features.values():
            if kind in feature.hears:
                feature.on_event(event)

    def take_note(self, change: UpstreamChanged) -> None:
        """Reacts to a change reported to another process: fetches again what is cached or listed.

        Does not notify clients: they learn of changes to a subscription from what the upstream reports over this
        process's own links.
        """
        for component in (self._cache, self._fetcher):
            if type(change.change) in component.heeds:
                component.on_event(change)

    def forget_reads(self, upstream: str | None = None) -> None:
        """Drops everything cached from one upstream, or from all of them (None)."""
        self._cache.forget(upstream)

    def tell_writes(self, tell: Callable[[str], None]) -> None:
        """Calls `tell` with the name of each upstream whose resources a call may have changed."""
        self._cache.on_write = tell

    @property
    def _hearing(self) -> Sequence[Component | Feature]:
        """Everything that is notified when listeners join or leave, in order."""
        *others, own_links = self._components
        return [*others, *self._features.values(), own_links]

    @property
    def audience(self) -> Audience:
        """The object through which transports register their clients as listeners, and remove them."""
        return self

    def join(self, listener: Listener) -> None:
        for component in self._hearing:
            component.join(listener)

    def leave(self, listener: Listener) -> None:
        for component in self._hearing:
            component.leave(listener)

    async def run(self) -> None:
        """Runs all components and features until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._retirement.run, self._resources)
            for component in self._components:
                tasks.start_soon(component.run)
            self._tasks = tasks
            try:
                for feature in self._features.values():
                    self._start(feature)
                await anyio.sleep_forever()
            finally:
                self._tasks = None

    async def settled(self) -> None:
        """Returns when every upstream has finished its first attempt and the lists of connected upstreams are known."""
        await self._fetcher.settled()

    def listeners(self) -> list[Listener]:
        """The current listeners."""
        return list(self._listeners)

    def catalogue(self, endpoint: str = AGGREGATE) -> View:
        """The view of an endpoint over shared links, without a policy, with entries that were renamed or refused."""
        return self._catalogue.whole_view(Caller(ANONYMOUS, LATEST, endpoint=endpoint))

    def exists(self, endpoint: str, principal: Principal) -> bool:
        """Whether the endpoint exists and `principal` may know of it."""
        return self._catalogue.exists(endpoint, principal)

    def explain(self, caller: Caller, kind: Kind, subject: str, arguments: Params) -> Explanation:
        """Explains whether `caller` may use what it calls `subject`."""
        mask = masking(self._settings.secrets)
        return explain(self._catalogue, self._upstreams, caller, kind, subject, arguments, mask)

    def mirrored(self, caller: Caller, tool: str) -> tuple[MirroredParameter, ...]:
        """The parameters of a tool, in the caller's view, that must be mirrored in HTTP headers."""
        route = self._catalogue.routes(caller).find(_TOOLS, tool)
        return () if route is None else route.shown.mirrored

    def passes(self, caller: Caller) -> bool:
        """Whether messages of unknown extensions pass between `caller` and an upstream."""
        return self._catalogue.passing(caller) is not None

    def feature(self, kind: type[F]) -> F:
        """The feature of the given class. Raises LookupError if the settings do not turn it on."""
        for feature in self._features.values():
            if isinstance(feature, kind):
                return feature
        raise LookupError(kind.name)

    def _wrap_upstreams(self) -> None:
        """Wraps each upstream in the server-side stages, in the mapping that everyone uses."""
        stages = [placed.stage for _, placed in reversed(self._upstream_stages(self._settings))]
        self._upstreams.clear()
        for name, upstream in self._supervised.items():
            for stage in stages:
                upstream = stage(upstream)
            self._upstreams[name] = upstream

    def _lose_links_of(self, name: str, *, returns: bool) -> None:
        """Retires the links to an upstream that a reload replaced or removed.

        If it `returns` with new settings, its shared link only counts as lost, so that its entries stay listed (R10).
        """
        for link in self._catalogue.known.links_of(name):
            stays = returns and link.owner is None
            lost = Disconnected(name, None, "its configuration changed") if stays else Retired(name, link.owner)
            self.on_event(lost)

    def _withholds(self, caller: Caller, task: Task, result: Raw) -> bool:
        """Whether a task's result may reach the caller only through a call that passes all stages."""
        upstream, tool = task.link.upstream, task.tool
        return any(feature.withholds(caller, upstream, tool, result) for feature in self._features.values())

    def _is_judged(self, task: Task) -> bool:
        """Whether a feature must judge what the server sends about a task before the caller sees it."""
        return any(feature.judges(task.link.upstream, task.tool) for feature in self._features.values())

    async def _read_own(self, call: Call) -> Outcome:
        """Reads the gateway's own resource: the full instructions of all servers that the caller can see."""
        text = self._catalogue.view(call.caller).whole_instructions
        contents = {"uri": INSTRUCTIONS_URI, "mimeType": "text/markdown", "text": text}
        return Complete(first_level({"contents": [contents]}))

    def pipeline(self) -> list[PipelineRow]:
        """Everything that wraps a call, from the client to the server."""
        client = [_row("client", *stage) for stage in self._stages(self._settings) if _changes(stage[1])]
        return [*client, ROUTING, *(_row("server", *stage) for stage in self._upstream_stages(self._settings))]

    def add_stage(self, placed: Placed) -> None:
        """Adds a stage for the process that runs the gateway. Use it before the first call."""
        self._further.append(placed)
        self._handler = self._built(self._settings)

    def _provision(self, settings: Settings, kept: frozenset[str] = frozenset()) -> None:
        """Creates the features that `settings` turn on, lets them adopt what must survive, and retires the old ones."""
        before, core = self._features, replace(self._core, settings=settings, kept=kept)
        held = [resource for feature in before.values() for resource in feature.resources()]
        made = {each.name: each.load()(core) for each in self._features_of(settings) if each.when(settings)}
        for name, feature in made.items():
            if (previous := before.get(name)) is not None:
                feature.adopt(previous)
        self._features = made
        for scope in self._runs.values():
            scope.cancel()
        self._runs.clear()
        for feature in self._features.values():
            self._start(feature)
        still_held = {id(resource) for resource in self._resources()}
        self._retirement.take(resource for resource in held if id(resource) not in still_held)
        self._own.clear()
        self._own[Subject.RESOURCE] = self._read_own
        for feature in self._features.values():
            self._own.update(feature.entries())

    def _start(self, feature: Feature) -> None:
        """Starts a feature's background work in its own cancel scope, if the gateway is running."""
        if self._tasks is None or type(feature).run is Feature.run:
            return
        scope = self._runs[feature.name] = anyio.CancelScope()

        async def run() -> None:
            with scope:
                await feature.run()

        self._tasks.start_soon(run)

    def _resources(self) -> Iterator[Retirable]:
        return (resource for feature in self._features.values() for resource in feature.resources())

    def _stages(self, settings: Settings) -> list[tuple[str, Placed]]:
        """The stages on the client's side, outermost first, each with the name of its feature."""
        label, metrics = self._resolver.label, self._metrics
        audited = self._unrestricted_subject_of.judged
        accounting = accounted(metrics, label, self.audit, audited, self._sealer.digest)
        stages = [
            *(("process", placed) for placed in self._further),
            ("core", Placed(Place.LINKS, "holds the caller's own links while the call lasts", self._leased)),
            ("core", Placed(Place.LINKS, "builds the caller's view in bounded steps", self._viewed)),
            *((name, placed) for name, feature in self._features.items() for placed in feature.stages()),
            ("core", Placed(Place.OBSERVE, "adds request and trace to the log lines of the call", attributed)),
            ("core", Placed(Place.OBSERVE, "records metrics and the audit log", accounting)),
            ("core", Placed(Place.ERRORS, "turns refusals and crashes into outcomes", contained)),
            *(
                [("core", Placed(Place.ADMIT, "refuses params that name a member twice", unambiguous))]
                if judges_params(settings)
                else []
            ),
            ("core", Placed(Place.INPUT, "passes upstreams' questions to clients of either era", self._bridge.bridged)),
        ]
        return sorted(stages, key=lambda stage: stage[1].place)

    def _upstream_stages(self, settings: Settings) -> list[tuple[str, PlacedUpstream]]:
        """The stages on the server's side, outermost first, each with the name of its feature."""
        stages = [
            (
                "cache",
                PlacedUpstream(Place.CACHE, "answers reads from the cache, or shares one request", self._cache.around),
            ),
            *((name, placed) for name, feature in self._features.items() for placed in feature.upstream_stages()),
        ]
        return sorted(stages, key=lambda stage: stage[1].place)

    def _built(self, settings: Settings) -> Handler:
        """Builds the pipeline: all stages around the router."""
        self._metrics.calls.subjects.most = settings.proxy.limits.max_metric_subjects
        router = Router(self._catalogue, self._resolver, self._answers(settings), self._task_relay, self._exchange)
        return stack([placed.stage for _, placed in self._stages(settings)], router)

    def _answers(self, settings: Settings) -> dict[str, Handler]:
        """The methods that the gateway itself answers, with their handlers."""
        proxy = settings.proxy
        lists = Lists(self._catalogue, self._fetcher, self._listeners, proxy, self._sealer, self._id, self._now)
        tasks = TaskLists(
            self._catalogue,
            self._task_ids,
            self._task_states,
            self._task_registry,
            self._upstreams,
            self._timeouts,
            proxy,
        )
        return {
            **{row.name: lists.list for row in METHODS.values() if row.lists is not None},
            DISCOVER: lists.discover,
            SUBSCRIBE: self.subscriptions.subscribe,
            UNSUBSCRIBE: self.subscriptions.unsubscribe,
            SET_LEVEL: self._log_levels.set_level,
            LISTEN: self._task_subscriptions.listen,
            TASK_LIST: tasks.answer,
            ROOTS_CHANGED: self._own_links.roots_changed,
            **{method: answer for feature in self._features.values() for method, answer in feature.answers().items()},
        }


def _row(side: str, feature: str, placed: Placed | PlacedUpstream) -> PipelineRow:
    return PipelineRow(side, placed.place.name, feature, placed.about)


def _changes(placed: Placed) -> bool:
    """Whether a stage does anything. One that does not returns the handler that it was given."""
    return placed.stage(_probe) is not _probe


async def _probe(_call: Call) -> Outcome:
    raise AssertionError


def _timeouts_of(settings: Settings) -> dict[str, UpstreamTimeouts]:
    return {spec.name: spec.timeouts for spec in settings.upstreams}
