"""The gateway put together: the pipeline that answers calls, and the list of components that live between calls.

Everything here is wiring. What happens to a call is in `pipeline` and `routing`; what a component is, in `component`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

import anyio
from msgspec import Raw

from mcproxy.access.audit.audit_log import AuditLog
from mcproxy.access.limits import Limits
from mcproxy.access.reservations import Ledger
from mcproxy.call.calls import Call, Complete, Failed, Handler, Outcome
from mcproxy.call.clients import Audience, Listener
from mcproxy.call.errors import McpError, Party
from mcproxy.call.identity import AGGREGATE, ANONYMOUS, Caller, Principal
from mcproxy.call.upstreams import Disconnected, Retired, Upstream, UpstreamChanged, UpstreamEvent
from mcproxy.catalog.instructions import INSTRUCTIONS_URI
from mcproxy.catalog.naming import RefusedEntry
from mcproxy.catalog.views.view import View
from mcproxy.concurrency.clock import Clock, Sleep
from mcproxy.gateway.approval.approving import CallApprovals, MakeLink
from mcproxy.gateway.cache.read_cache import ReadCache, annotated_in
from mcproxy.gateway.component import Component, Reconfiguration
from mcproxy.gateway.exchange import UpstreamExchange
from mcproxy.gateway.explaining import Explanation, explain
from mcproxy.gateway.hooks import CallHooks
from mcproxy.gateway.input.bridge import InputBridge
from mcproxy.gateway.input.logins import LoginPages
from mcproxy.gateway.listings.fetcher import ListFetcher
from mcproxy.gateway.listings.keys import ListKey
from mcproxy.gateway.listings.listeners import Listeners
from mcproxy.gateway.listings.lists import Lists
from mcproxy.gateway.listings.state import Catalogue, rules_of
from mcproxy.gateway.log_levels import LogLevels
from mcproxy.gateway.own_links import OwnLinks
from mcproxy.gateway.pin_checks import PinChecks, VettedUpstream
from mcproxy.gateway.pipeline import Traces, accounted, build, limited, traced
from mcproxy.gateway.resolving.call_subjects import SubjectResolver
from mcproxy.gateway.resolving.targets import Resolver
from mcproxy.gateway.resolving.task_ids import Task, TaskIds
from mcproxy.gateway.results.limiting import ResultLimits
from mcproxy.gateway.routing import Router
from mcproxy.gateway.search.answers import ToolSearch
from mcproxy.gateway.search.embeddings import ToolEmbeddings
from mcproxy.gateway.search.indirect_calls import IndirectCalls
from mcproxy.gateway.subscriptions.resources import ResourceSubscriptions
from mcproxy.gateway.tasks.lists import TaskLists
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
from mcproxy.settings.access.pins import Approved
from mcproxy.settings.differences import changed_sections
from mcproxy.settings.endpoints import key_of
from mcproxy.settings.upstreams.upstream import UpstreamTimeouts
from mcproxy.telemetry.logs import masking
from mcproxy.telemetry.metrics import Metrics

_TOOLS: Final = Kind.TOOLS


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
        login_pages: LoginPages | None = None,
        approval_link: MakeLink = lambda id: None,
    ) -> None:
        self._metrics = metrics
        self._sealer = sealer
        self._id = gateway_id
        self._now = now
        self._traces = traces
        self._supervised = dict(upstreams)
        self._timeouts = timeouts = _timeouts_of(settings)
        """Timeouts by upstream; the same mapping object after each reload."""
        self.audit = audit or AuditLog(settings.access.audit, metrics)
        self._limits = Limits(settings.access.limits)
        self._catalogue = catalogue = Catalogue(rules_of(settings))
        self._task_ids = task_ids = TaskIds(catalogue, sealer)
        self._task_registry = TaskRegistry(settings.proxy.limits.max_tasks_per_session)
        self._listeners = listeners = Listeners(catalogue, metrics, sleep)
        self._cache = ReadCache(settings, self._wrapped(settings, upstreams), metrics, annotated_in(catalogue), now)
        self._upstreams = self._cache.upstreams
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
        self._embeddings = ToolEmbeddings(settings, metrics, sleep, now)
        self._search = ToolSearch(catalogue, self._fetcher, settings, metrics, self._embeddings, now)
        own: Mapping[Subject, Handler] = {Subject.TOOL: self._search.answer, Subject.RESOURCE: self._read_own}
        self._exchange = UpstreamExchange(self._upstreams, metrics, self._log_levels.ask_for, own)
        self._hooks = CallHooks(settings, self.subject_of, task_ids, self._resolver.learn, metrics)
        self._result_limits = ResultLimits(settings, catalogue, task_ids, sealer, metrics, now)
        self._task_states = TaskStates(catalogue, task_ids, self._withholds)
        self._tasks = TaskRelay(catalogue, task_ids, self._task_states, self._task_registry, listeners, self._exchange)
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
        self.approvals = CallApprovals(
            settings,
            catalogue,
            metrics,
            learn=self._resolver.learn,
            refetch=self._fetcher.refetched,
            record=self.audit.note,
            links=approval_link,
        )
        self._pin_checks = PinChecks(catalogue, upstreams, metrics)
        self._components: Final[tuple[Component, ...]] = (
            listeners,  # first: all others look up there who listens, and who has just left
            self._cache,  # before a client can hear of a change, and read: what changed is forgotten by then
            self._fetcher,  # keeps the catalogue, in which all that follow look up links, routes and who may hear what
            self.subscriptions,  # the others' order among themselves makes no difference
            self.subscriptions.updates,
            self._log_levels,
            self._tasks,
            self._task_subscriptions,
            self._bridge,
            self.approvals,
            self._result_limits,
            self._hooks,
            self._pin_checks,
            self._search,
            self._embeddings,
            self._own_links,  # last: nothing is asked over a session's links any more when they end
        )
        self._hearers: Final = {
            kind: tuple(component.on_event for component in self._components if kind in component.heeds)
            for kind in frozenset().union(*(component.heeds for component in self._components))
        }
        """The components to call for an event or a change, by its type, in order."""
        self._settings = settings
        self._handler = self._built(settings)

    def handler(self, call: Call) -> Awaitable[Outcome]:
        """The whole way of a call, by the settings in force when the call begins."""
        if call.caller.credentials is not None or self._own_links.has_principals:
            return self._with_own_links(call)
        catalogue, caller = self._catalogue, call.caller
        if catalogue.latest_caller is caller or catalogue.has_routes(caller):
            return self._handler(call)
        return self._once_viewed(call)

    async def _once_viewed(self, call: Call) -> Outcome:
        """Handles a call once its caller's view is made, which may take long where very much is listed."""
        with suppress(Exception):  # it is made again in the pipeline, where what fails becomes an outcome
            await self._catalogue.turns.take(self._catalogue.viewing(call.caller))
        return await self._handler(call)

    async def _with_own_links(self, call: Call) -> Outcome:
        try:
            async with self._own_links.used(call):
                return await self._once_viewed(call)
        except McpError as refusal:
            return Failed(refusal.error(), Party.GATEWAY, refusal.reason)

    def reconfigure(self, settings: Settings, upstreams: Mapping[str, Upstream]) -> None:
        """Puts other settings and upstreams in force (R49): in one step, so that no call sees half of it.

        Calls that run end where they are. An upstream that is the same object has kept its links.
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
        limited = self._result_limits.is_on
        change = Reconfiguration(settings, self._wrapped(settings, upstreams), kept)
        for component in self._components:
            if changed & component.goes_by:
                component.reconfigure(change)
        if "access" in changed:
            self._limits.reconfigure(settings.access.limits)
        if changed & {"access", "proxy", "endpoints"} or self._result_limits.is_on != limited:
            self._handler = self._built(settings)

    def on_event(self, event: UpstreamEvent) -> None:
        """Takes in what happened upstream. Never blocks."""
        kind = type(event.change) if isinstance(event, UpstreamChanged) else type(event)
        for tell in self._hearers.get(kind, ()):
            tell(event)

    def share_limits(self, ledger: Ledger) -> None:
        """Shares the counts of limits with other processes; call it once, before the first call."""
        self._limits.share(ledger)
        self._handler = self._built(self._settings)

    def take_note(self, change: UpstreamChanged) -> None:
        """Takes in a change that another process heard of: what is cached or listed is fetched anew.

        Tells clients nothing: they hear of a subscription's changes by the upstream's reports over this process's own
        links.
        """
        for component in (self._cache, self._fetcher):
            if type(change.change) in component.heeds:
                component.on_event(change)

    def forget_reads(self, upstream: str | None = None) -> None:
        """Drops what the cache holds of an upstream, or of all (None)."""
        self._cache.forget(upstream)

    def tell_writes(self, tell: Callable[[str], None]) -> None:
        """Calls `tell` with the name of each upstream whose resources a call may have changed."""
        self._cache.on_write = tell

    @property
    def audience(self) -> Audience:
        """Where transports join their clients as listeners, and leave."""
        return self

    def join(self, listener: Listener) -> None:
        for component in self._components:
            component.join(listener)

    def leave(self, listener: Listener) -> None:
        for component in self._components:
            component.leave(listener)

    async def run(self) -> None:
        """Runs all components until cancelled."""
        async with anyio.create_task_group() as tasks:
            for component in self._components:
                tasks.start_soon(component.run)

    async def settled(self) -> None:
        """Returns when every upstream's first attempt is over, and the lists of those that connected are known."""
        await self._fetcher.settled()

    def listeners(self) -> list[Listener]:
        """The listeners that are joined now."""
        return list(self._listeners)

    def catalogue(self, endpoint: str = AGGREGATE) -> View:
        """The view of an endpoint over shared links without a policy, with the entries that were renamed or refused."""
        return self._catalogue.whole_view(Caller(ANONYMOUS, LATEST, endpoint=endpoint))

    def exists(self, endpoint: str, principal: Principal) -> bool:
        """Whether there is an endpoint that `principal` may know of."""
        return self._catalogue.exists(endpoint, principal)

    def explain(self, caller: Caller, kind: Kind, subject: str, arguments: Params) -> Explanation:
        """Explains whether `caller` may use what it knows as `subject`."""
        mask = masking(self._settings.secrets)
        return explain(self._catalogue, self._upstreams, caller, kind, subject, arguments, mask)

    def mirrored(self, caller: Caller, tool: str) -> tuple[MirroredParameter, ...]:
        """The parameters of a tool, in the caller's view, that must be mirrored in HTTP headers."""
        route = self._catalogue.routes(caller).find(_TOOLS, tool)
        return () if route is None else route.shown.mirrored

    def passes(self, caller: Caller) -> bool:
        """Whether messages of extensions that the gateway does not know pass between `caller` and an upstream."""
        return self._catalogue.passing(caller) is not None

    def unapproved(self) -> list[RefusedEntry]:
        """What upstreams offer over shared links and `access.pins` has not approved."""
        return self._pin_checks.unapproved()

    def offered(self) -> dict[str, Approved | None]:
        """What each upstream offers now, in the form to be approved; None for an upstream whose lists are unknown."""
        return self._pin_checks.offered()

    def _wrapped(self, settings: Settings, upstreams: Mapping[str, Upstream]) -> dict[str, Upstream]:
        """`upstreams` with tracing and, where pins are enforced, with definitions compared at each start of a child."""
        found = {name: self._traces.sent(each) if self._traces else each for name, each in upstreams.items()}
        if settings.access.pins.mode == "enforce":
            idling = {spec.name for spec in settings.upstreams if spec.may_idle}
            for name in idling & found.keys():
                found[name] = VettedUpstream(found[name], self._catalogue, self._refetch)
        return found

    def _refetch(self, key: ListKey, call: Call) -> Awaitable[Failed | None]:
        return self._fetcher.refetched(key, call)

    def _lose_links_of(self, name: str, *, returns: bool) -> None:
        """Retires the links to an upstream that a reload replaced or removed.

        If it `returns` with other settings, its shared link only counts as lost, so that its entries stay listed (R10).
        """
        for link in self._catalogue.known.links_of(name):
            stays = returns and link.owner is None
            lost = Disconnected(name, None, "its configuration changed") if stays else Retired(name, link.owner)
            self.on_event(lost)

    def _withholds(self, caller: Caller, task: Task, result: Raw) -> bool:
        """Whether a task's result has to pass a hook or a size limit: then only a call about the task may return it."""
        upstream, tool = task.link.upstream, task.tool
        return self._hooks.withholds(upstream, tool) or self._result_limits.exceeds(caller, upstream, tool, result)

    async def _read_own(self, call: Call) -> Outcome:
        """The gateway's own resource: the full instructions of all servers that the caller sees."""
        text = self._catalogue.view(call.caller).whole_instructions
        contents = {"uri": INSTRUCTIONS_URI, "mimeType": "text/markdown", "text": text}
        return Complete(first_level({"contents": [contents]}))

    def _built(self, settings: Settings) -> Handler:
        """The pipeline for `settings`."""
        self._metrics.calls.subjects.most = settings.proxy.limits.max_metric_subjects
        answers = self._answers(settings)
        searched = [key_of(name) for name, endpoint in settings.endpoints.items() if endpoint.discovery == "search"]
        indirect = IndirectCalls(searched, self._catalogue, self._resolver, self._search.note_called)
        router = Router(self._catalogue, self._resolver, answers, self._tasks, self._exchange)
        return build(
            router,
            unwrapped=indirect.unwrapped,
            traced=traced(self._traces, self._resolver.label),
            accounted=accounted(
                self._metrics,
                self._resolver.label,
                self.audit,
                self._unrestricted_subject_of.judged,
                self._sealer.digest,
            ),
            limited=limited(self._limits, self.subject_of, self._bridge.resumes, self._metrics),
            bridged=self._bridge.bridged,
            checked=indirect.checked,
            hooked_before=self._hooks.before,
            approved=self.approvals.approved,
            limited_results=self._result_limits.limited_results,
            hooked_after=self._hooks.after,
        )

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
        }


def _timeouts_of(settings: Settings) -> dict[str, UpstreamTimeouts]:
    return {spec.name: spec.timeouts for spec in settings.upstreams}
