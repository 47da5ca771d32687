"""One child for all replicas (`placement: one`): the replica that rendezvous hashing chooses runs it, its owner.

Every replica, the owner too, is linked to the child as to a server over HTTP; the requests go to the owner by the hop.
A second gateway answers them there, of such upstreams alone. It has no identities, no policy, no limits and no audit:
the replica that a call came to has applied them. Links follow the owner when it changes; elects nobody.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final, Protocol
from urllib.parse import quote

import anyio
from yarl import URL

from mcproxy.access.identity import Identified
from mcproxy.call.calls import Call, Outcome
from mcproxy.call.upstreams import SERVING, ServerIdentity, UpstreamStatus
from mcproxy.cluster.envelope import ALIVE, Envelopes, HopEnvelope
from mcproxy.cluster.homes import answered_label
from mcproxy.cluster.hop import (
    MOVED,
    OUTCOME_FIELD,
    EnvelopeRefused,
    Hops,
    Lost,
    Moved,
    ReplicaSlow,
    ReplicaUnreachable,
)
from mcproxy.cluster.members import HEARTBEATS, Member
from mcproxy.downstream.front.app import HttpApp, anonymous
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.responses import Refusal, refused
from mcproxy.http import server as http
from mcproxy.http.client import ClientResponse, ConnectFailed, ConnectionBroken, ResponseTooLarge
from mcproxy.settings import Access, Proxy, Settings, UpstreamSettings
from mcproxy.settings.access.authentication import Authentication
from mcproxy.settings.tracing import TracingSettings
from mcproxy.settings.upstreams.upstream import Content, NameFilter, ResultLimit, ToolFilter, UpstreamCache
from mcproxy.upstream import connect
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.link import Link, Unreachable

ONE: Final = "one"
AGAIN: Final = 0.2
"""Seconds until a replica is asked again whether it runs an upstream: it may be starting, or know other members."""
MAX_REFUSALS: Final = 5
"""Refused envelopes after which an attempt to reach the owner fails: one that was restarted is known soon."""
MAX_REASON: Final = 4096
"""Bytes that are read of why an upstream does not run at its owner."""
NOT_RUNNING: Final = 502
"""The status by which an owner says that an upstream of its own cannot be reached (RFC 9110, section 15.6.3)."""


class OwnerGateway(Protocol):
    """The gateway that serves what this replica owns (`app.App`)."""

    @property
    def context(self) -> TransportContext:
        """What takes the calls of other replicas."""

    def reconfigure(self, settings: Settings) -> object:
        """Starts and retires upstreams by difference."""

    def statuses(self) -> list[UpstreamStatus]:
        """The state of each upstream that it runs."""


class PlacingMembers(Protocol):
    """What is needed of the replicas (`members.Members`)."""

    @property
    def are_known(self) -> bool:
        """As `Members.are_known`."""

    @property
    def own(self) -> Member:
        """As `Members.own`."""

    def owner(self, key: str, placed: str = "") -> Member | None:
        """As `Members.owner`."""

    def lose(self, label: str) -> None:
        """As `Members.lose`."""


RunGateway = Callable[[Settings], AbstractAsyncContextManager[OwnerGateway]]


class Placement:
    """Implements `Connect` by `connected`. `settings` tells those in force; `run` runs a gateway in this process."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        members: PlacingMembers,
        envelopes: Envelopes,
        hops: Hops,
        run: RunGateway,
    ) -> None:
        self._settings = settings
        self._members = members
        self._envelopes = envelopes
        self._hops = hops
        self._run = run
        self._gateway: OwnerGateway | None = None
        self._app: HttpApp | None = None
        self._served: Settings | None = None
        self._is_serving = anyio.Event()
        self._is_draining = False
        self._drained = anyio.Event()
        self._links: dict[PlacedLink, str] = {}
        """With the name of their upstream."""

    @asynccontextmanager
    async def connected(self, context: LinkContext) -> AsyncIterator[Link]:
        """A link to an upstream: to the replica that runs it, if that is one for all. Raises Unreachable, Rejected."""
        spec = context.spec
        if not _is_placed(spec):
            async with connect.connected(context) as link:
                yield link
            return
        context.has_moved = False
        await self._is_serving.wait()
        async with AsyncExitStack() as stack:
            link, connections = await self._owner_link(context, stack)
            placed = PlacedLink(link, connections.owner, connections.moved, self._settings().proxy.shutdown_grace)
            self._links[placed] = spec.name
            try:
                yield placed
            finally:
                del self._links[placed]
                context.has_moved = connections.moved.is_set()

    async def _owner_link(self, context: LinkContext, stack: AsyncExitStack) -> tuple[Link, OwnerConnections]:
        """A link to the replica that runs an upstream; to the next one where it ceases to while the link is made."""
        spec = context.spec
        path = f"{self._settings().proxy.paths.servers}/{quote(spec.name, safe='')}/mcp"
        refusals = 0
        while True:
            owner = await self._found_owner(spec.name)
            connections = OwnerConnections(self._envelopes, self._hops, owner, spec.name, self._caller(context))
            over_http = {"command": None, "args": (), "type": "http", "url": f"{owner.address}{path}", "era": "auto"}
            hop = replace(context, spec=spec.model_copy(update=over_http), connections=connections)
            try:
                return await stack.enter_async_context(connect.connected(hop)), connections
            except Unreachable:
                refusals += connections.is_refused
                if not connections.moved.is_set() or refusals == MAX_REFUSALS:
                    raise
            await anyio.sleep(AGAIN)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Runs what is placed at this replica for as long as it is entered."""
        self._served = self._owned()
        async with self._run(self._served) as self._gateway, anyio.create_task_group() as tasks:
            self._app = HttpApp(self._gateway.context, anonymous)
            tasks.start_soon(self._app.run)
            tasks.start_soon(self._keep_settled)
            self._is_serving.set()
            try:
                yield
            finally:
                if self._is_draining:
                    with anyio.CancelScope(shield=True):
                        await self._drained.wait()
                self._app.close()
                tasks.cancel_scope.cancel()

    def settle(self) -> None:
        """Starts what this replica owns now, retires what it owned, and has links follow. Never blocks."""
        owned = self._owned()
        if self._gateway is not None and owned != self._served:
            self._served = owned
            self._gateway.reconfigure(owned)
        for link, name in list(self._links.items()):
            if self._owner(name).label != link.owner:
                link.move()

    async def drain(self) -> None:
        """Lets calls of other replicas end within `shutdown_grace`; they have found another owner by then."""
        self._is_draining = True
        self.settle()
        if self._app is not None:
            await self._app.drain()
        self._drained.set()

    async def serve(self, request: http.Request, envelope: HopEnvelope) -> http.Answered:
        """Answers a request for a placed upstream. What another replica should run is refused with 421."""
        self.settle()
        runs = self._served is not None and any(spec.name == envelope.placed for spec in self._served.upstreams)
        # An answer of a client belongs to a call that still runs here, whoever the owner is by now.
        if self._app is None or not (runs or answered_label(request.received or b"") is not None):
            return http.Response(MOVED, b"", {OUTCOME_FIELD.title(): "elsewhere"})
        if envelope.target == ALIVE:
            return self._state(envelope.placed)
        try:
            admitted = self._app.admit(request, Identified(envelope.principal, Authentication()), None)
        except Refusal as refusal:
            return refused(refusal)
        return await self._app.handle(request, admitted)

    async def _keep_settled(self) -> None:
        while True:
            self.settle()
            await anyio.sleep(self._settings().cluster.member_ttl / HEARTBEATS)

    def _owner(self, name: str) -> Member:
        return self._members.owner(f"upstream {name}", name) or self._members.own

    def _owned(self) -> Settings:
        """The settings of the gateway that serves what this replica owns; nothing before it knows who is there."""
        settings, own = self._settings(), self._members.own.label
        runs_any = self._members.are_known
        owned = [spec for spec in placed_upstreams(settings) if runs_any and self._owner(spec.name).label == own]
        return Settings(proxy=_for_replicas(settings.proxy, owned), access=Access(), upstreams=tuple(map(_bare, owned)))

    def _caller(self, context: LinkContext) -> str:
        """The principal that the owner takes the callers of a link for.

        Where several principals may call, another one for each replica: then the owner knows that what the child says
        of no call is for none of them (R77).
        """
        if context.owner is not None:
            return context.owner
        is_one = not self._settings().access.authentication.required
        return "replicas" if is_one else f"replica {self._members.own.label}"

    async def _found_owner(self, name: str) -> Member:
        """The replica that runs an upstream, once it does. Raises Unreachable with the reason why it cannot."""
        refusals = 0
        while True:
            owner = self._owner(name)
            token = self._envelopes.seal(HopEnvelope.alive(name), owner.label, b"")
            try:
                response = await self._hops.send(owner.address, token, b"")
            except ReplicaUnreachable:
                if owner.label != self._members.own.label:
                    self._members.lose(owner.label)
            except EnvelopeRefused as refusal:
                if refusal.is_replaced:
                    self._members.lose(owner.label)
                refusals += 1
                if refusals == MAX_REFUSALS:
                    raise Unreachable(str(refusal)) from refusal
            except (Moved, ReplicaSlow, Lost):
                pass
            else:
                if response.head.status != NOT_RUNNING:
                    response.release()
                    return owner
                reason = await _read(response)
                if reason:
                    raise Unreachable(reason)
            await anyio.sleep(AGAIN)

    def _state(self, name: str) -> http.Response:
        """Whether an upstream of this replica can be used: 204, or why not; without text while it starts."""
        assert self._gateway is not None
        for status in self._gateway.statuses():
            if status.name == name and status.state not in SERVING:
                return http.Response(NOT_RUNNING, (status.error or "").encode())
        return http.Response(204, b"")


class PlacedLink:
    """Implements `Link`: a link to an upstream at its owner, which ends with its last call once `moved` is set.

    `grace`: seconds that its calls have then.
    """

    def __init__(self, link: Link, owner: str, moved: anyio.Event, grace: float) -> None:
        self._link = link
        self.owner: Final = owner
        self._moved = moved
        self._grace = grace
        self._in_flight = 0
        self._idle = anyio.Event()

    @property
    def identity(self) -> ServerIdentity:
        return self._link.identity

    @property
    def is_closed(self) -> bool:
        return self._moved.is_set() or self._link.is_closed

    def move(self) -> None:
        """Takes no more calls: another replica is the owner."""
        self._moved.set()

    async def __call__(self, call: Call) -> Outcome:
        self._in_flight += 1
        try:
            return await self._link(call)
        finally:
            self._in_flight -= 1
            if self._moved.is_set() and not self._in_flight:
                self._idle.set()

    async def wait_closed(self) -> str:
        reason = "another replica runs it now"

        async def ended() -> None:
            nonlocal reason
            reason = await self._link.wait_closed()
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ended)
            await self._moved.wait()
            if self._in_flight:
                with anyio.move_on_after(self._grace):
                    await self._idle.wait()
            tasks.cancel_scope.cancel()
        return reason


class OwnerConnections:
    """Implements `HttpConnections`: the requests of one link, each in an envelope for the owner of its upstream."""

    def __init__(self, envelopes: Envelopes, hops: Hops, owner: Member, upstream: str, caller: str) -> None:
        self._envelopes = envelopes
        self._hops = hops
        self._owner = owner
        self._upstream = upstream
        self._caller = caller
        self.moved: Final = anyio.Event()
        """Set once another replica is, or is to be, the owner."""
        self.is_refused = False
        """Whether the owner refused an envelope."""

    @property
    def owner(self) -> str:
        """The label of the replica that the requests go to."""
        return self._owner.label

    async def request(self, method: str, url: URL, head: bytes, body: bytes | None = None) -> ClientResponse:
        """Raises ConnectFailed where nothing was executed, and ConnectionBroken."""
        fields = [_field(line) for line in head.splitlines()[1:] if line]
        envelope = HopEnvelope(method, url.raw_path, fields, self._caller, placed=self._upstream)
        sent = body or b""
        try:
            return await self._hops.send(
                self._owner.address, self._envelopes.seal(envelope, self._owner.label, sent), sent
            )
        except EnvelopeRefused as refusal:
            self.is_refused = True
            self.moved.set()
            raise ConnectFailed from OSError(str(refusal))
        except (ReplicaUnreachable, Moved):
            self.moved.set()
            raise ConnectFailed from OSError("the replica that ran it does so no more")
        except ReplicaSlow:
            raise ConnectFailed from TimeoutError()
        except Lost as error:
            self.moved.set()
            raise ConnectionBroken("the replica that ran it ended before it answered") from error


def placed_upstreams(settings: Settings) -> list[UpstreamSettings]:
    """The upstreams of which one replica runs the child for all."""
    return [spec for spec in settings.upstreams if spec.enabled and _is_placed(spec)]


def _is_placed(spec: UpstreamSettings) -> bool:
    return spec.placement == ONE and spec.command is not None


def _bare(spec: UpstreamSettings) -> UpstreamSettings:
    """An upstream as its owner serves it to replicas, each of which filters, renames, caches and bounds by itself."""
    return spec.model_copy(
        update={
            "placement": "each",
            "tools": ToolFilter(),
            "resources": NameFilter(),
            "prompts": NameFilter(),
            "cache": UpstreamCache(),
            "content": Content(),
            "results": ResultLimit(),
            "max_in_flight_per_principal": spec.max_in_flight,
        }
    )


def _for_replicas(proxy: Proxy, owned: list[UpstreamSettings]) -> Proxy:
    """The settings of a gateway whose callers are replicas: one of them may have all the calls that there may be."""
    limits = proxy.limits
    most = {
        "max_calls_per_session": max([limits.max_calls_per_session, *(spec.max_in_flight for spec in owned)]),
        "max_subscriptions_per_session": limits.max_subscriptions_per_principal,
    }
    return proxy.model_copy(update={"limits": limits.model_copy(update=most), "tracing": TracingSettings()})


def _field(line: bytes) -> tuple[str, str]:
    name, _, value = line.decode("latin-1").partition(":")
    return name.lower(), value.strip()


async def _read(response: ClientResponse) -> str:
    """A short text; empty where it breaks off, or is longer than MAX_REASON bytes."""
    try:
        return (await response.read(MAX_REASON)).decode(errors="replace")
    except (ResponseTooLarge, ConnectionBroken):
        response.close()
        return ""
