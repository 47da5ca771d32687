"""One link, kept connected: made, watched, made again with growing delays, and at once when a call needs it (R3).

A call is sent a second time only where the first provably had no effect, or where repeating has none (R4). Knows no
transport and no era.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import anyio
import structlog

from mcproxy.call.calls import Call, Failed, Outcome
from mcproxy.call.errors import Party, Reason
from mcproxy.call.upstreams import (
    Connected,
    Disconnected,
    LinkFailure,
    LinkState,
    Retired,
    ServerIdentity,
    UpstreamEvent,
)
from mcproxy.concurrency.backoff import LONGEST
from mcproxy.pending_requests import PeerGone
from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, ErrorObject
from mcproxy.settings import UpstreamSettings
from mcproxy.telemetry.logs import about
from mcproxy.telemetry.trace_context import NOTHING, departing
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.link import Connect, Link, NotAccepted, Rejected, Unreachable

log = structlog.get_logger()


@dataclass(slots=True)
class _Attempt:
    """The next attempt to connect, or the one under way: what whoever waits for it shares."""

    wanted: anyio.Event = field(default_factory=anyio.Event)
    done: anyio.Event = field(default_factory=anyio.Event)
    link: Link | None = None
    error: str | None = None
    """Why there is no link, once that is known."""

    def settle(self, outcome: Link | str) -> None:
        if isinstance(outcome, str):
            self.error = outcome
        else:
            self.link = outcome
        self.done.set()


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """Where a link stands. `since` is a Unix time in seconds."""

    state: LinkState
    since: float
    identity: ServerIdentity | None = None
    error: str | None = None
    failure: LinkFailure | None = None


class ReconnectingLink:
    """`run` owns the link: enters it, waits for its end and leaves it, in one task (requirement R18)."""

    def __init__(
        self,
        context: LinkContext,
        connect: Connect,
        on_event: Callable[[UpstreamEvent], None],
        *,
        delays: Callable[[int], float],
        clock: Callable[[], float],
        check: Callable[[ServerIdentity], None],
    ) -> None:
        self._context = context
        self._connect = connect
        self._on_event = on_event
        self._delays = delays
        self._clock = clock
        self._check = check
        self._name = context.spec.name
        self._owner = context.owner
        self._scope = anyio.CancelScope()
        self._attempt_scope = anyio.CancelScope()
        self._restart_reason: str | None = None
        self._link: Link | None = None
        self._attempt = _Attempt()
        self._connections = 0
        self._last = False
        self.status = LinkStatus(LinkState.CONNECTING, clock())

    @property
    def reconnects(self) -> int:
        return max(0, self._connections - 1)

    @property
    def era(self) -> Era | None:
        """What is spoken over the link; None while there is none."""
        return self.status.identity.era if self._link is not None and self.status.identity else None

    @property
    def context(self) -> LinkContext:
        return self._context

    async def is_reachable(self) -> bool:
        """Whether there is a link, after at most one attempt to connect."""
        try:
            await self._ready()
        except Unreachable:
            return False
        return True

    def restart(self, why: str) -> None:
        """Ends the link as it is, so that the next call makes another."""
        if self._link is not None:
            self._link, self._restart_reason = None, why
            self._attempt_scope.cancel()

    def adopt(self, spec: UpstreamSettings) -> None:
        """Goes by other settings from now on, over the same link."""
        self._context.adopt(spec)

    def retire_gracefully(self) -> None:
        """Makes no other link than the one there is; without one, stops."""
        self._last = True
        if self._link is None:
            self.stop()

    def stop(self) -> None:
        """Ends `run`, and the link with it. Whoever hears of it may have the next link before this one is torn down."""
        self._scope.cancel()
        self._retire()

    async def run(self) -> None:
        """Keeps the link until stopped or cancelled, or until the last one ended."""
        # It outlives the call that made it, and is not of that call's trace.
        about.set(None)
        departing.set(NOTHING)
        try:
            with self._scope:
                await self._keep()
        finally:
            self._retire()

    def _retire(self) -> None:
        """Says once that there is no link any more; nothing is said after it."""
        self._link = None
        self._attempt.settle("it has been stopped")
        if self.status.state is not LinkState.RETIRED:
            self._set_status(LinkStatus(LinkState.RETIRED, self._clock()))
            self._on_event(Retired(self._name, self._owner))

    async def _keep(self) -> None:
        failures = 0
        while True:
            started = anyio.current_time()
            await self._attempt_once()
            if self._last:
                return
            # a link that lasted was no failure; one that dies young is retried ever more slowly
            failures = 0 if anyio.current_time() - started > LONGEST else failures + 1
            with anyio.move_on_after(self._delays(failures)):
                await self._attempt.wanted.wait()

    async def _attempt_once(self) -> None:
        """One attempt to connect, and the life of the link where it succeeds."""
        try:
            error, failure = await self._connect_and_wait(), LinkFailure.TIMEOUT
        except Unreachable as unreachable:
            error, failure = self._context.redact(str(unreachable)), LinkFailure.UNREACHABLE
        except Rejected as rejected:
            error, failure = self._context.redact(str(rejected)), LinkFailure.REJECTED
        except Exception as bug:
            log.exception("upstream failed unexpectedly", upstream=self._name)
            error, failure = f"an internal error: {type(bug).__name__}", LinkFailure.INTERNAL
        if error is not None:
            self._settle(error)
            self._down(error, failure)

    async def _connect_and_wait(self) -> str | None:
        """Returns None after a link has lived, else why there was none in time."""
        timeout = self._context.spec.timeouts.connect
        self._context.awaited = ""
        with anyio.CancelScope(deadline=anyio.current_time() + timeout) as scope:
            self._attempt_scope = scope
            async with self._connect(self._context) as link:
                self._check(link.identity)
                await anyio.lowlevel.checkpoint_if_cancelled()
                scope.deadline = math.inf
                self._up(link)
                try:
                    self._down(await link.wait_closed(), LinkFailure.LOST)
                finally:
                    self._link = None
                return None
        if self._restart_reason is None:
            return f"connecting took longer than {timeout:g} s{self._awaited_answer()}"
        why, self._restart_reason = self._restart_reason, None
        self._down(why)
        return None

    def _awaited_answer(self) -> str:
        step = self._context.awaited
        return f", and waits for the answer to {step}" if step else ""

    def _settle(self, outcome: Link | str) -> None:
        attempt, self._attempt = self._attempt, _Attempt()
        attempt.settle(outcome)

    def _up(self, link: Link) -> None:
        self._link = link
        self._connections += 1
        self._set_status(LinkStatus(LinkState.READY, self._clock(), link.identity))
        self._settle(link)
        log.info("upstream connected", upstream=self._name, version=link.identity.version, own=self._owner is not None)
        self._on_event(Connected(self._name, self._owner, link.identity))

    def _down(self, reason: str, failure: LinkFailure | None = None) -> None:
        """Reports the loss, once for each change of state or reason. `failure` is None where it was intended."""
        self._link = None
        if failure is not None:
            self._context.metrics.upstream_troubles.labels(self._name, failure.value).inc()
        before = self.status
        if before.state is LinkState.RETIRED:
            return
        self._set_status(LinkStatus(LinkState.BACKING_OFF, self._clock(), before.identity, reason, failure))
        if before.state is LinkState.BACKING_OFF and before.error == reason:
            return
        log.warning("upstream unavailable", upstream=self._name, reason=reason, own=self._owner is not None)
        if before.state is not LinkState.BACKING_OFF:
            self._on_event(Disconnected(self._name, self._owner, reason))

    def _set_status(self, status: LinkStatus) -> None:
        """Stands so from now on; since when, where it already did."""
        before = self.status
        self.status = replace(status, since=before.since) if status.state is before.state else status

    async def __call__(self, call: Call) -> Outcome:
        started = time.monotonic()
        link = self._link
        try:
            if link is None or link.is_closed:
                link = await self._ready()
            try:
                return await link(call)
            except NotAccepted:
                pass
            except PeerGone:
                if not (call.row.safe_to_repeat or call.repeatable):
                    raise
            return await (await self._ready())(call)
        except Unreachable as error:
            return self._failed(f"not connected: {error} (after {time.monotonic() - started:.1f} s)")
        except NotAccepted as error:
            return self._failed(f"{call.method} could not be sent: {error}")
        except PeerGone as error:
            return self._failed(f"{call.method}: the connection was lost, and what became of it is unknown: {error}")

    async def _ready(self) -> Link:
        """The link, after at most one attempt to connect, shared by all who wait. Raises Unreachable."""
        if self._link is not None and not self._link.is_closed:
            return self._link
        attempt = self._attempt
        attempt.wanted.set()
        with anyio.move_on_after(self._context.spec.timeouts.connect):
            await attempt.done.wait()
        if attempt.link is None:
            raise Unreachable(attempt.error or f"it is still connecting{self._awaited_answer()}")
        return attempt.link

    def _failed(self, why: str) -> Failed:
        sentence = f"upstream {self._name!r}: {self._context.redact(why)}"
        return Failed(ErrorObject(INTERNAL_ERROR, sentence), Party.UPSTREAM, Reason.UNAVAILABLE)
