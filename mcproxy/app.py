"""The composition root: settings in, a running gateway out, still without a listener.

While `running` is entered, upstreams are supervised, the catalogue is kept and calls are answered; `serving` puts
listeners in front of it. No other module imports both downstream and upstream. A reload is one synchronous step,
`App.reconfigure`: each part takes its new settings, and removed upstreams drain by themselves. Decides nothing about a
call.
"""

from __future__ import annotations

import os
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import anyio
import msgspec
import structlog
from anyio.abc import TaskGroup
from prometheus_client.registry import Collector

from mcproxy import __version__
from mcproxy.access.approval_links import ApprovalLinks
from mcproxy.access.audit.audit_log import AuditLog
from mcproxy.access.identity import Identity
from mcproxy.access.refusals import Refusals
from mcproxy.admin import control
from mcproxy.admin.actions import Actions
from mcproxy.admin.health import Reports, health_reports
from mcproxy.admin.live_feed import Feed
from mcproxy.admin.measures.collectors import ListSizeCollector, UpstreamCollector
from mcproxy.admin.measures.loop_lag import measure_loop_lag
from mcproxy.call.calls import Handler
from mcproxy.call.clients import Listener
from mcproxy.call.identity import AGGREGATE, Caller, Principal
from mcproxy.call.upstreams import SERVING, LinkFailure, UpstreamEvent, UpstreamStatus
from mcproxy.catalog.naming import RefusedEntry
from mcproxy.catalog.views.view import View
from mcproxy.configuration.loading import credentials
from mcproxy.downstream.front import tls
from mcproxy.downstream.front.app import Companion, alone
from mcproxy.downstream.front.authentication import Authenticator
from mcproxy.downstream.io.context import NOT_KEPT, TransportContext
from mcproxy.features import features_of
from mcproxy.features.approvals.feature import CallApprovals
from mcproxy.features.pins.feature import Pins
from mcproxy.gateway.explaining import kind_of
from mcproxy.gateway.feature import Place, Placed
from mcproxy.gateway.gateway import Gateway
from mcproxy.login.links import ConnectLinks
from mcproxy.login.routes import LoginRoutes
from mcproxy.login.sign_in import SignIn
from mcproxy.login.site import GatewaySite
from mcproxy.login.visits import MemoryLogins, Visits
from mcproxy.protocol.eras import LATEST
from mcproxy.sealing import Sealer
from mcproxy.service.secret_rotation import SecretRotation
from mcproxy.service.state import features_folder, grant_store, secret_keys, subscriber_journal
from mcproxy.settings import Cluster, Settings
from mcproxy.settings.access.pins import Approved
from mcproxy.settings.differences import Difference, changed_sections, diff, in_force
from mcproxy.settings.endpoints import key_of
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.connect import connected
from mcproxy.upstream.fleet import Fleet
from mcproxy.upstream.link import Connect
from mcproxy.upstream.oauth.storage.store import GrantStore

if TYPE_CHECKING:
    from mcproxy.admin.page_values import ReplicaRow, WaitingCall
    from mcproxy.cluster.oauth.shared import SharedOAuth

log = structlog.get_logger()

EventSink = Callable[[UpstreamEvent], None]


class App(msgspec.Struct, eq=False):
    """A gateway that runs, without a listener."""

    settings: Settings
    """The settings in force."""
    metrics: Metrics
    context: TransportContext
    gateway: Gateway
    fleet: Fleet
    identity: Identity
    audit: AuditLog
    feed: Feed
    rotation: SecretRotation
    site: GatewaySite
    """Where people log in to upstreams."""
    login: LoginRoutes
    tls: ssl.SSLContext | None = None
    """The context of HTTPS, once the gateway serves it."""
    companion: Companion = alone
    url: str | None = None
    """The base URL that clients are served at, over HTTP."""
    status_page: str | None = None
    """The URL of the status page, where there is one."""
    reload: Callable[[], None] | None = None
    """Has the configuration read again, once it is watched."""
    hear_reload: Callable[[Difference], None] | None = None
    """Is told of each reload that was applied."""
    connect: Connect = connected
    """Makes links to upstreams; those of a cluster lead to the replica that runs the upstream."""
    awaited: Callable[[], Sequence[str]] = tuple
    """What the cluster still waits for before this replica should get traffic, as sentences."""
    replicas: Callable[[], Sequence[ReplicaRow]] = tuple
    """The replicas of the cluster, this one first; none where there is no cluster."""
    stopping: bool = False
    """True once it was told to stop: it serves on, and is not ready for more traffic."""

    def reconfigure(self, settings: Settings) -> Difference:
        """Puts other settings in force, in one step (R49); what needs a restart stays as it was. Never blocks."""
        before, difference = self.settings, diff(self.settings, settings)
        self.settings = self.site.settings = in_force(before, settings)
        changed = changed_sections(before, self.settings)
        if "proxy" in changed:
            self.rotation.reconfigure(self.settings)
        # Before the gateway, which is given the upstreams that there are then.
        self.fleet.reconfigure(self.settings, difference)
        # Before the gateway, whose pipeline has a stage for the audit only where it is on.
        hidden = credentials(self.settings)
        if "access" in changed or hidden != credentials(before):
            self.audit.reconfigure(self.settings.access.audit, hidden)
        self.gateway.reconfigure(self.settings, self.fleet.upstreams)
        if "access" in changed:
            self.identity.reconfigure(self.settings.access.authentication)
        # After identity: open streams are judged by it again.
        forwarded = _forwarded(self.settings)
        exchanges = _exchanges_tokens(self.settings)
        is_other = (forwarded, exchanges) != (self.context.forwarded, self.context.exchanges_tokens)
        if changed - {"upstreams"} or is_other:
            self.context.reconfigure(self.settings.proxy, forwarded, exchanges_tokens=exchanges)
        self._renew_certificate()
        if self.hear_reload is not None:
            self.hear_reload(difference)
        return difference

    def ask_reload(self) -> None:
        """Has the configuration read again, if it may change while the gateway runs."""
        if self.reload is not None:
            self.reload()

    def _renew_certificate(self) -> None:
        """Reads the certificate anew: most reloads are for one that was replaced in its place."""
        if self.tls is None:
            return
        try:
            tls.renew(self.tls, self.settings.proxy.tls)
        except OSError as error:
            log.warning("the certificate stays as it was", why=str(error))

    @property
    def handler(self) -> Handler:
        """As `Gateway.handler`: the whole way of a call."""
        return self.gateway.handler

    def statuses(self) -> list[UpstreamStatus]:
        """The state of each upstream that is enabled, as of now."""
        return [upstream.status for upstream in self.fleet.upstreams.values()]

    def catalogue(self, endpoint: str = "") -> View:
        """As `Gateway.catalogue`."""
        return self.gateway.catalogue(endpoint)

    def views(self) -> Iterator[tuple[str, View]]:
        """What each endpoint shows that is for more than one upstream, by its path."""
        for endpoint in (AGGREGATE, *map(key_of, self.settings.endpoints)):
            yield self.settings.proxy.paths.mcp + endpoint, self.catalogue(endpoint)

    def listeners(self) -> list[Listener]:
        """As `Gateway.listeners`."""
        return self.gateway.listeners()

    def unapproved(self) -> list[RefusedEntry]:
        """As `Pins.unapproved`."""
        return self.gateway.feature(Pins).unapproved()

    def offered(self) -> dict[str, Approved | None]:
        """As `Pins.offered`."""
        return self.gateway.feature(Pins).offered()

    @property
    def approval_links(self) -> ApprovalLinks:
        """Links by which operators decide on calls that wait."""
        return self.gateway.feature(CallApprovals).links

    def waiting_calls(self) -> Sequence[WaitingCall]:
        """As `CallApprovals.waiting`."""
        return self.gateway.feature(CallApprovals).waiting()

    def decide(self, id: str, operator: Principal | None, *, approve: bool) -> str | None:
        """As `CallApprovals.decide`."""
        return self.gateway.feature(CallApprovals).decide(id, operator, approve=approve)

    async def settled(self) -> None:
        """Returns when every upstream's first attempt is over and the lists of those that connected are known."""
        await self.gateway.settled()

    def unready(self) -> list[str]:
        """The reasons why it should get no traffic, as sentences; none where it is ready (requirement R51)."""
        if self.stopping:
            return ["stopping"]
        required = {spec.name for spec in self.settings.upstreams if spec.required and spec.enabled}
        missing = [status.name for status in self.statuses() if status.name in required and not _serves(status)]
        return [*(f"waiting for {name}" for name in sorted(missing)), *self.awaited()]

    @property
    def actions(self) -> Actions:
        """What operators may do."""
        return Actions(
            lambda: self.fleet.upstreams,
            self.audit.note,
            disabled=lambda: [spec.name for spec in self.settings.upstreams if not spec.enabled],
        )

    def facts(self) -> dict[str, object]:
        """The process and what it serves, as JSON values (see `admin.control`)."""
        return {
            "version": __version__,
            "pid": os.getpid(),
            "url": None if self.url is None else self.url.rstrip("/") + self.settings.proxy.paths.mcp,
            "status_page": self.status_page,
            "unready": self.unready(),
            "audit_failing": self.audit.failing,
        }

    def explain(self, request: control.ExplainRequest) -> Mapping[str, object]:
        """Why a caller may make a call (see `admin.control`). Raises ValueError for a method without a subject."""
        principal = Principal(request.principal, frozenset(request.roles))
        caller = Caller(principal, LATEST, endpoint=request.endpoint)
        kind = kind_of(request.method, request.subject)
        explanation = self.gateway.explain(caller, kind, request.subject, request.arguments)
        found: dict[str, object] = msgspec.to_builtins(explanation)
        return found

    def reports(self) -> Reports:
        """Health and metrics, to be served beside MCP."""
        return health_reports(self.metrics, self.unready, metrics_path=self.settings.proxy.paths.metrics)


def _serves(status: UpstreamStatus) -> bool:
    """Whether an upstream can be used. One that waits for a login can be by those who log in, through this gateway."""
    return status.state in SERVING or status.failure is LinkFailure.LOGIN


@asynccontextmanager
async def running(
    settings: Settings,
    *,
    metrics: Metrics | None = None,
    on_event: EventSink | None = None,
    joins_cluster: bool = False,
    connects: bool = True,
    keeps_state: bool = False,
) -> AsyncIterator[App]:
    """Connects upstreams in the background and answers calls until left; then every upstream is stopped.

    `joins_cluster`: it will serve HTTP as a replica of its cluster, and runs of `placement: one` what is placed at it;
    else it runs all itself. Without `connects` it is only put together, and connects to nothing. `keeps_state`:
    features may keep files between runs.
    """
    metrics = metrics or Metrics()
    feed = Feed(settings.admin.max_watchers)
    # Where there is no page, neither calls nor events pass by the feed.
    sinks: list[EventSink] = [feed.on_event] if settings.admin.port is not None else []
    if on_event is not None:
        sinks.append(on_event)

    def publish(event: UpstreamEvent) -> None:
        for sink in sinks:
            sink(event)

    gateway_id = secrets.token_hex(8)
    # Another one after each start: what lived in a process is gone with it.
    sealer = Sealer(*secret_keys(settings), label=_label(settings.cluster))
    shared = _shared_oauth(settings, sealer, metrics)
    grants: GrantStore = grant_store(settings, sealer) if shared is None else shared.grants
    rotation = SecretRotation(settings, sealer, grants)
    audit = AuditLog(settings.access.audit, metrics, credentials(settings))
    renew = None if shared is None else shared.renewals.renew
    fleet = Fleet(
        settings,
        on_event=publish,
        metrics=metrics,
        gateway_id=gateway_id,
        grants=grants,
        record=audit.note,
        connect=lambda context: app.connect(context),
        prepare=lambda *link: gateway.prepare(*link),
        renew=renew,
    )
    links = ConnectLinks(sealer)
    site = GatewaySite(settings, fleet.logins, links)
    watched = Placed(Place.CLIENT, "shows the call on the status page, while someone watches", feed.around)
    gateway = Gateway(
        settings,
        fleet.upstreams,
        metrics,
        sealer,
        gateway_id,
        audit=audit,
        login_pages=site,
        features=features_of,
        stages=[] if settings.admin.port is None else [watched],
        state=features_folder() if keeps_state and settings.cluster.redis is None else None,
    )
    sinks.insert(0, gateway.on_event)
    async with audit.running(), anyio.create_task_group() as tasks:
        context = _transport_context(settings, gateway, sealer, metrics, tasks, traced=settings.proxy.tracing.enabled)
        tasks.start_soon(gateway.run)
        tasks.start_soon(measure_loop_lag, metrics)
        refusals = Refusals(metrics, audit.note)
        identity = Identity(settings.access.authentication, tasks.start_soon, refusals=refusals)
        authenticator = Authenticator(context, identity)
        sign_in = SignIn(identity, grants)
        under_way = MemoryLogins() if shared is None else shared.logins
        login = LoginRoutes(site, links, Visits(sealer), identity, sign_in, under_way, authenticator)
        app = App(
            settings,
            metrics,
            context,
            gateway,
            fleet,
            identity,
            audit,
            feed,
            rotation,
            site,
            login,
        )
        with _scraped(metrics, UpstreamCollector(app.statuses), ListSizeCollector(app.views)):
            async with _companion(app, shared, sinks, joins_cluster=joins_cluster) as app.companion:
                if connects:
                    tasks.start_soon(rotation.run)
                    tasks.start_soon(fleet.run)
                yield app
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _companion(
    app: App, shared: SharedOAuth | None, sinks: list[EventSink], *, joins_cluster: bool
) -> AsyncIterator[Companion]:
    """What takes part in serving HTTP: the other replicas, where there are any."""
    if shared is None:
        yield alone
        return
    # What it imports is an extra.
    from mcproxy.cluster.replica import joined

    async with joined(
        lambda: app.settings,
        app.context,
        app.gateway,
        app.identity,
        app.ask_reload,
        shared,
        app.fleet.logins,
        _for_replicas,
    ) as replica:
        sinks.append(replica.on_event)
        if joins_cluster:
            app.connect = replica.connected
        app.hear_reload = replica.reloaded
        app.replicas, app.awaited = replica.replicas, replica.unready
        yield replica


def _shared_oauth(settings: Settings, sealer: Sealer, metrics: Metrics) -> SharedOAuth | None:
    """What the replicas share of OAuth toward upstreams; None where this is the only one."""
    if settings.cluster.redis is None:
        return None
    # What it imports is an extra.
    from mcproxy.cluster.oauth.shared import shared_oauth

    return shared_oauth(settings.cluster, sealer, metrics)


def shared_grants(settings: Settings, sealer: Sealer) -> AbstractAsyncContextManager[GrantStore]:
    """The grants that replicas share, for a command; entering and leaving raise StoreFailed."""
    # What it imports is an extra.
    from mcproxy.cluster.oauth.shared import grants_of_replicas

    return grants_of_replicas(settings.cluster, sealer)


def _label(cluster: Cluster) -> str:
    """What the values that this process seals begin with in clear; empty where there are no other replicas."""
    if cluster.redis is None:
        return ""
    return "-".join(filter(None, (cluster.name, secrets.token_hex(4))))


@asynccontextmanager
async def _for_replicas(settings: Settings) -> AsyncIterator[App]:
    """A gateway that answers replicas, beside the one for clients: it keeps nothing in files of this user's."""
    async with running(settings) as app:
        app.context.subscribers = NOT_KEPT
        yield app


@contextmanager
def _scraped(metrics: Metrics, *collectors: Collector) -> Iterator[None]:
    """Asks `collectors` as well, at each scrape until left."""
    for collector in collectors:
        metrics.registry.register(collector)
    try:
        yield
    finally:
        for collector in collectors:
            metrics.registry.unregister(collector)


def _transport_context(
    settings: Settings,
    gateway: Gateway,
    sealer: Sealer,
    metrics: Metrics,
    tasks: TaskGroup,
    *,
    traced: bool,
) -> TransportContext:
    return TransportContext(
        handler=gateway.handler,
        audience=gateway.audience,
        proxy=settings.proxy,
        sealer=sealer,
        metrics=metrics,
        exists=gateway.exists,
        tasks=tasks,
        forwarded=_forwarded(settings),
        exchanges_tokens=_exchanges_tokens(settings),
        traced=traced,
        mirrored=gateway.mirrored,
        passes=gateway.passes,
        subscribers=subscriber_journal(settings, sealer),
    )


def _forwarded(settings: Settings) -> frozenset[str]:
    """The headers of clients that go on to upstreams which are enabled."""
    specs = [spec for spec in settings.upstreams if spec.enabled]
    return frozenset(header.lower() for spec in specs for header in spec.credentials.forward)


def _exchanges_tokens(settings: Settings) -> bool:
    """Whether an upstream that is enabled has callers' own tokens exchanged for its own."""
    return any(spec.enabled and spec.exchanges_tokens for spec in settings.upstreams)
