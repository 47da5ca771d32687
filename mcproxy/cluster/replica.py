"""One replica of a cluster: joins the others, takes part in serving HTTP, and leaves. The module that `app` imports.

Made only where `cluster.redis` is set. Wires the other modules of this package together, and decides nothing.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup

from mcproxy import __version__
from mcproxy.access.identity import Identified, Identity
from mcproxy.admin.page_values import ReplicaRow
from mcproxy.call.calls import Call, Outcome
from mcproxy.call.clients import Listener
from mcproxy.call.upstreams import UpstreamEvent
from mcproxy.cluster.envelope import Envelopes, HopEnvelope
from mcproxy.cluster.events import ClusterEvents, SessionEnded, StaleAccess, StaleReads
from mcproxy.cluster.forwarding import Forwarding
from mcproxy.cluster.hop import EnvelopeRefused, Hops, Lost, Moved, ReplicaSlow, ReplicaUnreachable
from mcproxy.cluster.invalidation import Invalidation, Memories
from mcproxy.cluster.ledger import SharedLedger
from mcproxy.cluster.listener import InternalListener
from mcproxy.cluster.members import HEARTBEATS, Member, Members, disagreements
from mcproxy.cluster.oauth.renewals import INQUIRY, QUESTION
from mcproxy.cluster.oauth.shared import SharedOAuth
from mcproxy.cluster.placement import Placement, RunGateway, placed_upstreams
from mcproxy.cluster.records import SessionRecords
from mcproxy.cluster.store.protocol import Store
from mcproxy.downstream.front.app import HttpApp
from mcproxy.downstream.handshake.session import Session
from mcproxy.downstream.handshake.session_ids import UnknownSession, verify
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.request_head import SESSION_FIELD, HeadHandler, RequestHead
from mcproxy.downstream.io.responses import Refusal, refused
from mcproxy.features.limits.feature import CallLimits
from mcproxy.gateway.feature import Place, Placed
from mcproxy.http import server as http
from mcproxy.sealing import label_of
from mcproxy.settings import ClusterTls, Settings
from mcproxy.settings.differences import Difference
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.link import Link
from mcproxy.upstream.oauth.logins import FindLogins

LINGER: Final = 1.5
"""Heartbeats for which a replica that shuts down still answers others that stay, when its own clients have gone."""

ROUNDS: Final = 3
"""Heartbeats after a replica came, by which all others know of it and send it what is its own."""


class SharedSubscriptions(Protocol):
    """What a replica needs of the subscriptions of clients (`gateway.subscriptions.resources`)."""

    def uris(self, listener: Listener) -> Sequence[str]:
        """The resources that a listener watches, in its own names."""

    def subscribe(self, call: Call) -> Awaitable[Outcome]:
        """Raises McpError."""


class SharedGateway(Memories, Protocol):
    """What a replica needs of the gateway (`gateway.gateway.Gateway`)."""

    @property
    def subscriptions(self) -> SharedSubscriptions:
        """The resources that its clients watch."""

    def add_stage(self, placed: Placed) -> None:
        """Adds a stage around each call. Called before the first call."""

    def feature(self, kind: type[CallLimits]) -> CallLimits:
        """The limits on calls, which replicas count together."""

    def tell_writes(self, tell: Callable[[str], None]) -> None:
        """Has `tell` called with each upstream whose resources a call may have changed."""


class Replica:
    """Implements `downstream.front.app.Companion`."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        store: Store,
        context: TransportContext,
        gateway: SharedGateway,
        identity: Identity,
        tasks: TaskGroup,
        hops: Hops,
        reload: Callable[[], None],
        oauth: SharedOAuth,
        find_logins: FindLogins,
        run: RunGateway,
    ) -> None:
        sealer, metrics, cluster = context.sealer, context.metrics, settings().cluster
        self._settings = settings
        self._context = context
        self._identity = identity
        self._tasks = tasks
        self._app: HttpApp | None = None
        self._address = ""
        self._hops = hops
        self._described: tuple[Settings, Member] | None = None
        self._moved: set[Session] = set()
        """Sessions that another replica serves, or may have served: they are left when their calls are over."""
        self._rounds = 0
        """How many times more all sessions are looked through for such."""
        self.members = Members(
            store,
            sealer,
            self._describe,
            ttl=cluster.member_ttl,
            metrics=metrics,
            on_return=self._give_back,
            on_gone=self._lose,
            answers=self._answers,
        )
        self._ledger = SharedLedger(store, sealer.label, self._live)
        invalidation = Invalidation(gateway, self._judge_again, reload, self._forget_session, self._write_again, oauth)
        self._events = ClusterEvents(store, sealer, invalidation, metrics)
        self._records = SessionRecords(
            store,
            sealer,
            uris=gateway.subscriptions.uris,
            subscribe=gateway.subscriptions.subscribe,
            end_session=self._end_session,
            lifetime=lambda: context.proxy.limits.session_lifetime,
            on_loss=cluster.on_loss,
            tasks=tasks,
            metrics=metrics,
            tell_ended=lambda key: self._events.tell(SessionEnded(key)),
        )
        self._envelopes = envelopes = Envelopes(sealer)
        self._forwarding = Forwarding(
            label=sealer.label,
            members=self.members,
            envelopes=envelopes,
            hops=self._hops,
            identifying=lambda: identity.header_names,
            read_timeout=lambda: context.proxy.read_timeout,
            adopting=self._adopting,
        )
        self._placement = Placement(settings, self.members, envelopes, hops, run)
        questions = {QUESTION: oauth.renewals.answer}
        inquiries = {INQUIRY: oauth.renewals.answer_inquiry}
        self._listener = InternalListener(envelopes, self._serve, lambda: context.proxy, questions, inquiries)
        self._oauth = oauth
        absence = 2 * cluster.member_ttl / HEARTBEATS
        oauth.serve_with(self.members, envelopes, hops, find_logins, tasks, absence, self._events.tell)
        context.subscribers = self._records
        gateway.add_stage(Placed(Place.CLIENT, "records the session for other replicas", self._records.recorded))
        gateway.feature(CallLimits).share(self._ledger)
        gateway.tell_writes(lambda upstream: self._events.tell(StaleReads(upstream)))

    def on_event(self, event: UpstreamEvent) -> None:
        """Takes note of what happened upstream. Never blocks."""
        self._events.on_event(event)

    def reloaded(self, difference: Difference) -> None:
        """Another configuration is in force. Never blocks."""
        if difference.access:
            self._events.tell(StaleAccess())

    def connected(self, context: LinkContext) -> AbstractAsyncContextManager[Link]:
        """A link to an upstream, wherever it runs. Entering raises Unreachable or Rejected."""
        return self._placement.connected(context)

    # downstream.front.app.Companion

    def stage(self, handler: HeadHandler) -> HeadHandler:
        return self._forwarding.stage(handler)

    @asynccontextmanager
    async def serving(self, app: HttpApp) -> AsyncIterator[None]:
        self._app = app
        self._forwarding.serve_with(app.streams, app.sessions)
        cluster = self._settings().cluster
        async with (
            self._listener.listening(cluster, _server_tls(cluster.tls)) as port,
            anyio.create_task_group() as tasks,
        ):
            scheme, host = "http" if cluster.tls.certificate is None else "https", cluster.address[0]
            self._address = cluster.advertise or f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
            await self.members.announce()
            tasks.start_soon(self.members.run)
            tasks.start_soon(self._keep_moved_away)
            tasks.start_soon(self._records.run, cluster.member_ttl / HEARTBEATS)
            tasks.start_soon(self._events.run)
            tasks.start_soon(self._ledger.run)
            tasks.start_soon(self._oauth.grants.run)
            try:
                async with self._placement.serving():
                    yield
            finally:
                with anyio.CancelScope(shield=True):
                    # Until every other replica has heard of it, this one tells each request that it is leaving.
                    await self.members.linger(LINGER * cluster.member_ttl / HEARTBEATS)
                    await self.members.withdraw()
                tasks.cancel_scope.cancel()

    def drain(self) -> None:
        self._forwarding.drain()
        self._listener.drain()
        self._tasks.start_soon(self.members.leave)
        self._tasks.start_soon(self._placement.drain)

    def unready(self) -> Sequence[str]:
        """Why this replica should get no traffic yet, as sentences."""
        return () if self.members.are_known else ("waiting for the store that the replicas share",)

    def replicas(self) -> Sequence[ReplicaRow]:
        """Each replica as operators see it, this one first, with that in which it differs."""
        own, *others = self.members.all()
        return [
            ReplicaRow(one.label, one.address, one.version, self.members.state(one), disagreements(own, one))
            for one in (own, *others)
        ]

    def _describe(self) -> Member:
        settings = self._settings()
        if self._described is None or self._described[0] is not settings:
            own = settings.model_dump_json(exclude={"cluster": True, "admin": True, "proxy": {"host", "port"}})
            lock = repr(settings.access.pins.lock)
            placed = tuple(spec.name for spec in placed_upstreams(settings))
            label, digests = self._context.sealer.label, (_digest(own), _digest(lock))
            self._described = settings, Member(label, self._address, __version__, *digests, placed)
        return self._described[1]

    async def _serve(self, request: http.Request, envelope: HopEnvelope) -> http.Answered:
        """Answers a request that another replica sent on, or one of its own."""
        if envelope.placed:
            return await self._placement.serve(request, envelope)
        assert self._app is not None
        try:
            identified = Identified(envelope.principal, self._identity.settings)
            admitted = self._app.admit(request, identified, envelope.forwarded)
        except (http.NotFound, http.MethodNotAllowed):
            return await self._app.handle(request)
        except Refusal as refusal:
            return refused(refusal)
        session = request.fields.get(SESSION_FIELD)
        if session is None or self._forwarding.is_certain(session):
            return await self._app.handle(request, admitted)
        async with self._adopting(session, admitted.head):
            return await self._app.handle(request, admitted)

    @asynccontextmanager
    async def _adopting(self, id: str, head: RequestHead) -> AsyncIterator[None]:
        """Entered around a request for a session of another process, which may be opened here."""
        assert self._app is not None
        key: str | None = None
        if id not in self._app.sessions:
            try:
                key = verify(self._context.sealer, head.principal, head.endpoint, id).key
            except UnknownSession:
                key = None
        if key is None:
            yield
            return
        async with self._records.fetched(key):
            # Its home may have come again while the record was read.
            self._rounds = ROUNDS
            yield

    def _give_back(self, label: str) -> None:
        """Leaves the sessions that others serve since a replica came, or while this one, if it is that, was frozen."""
        self._rounds = ROUNDS
        if label == self._context.sealer.label:
            self._forwarding.doubt()
            self._moved.update(session for session in self._live_sessions() if label_of(session.id) == label)
        self._leave_moved()

    def _leave_moved(self) -> None:
        if self._app is None:
            return
        if self._rounds:
            self._rounds -= 1
            self._moved.update(
                session for session in self._live_sessions() if self._forwarding.is_elsewhere(session.id)
            )
        self._moved = {session for session in self._moved if not self._app.sessions.leave_idle(session)}

    def _live_sessions(self) -> Sequence[Session]:
        return [] if self._app is None else self._app.sessions.live()

    async def _keep_moved_away(self) -> None:
        """Leaves sessions that others serve once their calls are over, and those that replicas sent here which did not
        know yet."""
        while True:
            await anyio.sleep(self._settings().cluster.member_ttl / HEARTBEATS)
            self._leave_moved()

    def _lose(self, member: Member) -> None:
        """Breaks the connections to a replica that is gone, and takes over what was placed there."""
        self._hops.forget(member.address)
        self._placement.settle()

    async def _answers(self, member: Member) -> bool:
        """Whether a member lives: the process that has its label answers at its address."""
        token = self._envelopes.seal(HopEnvelope.alive(), member.label, b"")
        try:
            (await self._hops.send(member.address, token, b"")).release()
        except Moved:
            return True
        except (ReplicaUnreachable, ReplicaSlow, EnvelopeRefused, Lost):
            return False
        return True

    def _live(self) -> list[str]:
        return [member.label for member in self.members.all()]

    def _judge_again(self) -> None:
        exchanges_tokens = self._context.exchanges_tokens
        self._context.reconfigure(self._context.proxy, self._context.forwarded, exchanges_tokens=exchanges_tokens)

    def _write_again(self) -> None:
        if self._app is not None:
            self._records.write_again(self._app.sessions.remembered())

    def _forget_session(self, key: str) -> None:
        if self._app is not None:
            self._app.sessions.forget(key)

    def _end_session(self, listener: Listener) -> None:
        assert self._app is not None
        if isinstance(listener, Session):
            self._app.sessions.end(listener)


@asynccontextmanager
async def joined(
    settings: Callable[[], Settings],
    context: TransportContext,
    gateway: SharedGateway,
    identity: Identity,
    reload: Callable[[], None],
    oauth: SharedOAuth,
    find_logins: FindLogins,
    run: RunGateway,
) -> AsyncIterator[Replica]:
    """A replica of the cluster that `settings` name, which joins once it serves HTTP. Raises OSError.

    `reload` has the configuration read again; `find_logins` finds the logins of an upstream; `run` runs
    another gateway in this process. Closes the store of `oauth` in the end.
    """
    tls = _client_tls(settings().cluster.tls)
    store = oauth.store
    try:
        async with anyio.create_task_group() as tasks:
            with closing(Hops(context.metrics, tls)) as hops, closing(oauth.renewals):
                yield Replica(settings, store, context, gateway, identity, tasks, hops, reload, oauth, find_logins, run)
            tasks.cancel_scope.cancel()
    finally:
        await store.close()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _server_tls(tls: ClusterTls) -> ssl.SSLContext | None:
    """None for plain HTTP. Replicas without a certificate of `ca` are refused. Raises OSError."""
    if tls.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tls.certificate, tls.key, password="")
    return context


def _client_tls(tls: ClusterTls) -> ssl.SSLContext | None:
    """As `_server_tls`, for connections to other replicas."""
    if tls.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=tls.ca)
    context.load_cert_chain(tls.certificate, tls.key, password="")
    return context
