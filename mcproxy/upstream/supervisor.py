"""One upstream, as the rest of the gateway sees it: a handler, a state, and events.

Owns the shared link and callers' own links: one for each client session with `connection: session` (requirement R14),
for each principal with `connection: principal` (R77), or for each set of `credentials` (R39). Bounds calls and links; a
retired upstream ends with its last call (R49). Speaks no protocol: it passes calls to links.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from copy import copy
from dataclasses import replace
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from mcproxy.access.audit.grant_records import RecordGrant, unrecorded
from mcproxy.call.calls import Call, Failed, Handler, Outcome
from mcproxy.call.clients import Change
from mcproxy.call.errors import Party, Reason
from mcproxy.call.identity import Caller, ForwardedCredentials, LinkOwner, Principal, owner
from mcproxy.call.upstreams import (
    GATEWAY_CAPABILITY,
    Connected,
    Idled,
    LinkState,
    LoginAwaited,
    PushChannel,
    ServerIdentity,
    UnannouncedLists,
    UpstreamChanged,
    UpstreamEvent,
    UpstreamStatus,
)
from mcproxy.concurrency import backoff
from mcproxy.concurrency.clock import Sleep
from mcproxy.protocol.eras import HANDSHAKE_VERSIONS, Era
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, ErrorObject, InvalidMessage, parse_object
from mcproxy.protocol.methods import INPUT_CAPABILITIES, Answerer
from mcproxy.settings import Proxy, UpstreamSettings
from mcproxy.settings.access.pins import Manifest
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.connect import address, connected, transport
from mcproxy.upstream.context import EraHints, LinkContext, SessionOwner
from mcproxy.upstream.headers_command import HeadersCommand
from mcproxy.upstream.identity import identified
from mcproxy.upstream.idling import NEVER_IDLE, Idling, Recorded
from mcproxy.upstream.link import Connect, Prepare, Unreachable, task_group, unprepared
from mcproxy.upstream.oauth.authorizer import Renew
from mcproxy.upstream.oauth.logins import UpstreamLogins
from mcproxy.upstream.oauth.storage.store import GrantStore
from mcproxy.upstream.oddities import Oddities
from mcproxy.upstream.reconnecting import ReconnectingLink

LONGEST_WAIT: Final = 3600.0
"""Seconds until it is looked again how long a caller's token is valid: the clock may have been set."""
_ASKABLE: Final = frozenset(INPUT_CAPABILITIES.values())
"""Client capabilities that let an upstream ask a client for input."""


class ConnectionSlots:
    """A count of links that have an owner, with its limit: of one upstream, or of all upstreams."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken = 0

    @property
    def full(self) -> bool:
        """Whether no further link may be made."""
        return self._taken >= self.limit

    def take(self) -> None:
        """Counts one more, even beyond the limit: see `full`."""
        self._taken += 1

    def give_back(self) -> None:
        """Counts one less: the link has ended."""
        self._taken -= 1


class Supervisor:
    """Implements `call.upstreams.Upstream`. `run` owns every link; calls come from other tasks."""

    def __init__(
        self,
        spec: UpstreamSettings,
        proxy: Proxy,
        on_event: Callable[[UpstreamEvent], None],
        metrics: Metrics,
        *,
        slots: ConnectionSlots | None = None,
        gateway_id: str | None = None,
        grants: GrantStore | None = None,
        record: RecordGrant = unrecorded,
        renew: Renew | None = None,
        manifest: Manifest | None = None,
        connect: Connect = connected,
        prepare: Prepare = unprepared,
        delays: Callable[[int], float] = backoff.delay,
        clock: Callable[[], float] = time.time,
        sleep: Sleep = anyio.sleep,
    ) -> None:
        self._adopt(spec)
        self._on_event = on_event
        self._metrics = metrics
        self._slots = (
            ConnectionSlots(spec.max_connections),
            slots or ConnectionSlots(proxy.limits.max_connections_total),
        )
        self._gateway_id = gateway_id
        self._connect = connect
        self._introduce = prepare
        self._delays = delays
        self._clock = clock
        self._sleep = sleep
        self._in_flight = 0
        self._idle: anyio.Event | None = None
        """Set while no call is in flight; made by `run`."""
        self._retired = anyio.Event()
        self._grace = 0.0
        self._tasks: TaskGroup | None = None
        self._per_link: dict[str, Call] = {}
        """For each method that sets a state of the shared links, its latest call."""
        self._owned: dict[str, ReconnectingLink] = {}
        self._running: Counter[ReconnectingLink] = Counter()
        """The calls in flight on each link that ends with its callers' tokens."""
        self._hints = EraHints()
        self._handshake_link: ReconnectingLink | None = None
        self._handshake_tried = False
        self._is_called = False
        """Whether a call other than one for a list went over the shared link: the server may keep state of it."""
        self._way = spec.way
        self._address = address(spec)
        self._oddities = Oddities(spec.name, metrics)
        self.logins: UpstreamLogins | None = None
        """The logins of people and of the gateway at the upstream, with `oauth`."""
        if spec.oauth is not None and spec.url is not None:
            self.logins = UpstreamLogins(
                spec, grants, self._spawn, metrics, self._login_changed, record, clock, renew, self._oddities.note
            )
        self._headers_command = HeadersCommand(spec, self._spawn, clock=clock) if spec.headers_command else None
        self._shared_context = self._new_context()
        self._shared = self._new_link(self._shared_context, _idling(spec, proxy, manifest))
        self._counted_reconnects = 0
        if manifest is not None:
            self._hints.expected = manifest.era

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def status(self) -> UpstreamStatus:
        """A snapshot of the shared link for operators; other links show only in what they ask of clients."""
        status = self._shared.status
        return UpstreamStatus(
            self.name,
            state=status.state,
            since=status.since,
            transport=transport(self._spec),
            identity=status.identity,
            error=status.error,
            reconnects=self._shared.reconnects,
            stderr=self._shared_context.stderr.lines,
            failure=status.failure,
            way=self._way,
            is_unverified=not self._spec.tls.verify,
            address=self._address,
            takes_credentials=bool(self._spec.credentials.forward),
            asks=any(link.context.asks and link.context.owner is None for link in self._links()),
            asks_while_shared=any(link.context.asks_while_shared for link in self._links()),
            stderr_count=self._shared_context.stderr.count,
            login=None if self.logins is None else self.logins.status,
            oddities=self._oddities.sentences,
            next_attempt=self._shared.next_attempt,
        )

    async def run(self) -> None:
        """Keeps the upstream connected until cancelled, or until it is retired and its last call is over."""
        async with task_group() as self._tasks:
            for link in self._owned.values():
                self._tasks.start_soon(self._run_owned, link)
            self._tasks.start_soon(self._shared.run)
            await self._retired.wait()
            with anyio.move_on_after(self._grace):
                while self._in_flight:
                    self._idle = anyio.Event()
                    await self._idle.wait()

    async def __call__(self, call: Call) -> Outcome:
        if self._in_flight >= self._max_in_flight:
            return self._unavailable(f"busy: {self._in_flight} calls are in flight (max_in_flight)")
        self._in_flight += 1
        try:
            link = self._link_for(call)
            if link is self._shared:
                if call.row.may_ask and self._is_asked_in_handshakes(call.caller):
                    link = link if link.era is Era.HANDSHAKE else await self._handshake_capable()
                if not self._is_called:
                    self._is_called = call.row.lists is None
                if call.row.per_link:
                    await self._repeat_on_handshake_link(call)
            elif isinstance(link, Failed):
                return link
            elif self.logins is not None and self.logins.exchanges:
                return await self._call_to_its_end(link, call)
            return await link(call)
        finally:
            self._in_flight -= 1
            if not self._in_flight and self._idle is not None:
                self._idle.set()

    def restart(self) -> None:
        """Ends every connection, children included, and makes them anew at once; calls in flight fail."""
        for link in self._links():
            link.restart("restarted by an operator")
        self.retry()

    def retry(self) -> None:
        """Starts an attempt to connect now, where the next one would come later."""
        for link in self._links():
            if link.status.state is not LinkState.IDLE:
                link.connect_soon()

    def reconfigure(self, spec: UpstreamSettings) -> None:
        """Puts settings in force that differ in no key for which a new link is needed."""
        self._adopt(spec)
        self._slots[0].limit = spec.max_connections
        for link in self._links():
            link.adopt(spec)

    def _adopt(self, spec: UpstreamSettings) -> None:
        self._spec = spec
        self._max_in_flight = spec.max_in_flight
        self._one_for_all = spec.connection == "shared" and not spec.credentials.forward

    def retire(self, grace: float) -> None:
        """Publishes and connects nothing more; ends with its last call, or after `grace` seconds."""
        self._grace = grace
        self._retired.set()
        self._metrics.upstream_up.labels(self.name).set(0)
        for link in self._links():
            link.drain()

    async def forget_login(self) -> None:
        """Revokes the gateway's own grant at its authorization server, and forgets it."""
        if self.logins is not None and not self.logins.is_per_principal:
            await self.logins.forget_own()

    def release(self, owner: str) -> None:
        link = self._owned.pop(owner, None)
        if link is not None:
            link.stop()
            if self.logins is not None:
                self.logins.release(owner)

    async def _call_to_its_end(self, link: ReconnectingLink, call: Call) -> Outcome:
        """Makes a call over a link that ends with its callers' tokens: a call that runs by then ends first."""
        self._running[link] += 1
        try:
            return await link(call)
        finally:
            self._running[link] -= 1
            if not self._running[link]:
                del self._running[link]
                if link.status.state is LinkState.RETIRED:
                    link.stop()

    async def _run_with_token(self, link: ReconnectingLink, logins: UpstreamLogins) -> None:
        assert link.context.owner is not None, "only links of callers are made with callers' tokens"
        async with task_group() as tasks:
            tasks.start_soon(self._end_with_token, link.context.owner, link, logins)
            await link.run()
            tasks.cancel_scope.cancel()

    async def _end_with_token(self, owner: str, link: ReconnectingLink, logins: UpstreamLogins) -> None:
        """Releases the link of an authority once the last token of it has expired: its lists and cached reads too."""
        while (left := logins.ends(owner) - self._clock()) > 0:
            await self._sleep(min(left, LONGEST_WAIT))
        if self._owned.get(owner) is link:
            del self._owned[owner]
            logins.release(owner)
            link.retire()
            if link not in self._running:
                link.stop()

    def _links(self) -> Iterator[ReconnectingLink]:
        yield self._shared
        if self._handshake_link is not None:
            yield self._handshake_link
        yield from list(self._owned.values())

    def _link_for(self, call: Call) -> ReconnectingLink | Failed:
        if self._one_for_all and call.over is None:
            return self._shared
        own_key = owner(self._spec, call.caller)
        key = call.over or own_key
        if key is None and self._spec.credentials.forward and call.row.answerer is Answerer.UPSTREAM:
            # R39: the link that lists for all callers carries no calls; the gateway refused before, naming the header.
            return self._unavailable("its callers must bring their own credentials, and this one has not")
        if key is None:
            return self._shared
        if key in self._owned:
            if key == own_key:
                self._bring(call.caller)
            return self._owned[key]
        own = call.caller.credentials
        credentials = own if own is not None and own.key == key and self._spec.credentials.forward else None
        if credentials is None and not self._may_own(call, key):
            return self._unavailable("the session has ended, or cannot have a connection of its own")
        if self._shared.status.state is LinkState.RETIRED or self._retired.is_set():
            return self._unavailable("it is not running")
        full = next((slots for slots in self._slots if slots.full), None)
        if full is not None:
            return self._unavailable(f"all {full.limit} connections of callers' own are taken (max_connections)")
        for slots in self._slots:
            slots.take()
        is_session = credentials is None and self._spec.connection == "session"
        session = SessionOwner(call.caller.capabilities, call.listener) if is_session else None
        principal = call.caller.principal.name
        link = self._owned[key] = self._new_link(self._new_context(key, session, credentials, principal))
        self._bring(call.caller)
        if self._tasks is not None:
            self._tasks.start_soon(self._run_owned, link)
        return link

    def _bring(self, caller: Caller) -> None:
        """Exchanges the token that a caller with a link brought, if the upstream is called with exchanged tokens."""
        token = None if caller.credentials is None else caller.credentials.inbound_token
        if token is not None and self.logins is not None and self.logins.exchanges:
            self.logins.bring(token)

    def _may_own(self, call: Call, key: str) -> bool:
        """Whether `call` may make the link of `key`: its session's while the session lasts, or its principal's own."""
        if self._spec.connection == "principal":
            return owner(self._spec, call.caller) == key
        return call.listener is not None and call.caller.session == key

    def _is_asked_in_handshakes(self, caller: Caller) -> bool:
        """True if the caller speaks the handshake era and declared an input capability.

        Some servers of both eras ask for input in one of them alone.
        """
        return caller.version in HANDSHAKE_VERSIONS and not _ASKABLE.isdisjoint(caller.capabilities)

    async def _handshake_capable(self) -> ReconnectingLink:
        """The shared link for callers of the handshake era that can be asked.

        Over HTTP these callers get a second link. A child speaks one era with all callers: the stateless era, unless
        its first caller can be asked in the handshake era. Once it has been called it keeps its era, since a restart
        would lose its state.
        """
        if not (await self._shared.is_reachable() and self._may_serve_both):
            return self._shared
        if transport(self._spec) == "stdio":
            self._handshake_tried, self._hints.expected = True, Era.HANDSHAKE
            self._shared.restart("restarting it in the handshake era, which its callers speak")
            return self._shared
        if self._handshake_link is None:
            self._handshake_link = self._start_handshake_link()
        link = self._handshake_link
        if await link.is_reachable() and link.era is Era.HANDSHAKE:
            return link
        if self._shared.era is not None:
            self._handshake_tried = True
            link.stop()
        return self._shared

    @property
    def _may_serve_both(self) -> bool:
        if self._spec.era != "auto" or self._shared.era is not Era.STATELESS or self._handshake_tried:
            return False
        return not self._retired.is_set() and (transport(self._spec) != "stdio" or not self._is_called)

    def _start_handshake_link(self) -> ReconnectingLink:
        """A second shared link, in the handshake era.

        Its states are not published; the server's notifications on it are.
        """

        def publish(change: Change | PushChannel | UnannouncedLists) -> None:
            # Served lists come from the shared link, whose push channel is the one that counts for them.
            if not isinstance(change, PushChannel | UnannouncedLists):
                self._shared_context.publish(change)

        async def prepare(owner: LinkOwner, identity: ServerIdentity, send: Handler) -> None:
            self._check_no_loop(identity)
            for call in list(self._per_link.values()):
                await send(call)

        context = replace(self._shared_context, hints=EraHints(Era.HANDSHAKE), publish=publish)
        link = ReconnectingLink(
            context, self._connect, lambda _: None, delays=self._delays, clock=self._clock, prepare=prepare
        )
        if self._tasks is not None:
            self._tasks.start_soon(link.run)
        return link

    async def _repeat_on_handshake_link(self, call: Call) -> None:
        """Sends requests that set a state of a link over the second shared link too, now and whenever that comes up."""
        self._per_link[call.row.name] = call
        if self._handshake_link is not None and self._handshake_link.era is not None:
            await self._handshake_link(call)

    async def _run_owned(self, link: ReconnectingLink) -> None:
        try:
            if self.logins is not None and self.logins.exchanges:
                await self._run_with_token(link, self.logins)
            else:
                await link.run()
        finally:
            for slots in self._slots:
                slots.give_back()

    def _new_context(
        self,
        owner: LinkOwner = None,
        session: SessionOwner | None = None,
        credentials: ForwardedCredentials | None = None,
        principal: str | None = None,
    ) -> LinkContext:
        def publish(change: Change | PushChannel | UnannouncedLists) -> None:
            if owner is None or self._is_current(context, owner):
                self._publish(UpstreamChanged(self.name, owner, change))

        # A session is of the handshake era, and so is its link where the server serves both.
        hints = EraHints(Era.HANDSHAKE) if session is not None else copy(self._hints)
        if owner is None:
            hints = self._hints
        source = self._headers_command if self.logins is None else self.logins.tokens(principal, owner)
        context = LinkContext(
            self._spec,
            self._metrics,
            publish,
            owner,
            session,
            hints,
            credentials,
            source,
            oddities=self._oddities,
        )
        return context

    def _login_changed(self, principal: str, why: str | None, failure: str = "") -> None:
        """A login is awaited, failed or was made: ends links of another login, and makes those without one at once."""
        owner = Principal(principal).key if self.logins is not None and self.logins.is_per_principal else None
        if why is None:
            for link in self._links() if owner is None else filter(None, [self._owned.get(owner)]):
                link.restart("another login was made")
                link.connect_soon()
        self._publish(LoginAwaited(self.name, owner, why is not None, failure))

    def _spawn(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        assert self._tasks is not None, "links connect while it runs"
        self._tasks.start_soon(job)

    def _is_current(self, context: LinkContext, owner: str) -> bool:
        """False once it is released: its owner's next link may exist before the last notification of this one."""
        link = self._owned.get(owner)
        return link is not None and link.context is context

    def _new_link(self, context: LinkContext, idling: Idling = NEVER_IDLE) -> ReconnectingLink:
        report = self._publish if context.owner is not None else self._report_shared
        return ReconnectingLink(
            context,
            self._connect,
            report,
            delays=self._delays,
            clock=self._clock,
            prepare=self._prepare,
            idling=idling,
        )

    def _report_shared(self, event: UpstreamEvent) -> None:
        """Passes on an event of the shared link, whose state the metrics show."""
        if self._retired.is_set():
            return
        match event:
            case Connected():
                self._metrics.upstream_up.labels(self.name).set(1)
                if self._shared.reconnects > self._counted_reconnects:
                    self._counted_reconnects = self._shared.reconnects
                    self._metrics.reconnects.labels(self.name).inc()
            case Idled():
                # Nothing is wrong with it: no alarm may go off.
                self._metrics.upstream_up.labels(self.name).set(1)
            case _:
                self._metrics.upstream_up.labels(self.name).set(0)
        self._publish(event)

    def _publish(self, event: UpstreamEvent) -> None:
        """Publishes an event. Nothing once retired: another upstream may have the name by then."""
        if not self._retired.is_set():
            self._on_event(event)

    async def _prepare(self, owner: LinkOwner, identity: ServerIdentity, send: Handler) -> None:
        self._check_no_loop(identity)
        await self._introduce(self.name, owner, identity, send)

    def _check_no_loop(self, identity: ServerIdentity) -> None:
        """Raises Unreachable if this gateway is the upstream, or is behind it (requirement R15)."""
        if self._gateway_id is None or "experimental" not in identity.capabilities:
            return
        try:
            experimental = parse_object(identity.capabilities["experimental"])
        except InvalidMessage:
            return
        if GATEWAY_CAPABILITY + self._gateway_id in experimental:
            raise Unreachable("it leads back to this gateway: remove it from the configuration")

    def _unavailable(self, why: str) -> Failed:
        error = ErrorObject(INTERNAL_ERROR, f"upstream {self.name!r}: {why}")
        return Failed(error, Party.GATEWAY, Reason.UNAVAILABLE)


def _idling(spec: UpstreamSettings, proxy: Proxy, manifest: Manifest | None) -> Idling:
    """The idle settings of the shared link. One without recorded lists connects, to learn its lists."""
    recorded = None
    if manifest is not None and spec.start == "on_demand":
        info = identified(manifest.era, manifest.version, manifest.capabilities, manifest.info, manifest.instructions)
        recorded = Recorded(info, manifest.lists)
    return Idling(spec.idle_stop, proxy.bridge.park_ttl, recorded)
