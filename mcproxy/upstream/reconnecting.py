"""One link to an upstream, reconnected for ever: its states as a table, growing delays, and retries of calls (R3, R4).

A call that needs the link starts one attempt at once, shared by all calls that wait. A call is sent a second time only
if the first provably had no effect, or if repeating it is harmless. Knows no transport and no era.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from functools import partial
from typing import Final

import anyio
import msgspec
import structlog

from mcproxy.call.calls import Call, Failed, Handler, Outcome
from mcproxy.call.errors import Party, Reason
from mcproxy.call.identity import LinkOwner
from mcproxy.call.upstreams import (
    Connected,
    Disconnected,
    Idled,
    LinkFailure,
    LinkState,
    Retired,
    ServerIdentity,
    UpstreamEvent,
)
from mcproxy.concurrency.backoff import LONGEST, delay_after_refusals
from mcproxy.pending_requests import PeerGone
from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, ErrorObject
from mcproxy.settings import UpstreamSettings
from mcproxy.telemetry.logs import about, shortened
from mcproxy.telemetry.trace_context import NOTHING, departing
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.idling import NEVER_IDLE, Idling, Recorded, UsedLink
from mcproxy.upstream.link import Connect, Link, LoginNeeded, NotAccepted, Rejected, Unreachable, is_lasting

log = structlog.get_logger()

MAX_QUOTED: Final = 2000
"""Characters of a loss's reason that the reasons of later failures quote."""
MAX_SHORT_LIVED: Final = 1
"""Short-lived connections in a row after which calls wait for the backoff too."""
FULL_ATTEMPT: Final = 4
"""Of the attempts at a server that refuses for good, each so many tries all transports and eras."""
PATIENCE: Final = 2.0
"""Seconds for which calls wait while no connection is made because the last ones ended at once."""


class _Attempt(msgspec.Struct):
    """The next attempt to connect, or the current one; all calls that wait for it share its outcome."""

    wanted: anyio.Event = msgspec.field(default_factory=anyio.Event)
    done: anyio.Event = msgspec.field(default_factory=anyio.Event)
    link: Link | None = None
    error: str | None = None
    """The reason why there is no link, once known."""

    def settle(self, outcome: Link | str) -> None:
        """`outcome` is the link, or the reason why there is none."""
        if isinstance(outcome, str):
            self.error = outcome
        else:
            self.link = outcome
        self.done.set()


class LinkEvent(Enum):
    """An event that moves a link from one state to another."""

    CONNECTED = "a handshake was done"
    FAILED = "an attempt to connect failed"
    LOST = "the connection ended"
    RESTARTED = "the connection is ended on purpose, to be made anew"
    IDLED = "nothing needs a connection"
    WANTED = "a call needs a connection"
    RETIRING = "the connection that there is is to be the last"
    STOPPED = "the link is wanted no more"


TRANSITIONS: Final[Mapping[LinkState, Mapping[LinkEvent, LinkState]]] = {
    LinkState.CONNECTING: {
        LinkEvent.CONNECTED: LinkState.READY,
        LinkEvent.FAILED: LinkState.BACKING_OFF,
        LinkEvent.IDLED: LinkState.IDLE,
        LinkEvent.STOPPED: LinkState.RETIRED,
    },
    LinkState.READY: {
        LinkEvent.LOST: LinkState.BACKING_OFF,
        LinkEvent.RESTARTED: LinkState.BACKING_OFF,
        LinkEvent.IDLED: LinkState.IDLE,
        LinkEvent.RETIRING: LinkState.DRAINING,
        LinkEvent.STOPPED: LinkState.RETIRED,
    },
    LinkState.IDLE: {
        LinkEvent.WANTED: LinkState.CONNECTING,
        LinkEvent.STOPPED: LinkState.RETIRED,
    },
    LinkState.BACKING_OFF: {
        LinkEvent.CONNECTED: LinkState.READY,
        LinkEvent.FAILED: LinkState.BACKING_OFF,
        LinkEvent.STOPPED: LinkState.RETIRED,
    },
    LinkState.DRAINING: {
        LinkEvent.LOST: LinkState.RETIRED,
        LinkEvent.STOPPED: LinkState.RETIRED,
    },
}


class LinkStatus(msgspec.Struct, frozen=True):
    """The state of a link, and facts for operators. `since` is a Unix time in seconds."""

    state: LinkState
    since: float
    identity: ServerIdentity | None = None
    """The server that it is connected to, or was last."""
    error: str | None = None
    failure: LinkFailure | None = None


class ReconnectingLink:
    """`run` owns the link: enters it, waits for its end and leaves it, in one task (requirement R18).

    `prepare` is called with each new link before any call goes over it: with the owner, the server's identity, and a
    handler that sends over that link and never raises. It raises Unreachable if the link must not be used.
    """

    def __init__(
        self,
        context: LinkContext,
        connect: Connect,
        on_event: Callable[[UpstreamEvent], None],
        *,
        delays: Callable[[int], float],
        clock: Callable[[], float],
        prepare: Callable[[LinkOwner, ServerIdentity, Handler], Awaitable[None]],
        idling: Idling = NEVER_IDLE,
        delay_after_refusals: Callable[[int], float] = delay_after_refusals,
    ) -> None:
        self._delay_after_refusals = delay_after_refusals
        self.context: Final = context
        self._connect = connect
        self._on_event = on_event
        self._delays = delays
        self._clock = clock
        self._prepare = prepare
        self._idling = idling
        self._name = context.spec.name
        self._owner = context.owner
        self._run_scope = anyio.CancelScope()
        self._attempt_scope = anyio.CancelScope()
        self._link: Link | None = None
        self._attempt = _Attempt()
        self._connections = 0
        self.reconnects = 0
        """How often a connection that was lost was made again."""
        self._is_first = True
        """Whether the next connection follows no loss: it is the first, or the link was idle."""
        self._is_last = False
        """Whether the next connection is the last: it is drained as soon as it is made."""
        self._loss: str | None = None
        """The reason why the last connection was lost, until there is another."""
        self._paused_until = -math.inf
        self._was_useful = False
        """Whether the connection answered a call of a tool: some servers end after each, and are no crash loop."""
        self._refusals = 0
        """Attempts in a row that failed for a reason that lasts (`is_lasting`)."""
        self.next_attempt: float | None = None
        """The Unix time of the next attempt, while it is waited for."""
        self._login_why = ""
        """The reason why a person must log in, from the last attempt to connect."""
        self.status = LinkStatus(LinkState.CONNECTING, clock())

    @property
    def era(self) -> Era | None:
        """The era of the connection; None while there is none."""
        return self.status.identity.era if self._link is not None and self.status.identity else None

    async def is_reachable(self) -> bool:
        """Whether there is a connection, after at most one attempt to make one."""
        try:
            await self._connected_link()
        except Unreachable:
            return False
        return True

    def restart(self, reason: str) -> None:
        """Ends the connection, so that the next call makes another."""
        if self.status.state is LinkState.READY:
            self._go_down(LinkEvent.RESTARTED, reason)
            self._attempt_scope.cancel()

    def connect_soon(self) -> None:
        """Starts an attempt to connect now, unless there is a connection or an attempt."""
        if self._link is None:
            self._attempt.wanted.set()

    def adopt(self, spec: UpstreamSettings) -> None:
        """Puts other settings in force, over the same connection."""
        self.context.adopt(spec)

    def drain(self) -> None:
        """Makes no further connection than the present one, or the one that calls wait for; without one, stops."""
        self._is_last = True
        if self.status.state is LinkState.READY:
            self._enter(LinkEvent.RETIRING, self.status.identity)
        elif not self._attempt.wanted.is_set():
            self.stop()

    def retire(self) -> None:
        """Publishes `Retired`, and takes no further call; those that run keep their connection until `stop`."""
        self._retire(LinkEvent.STOPPED)

    def stop(self) -> None:
        """Ends `run`, and the connection with it. `Retired` is published before the connection is torn down."""
        self._run_scope.cancel()
        self._retire(LinkEvent.STOPPED)

    async def run(self) -> None:
        """Keeps the link connected until stopped or cancelled, or until a connection that is drained has ended."""
        # The link outlives the call that made it, and does not belong to that call's trace.
        about.set(None)
        departing.set(NOTHING)
        try:
            with self._run_scope:
                await self._keep_connected()
        finally:
            self._retire(LinkEvent.STOPPED)

    async def _keep_connected(self) -> None:
        failures = short_lived = 0
        if self._idling.starts_idle:
            self._go_idle(self._idling.recorded)
        while True:
            if self.status.state is LinkState.IDLE:
                failures = short_lived = 0
                await self._attempt.wanted.wait()
                self._enter(LinkEvent.WANTED, self.status.identity)
            started, connections = anyio.current_time(), self._connections
            self._was_useful = False
            await self._connect_once()
            if self.status.state is LinkState.RETIRED or self._is_last:
                return
            if self.status.state is LinkState.IDLE:
                continue
            # A link that lasted, or that follows its server, was no failure; after short-lived ones the delay grows.
            is_well = self.context.has_moved or self._was_useful or anyio.current_time() - started > LONGEST
            failures = 0 if is_well else failures + 1
            short_lived = short_lived + 1 if failures and self._connections > connections else 0
            seconds = max(self._delays(failures), self._delay_after_refusals(self._refusals))
            self.next_attempt = self._clock() + seconds
            if short_lived > MAX_SHORT_LIVED:
                # Else each call, and each fetch of a list after connecting, would make and lose another connection.
                await self._pause(seconds)
            else:
                with anyio.move_on_after(seconds):
                    await self._attempt.wanted.wait()
            self.next_attempt = None

    async def _pause(self, seconds: float) -> None:
        """Makes no connection for so long, whoever wants one. Calls do not wait for the end of a long pause."""
        self._paused_until = anyio.current_time() + seconds
        if (why := self._why_paused()) is not None:
            self._settle_attempt(why)
        await anyio.sleep(seconds)

    def _why_paused(self) -> str | None:
        """The error for calls during a pause that is too long to wait for; None if there is none."""
        left = self._paused_until - anyio.current_time()
        if left <= PATIENCE:
            return None
        why = f"it ends again and again soon after it was connected, and is tried again in {math.ceil(left)} s"
        return why if self._loss is None else self._with_earlier_causes(why)

    async def _connect_once(self) -> None:
        """One attempt to connect and, if it succeeds, the life of the connection."""
        lasts, refusals = False, self._refusals
        is_routine = refusals > 0 and not self._attempt.wanted.is_set()
        self.context.hints.only_initialize = is_routine and refusals % FULL_ATTEMPT != 0
        try:
            error, failure = await self._connect_and_wait(), LinkFailure.TIMEOUT
            lasts = error is not None and self.context.spec.url is not None
        except Unreachable as unreachable:
            lasts = is_lasting(unreachable)
            error, failure = shortened(self.context.redact(str(unreachable))), LinkFailure.UNREACHABLE
        except LoginNeeded as needed:
            error, failure = shortened(self.context.redact(str(needed))), LinkFailure.LOGIN
            self._login_why = needed.why
        except Rejected as rejected:
            lasts = is_lasting(rejected)
            error, failure = shortened(self.context.redact(str(rejected))), LinkFailure.REJECTED
        except Exception as bug:
            log.exception("upstream failed unexpectedly", upstream=self._name)
            error, failure = f"an internal error: {type(bug).__name__}", LinkFailure.INTERNAL
        self._refusals = refusals + 1 if lasts else 0
        if error is not None and self.status.state is not LinkState.IDLE:
            error = self._with_earlier_causes(error)
            self._settle_attempt(error)
            was_up = LinkEvent.LOST in TRANSITIONS.get(self.status.state, {})
            self._go_down(LinkEvent.LOST if was_up else LinkEvent.FAILED, error, failure)

    async def _connect_and_wait(self) -> str | None:
        """Returns None once a connection has ended, else the reason why none was made in time."""
        timeout = self.context.spec.timeouts.connect
        self.context.awaited = ""
        connected = False
        with anyio.CancelScope(deadline=anyio.current_time() + timeout) as self._attempt_scope:
            async with self._connect(self.context) as link:
                await anyio.lowlevel.checkpoint_if_cancelled()
                self._attempt_scope.deadline, connected = math.inf, True
                used = UsedLink(link, self._idling) if self._idling.stop_after else None
                try:
                    with self.context.publishing_afterwards():
                        await self._prepare(self._owner, link.identity, partial(self._send, link))
                        self._go_up(used or link)
                    if used is not None:
                        await self._serve_while_used(used)
                    else:
                        self._go_down(LinkEvent.LOST, await link.wait_closed(), LinkFailure.LOST)
                finally:
                    self._link = None
        if connected:
            return None
        missing = f"answer to {self.context.awaited}" if self.context.awaited else "connection"
        return f"no {missing} after {timeout:g} s (timeouts.connect)"

    async def _serve_while_used(self, link: UsedLink) -> None:
        """Returns once the connection has ended, or was idle for long enough."""
        while True:
            may_idle = LinkEvent.IDLED in TRANSITIONS[self.status.state]
            with anyio.move_on_after(link.seconds_left() if may_idle else math.inf):
                self._go_down(LinkEvent.LOST, await link.wait_closed(), LinkFailure.LOST)
                return
            # Decided and done without an await in between: a call from now on waits for the next connection.
            if link.seconds_left() <= 0 and LinkEvent.IDLED in TRANSITIONS[self.status.state]:
                self._go_idle()
                return

    def _stray_output(self) -> str:
        stray = self.context.stray_output
        return f'; its stdout begins with "{stray}", which is no JSON-RPC message' if stray else ""

    def _with_earlier_causes(self, error: str) -> str:
        """The reason of a failed attempt, with that of the loss before it: kept until the next success (R85)."""
        error += self._stray_output()
        if self._loss is None or self._loss in error:
            return error
        return f"{error}; before that: {self._loss}"

    def _what_lasts(self) -> str:
        """The reason why there is no connection yet, though none has failed since it was wanted."""
        if not self.context.awaited and self._loss is not None:
            return self._with_earlier_causes("it is not connected again yet")
        method = self.context.awaited
        waiting = "it is still connecting" + (f", and waits for the answer to {method}" if method else "")
        return f"{waiting}{self._stray_output()}"

    def _settle_attempt(self, outcome: Link | str) -> None:
        attempt, self._attempt = self._attempt, _Attempt()
        attempt.settle(outcome)

    def _go_up(self, link: Link) -> None:
        self._link = link
        self._connections += 1
        self.reconnects += not self._is_first
        self._is_first = False
        self._loss, self.context.awaited = None, ""
        self._enter(LinkEvent.CONNECTED, link.identity)
        self._settle_attempt(link)
        log.info("upstream connected", upstream=self._name, version=link.identity.version, own=self._owner is not None)
        if link.identity.is_cut:
            log.warning(
                "it says more of itself than is told to clients: the largest parts are left out", upstream=self._name
            )
        self._on_event(Connected(self._name, self._owner, link.identity))
        if self._is_last:
            self._enter(LinkEvent.RETIRING, link.identity)

    def _go_idle(self, recorded: Recorded | None = None) -> None:
        """Reports that there is no connection until a call needs one; `recorded` if there has never been one."""
        self._link, self._is_first = None, True
        identity, lists = self.status.identity, {}
        if recorded is not None:
            identity, lists = recorded.identity, dict(recorded.lists)
        self._enter(LinkEvent.IDLED, identity)
        log.info("upstream idle", upstream=self._name, own=self._owner is not None)
        self._on_event(Idled(self._name, self._owner, None if recorded is None else identity, lists))

    def _go_down(self, event: LinkEvent, reason: str, failure: LinkFailure | None = None) -> None:
        """Reports that there is no connection, once for each change of state or reason."""
        self._link = None
        if failure is not None:
            self.context.metrics.upstream_troubles.labels(self._name, failure.value).inc()
        if event is LinkEvent.LOST:
            self._loss = reason[:MAX_QUOTED]
        before = self.status
        if before.state is LinkState.DRAINING:
            self._retire(event)
        if self.status.state is LinkState.RETIRED:
            return
        self._enter(event, before.identity, reason, failure)
        if before.state is self.status.state and before.error == reason:
            return
        log.warning("upstream unavailable", upstream=self._name, reason=reason, own=self._owner is not None)
        if before.state is not self.status.state:
            self._on_event(Disconnected(self._name, self._owner, reason))

    def _retire(self, event: LinkEvent) -> None:
        """Publishes once that the link has ended, and nothing after that."""
        self._link = None
        self._attempt.settle("it has been stopped")
        if self.status.state is not LinkState.RETIRED:
            self._enter(event)
            self._on_event(Retired(self._name, self._owner))

    def _enter(
        self,
        event: LinkEvent,
        identity: ServerIdentity | None = None,
        error: str | None = None,
        failure: LinkFailure | None = None,
    ) -> None:
        """Enters a state; `since` changes only if the state does."""
        before = self.status
        state = TRANSITIONS[before.state][event]
        since = before.since if state is before.state else self._clock()
        self.status = LinkStatus(state, since, identity, error, failure)

    async def __call__(self, call: Call) -> Outcome:
        started = time.monotonic()
        link = self._link
        try:
            if link is None or link.is_closed:
                link = await self._connected_link(hurries=call.hurries)
            try:
                outcome = await link(call)
            except NotAccepted:
                outcome = await (await self._connected_link())(call)
            except PeerGone:
                if not (call.row.safe_to_repeat or call.repeatable):
                    raise
                outcome = await (await self._connected_link())(call)
        except Unreachable as error:
            if self.status.failure is LinkFailure.LOGIN:
                return self.context.login_needed(f": {error}", self._login_why)
            return self._failed(f"not connected: {error} (after {time.monotonic() - started:.1f} s)")
        except NotAccepted as error:
            return self._failed(f"{call.method} could not be sent: {error}")
        except PeerGone as error:
            return self._failed(f"{call.method}: the connection was lost, and the outcome is unknown: {error}")
        else:
            self._was_useful = self._was_useful or call.row.may_fail
            return outcome

    async def _send(self, link: Link, call: Call) -> Outcome:
        """Sends a call over a link that no other call uses yet."""
        try:
            return await link(call)
        except (NotAccepted, PeerGone) as error:
            return self._failed(f"{call.method}: {error}")

    async def _connected_link(self, *, hurries: bool = True) -> Link:
        """The link, after at most one attempt to connect that all waiters share. Raises Unreachable.

        Without `hurries`, no attempt is made for it at a server that refuses for good.
        """
        if self._link is not None and not self._link.is_closed:
            return self._link
        if (why := self._why_paused()) is not None:
            raise Unreachable(why)
        if not hurries and self._refusals and self.next_attempt is not None:
            raise Unreachable(self.status.error or self._what_lasts())
        attempt = self._attempt
        attempt.wanted.set()
        with anyio.move_on_after(self.context.spec.timeouts.connect):
            await attempt.done.wait()
        if attempt.link is None:
            raise Unreachable(attempt.error or self._what_lasts())
        return attempt.link

    def _failed(self, why: str) -> Failed:
        sentence = f"upstream {self._name!r}: {self.context.redact(why)}"
        return Failed(ErrorObject(INTERNAL_ERROR, sentence), Party.UPSTREAM, Reason.UNAVAILABLE)
