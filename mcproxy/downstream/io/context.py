"""What each transport is given: the handler of calls, the audience of listeners, settings, sealer and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from anyio.abc import TaskGroup

from mcproxy.call.calls import Handler
from mcproxy.call.clients import Audience, Listener
from mcproxy.call.identity import Caller, Principal
from mcproxy.concurrency.deadlines import Deadlines
from mcproxy.concurrency.wakeup import Wakeup
from mcproxy.downstream.io.ended_streams import EndedStreams
from mcproxy.downstream.io.keep_alive import KeepAlive
from mcproxy.downstream.io.send_buffer import SendBuffer
from mcproxy.http.server import UnsentBytes
from mcproxy.protocol.headers import MirroredParameter
from mcproxy.sealing import Sealer
from mcproxy.settings import Proxy
from mcproxy.telemetry.metrics import Metrics


class Subscribers(Protocol):
    """What is known of sessions that this process does not hold, by their keys (see `handshake.subscriber_journal`)."""

    def add(self, key: str, issued: int) -> None:
        """Notes that a session subscribed to a resource for the first time."""

    def end(self, key: str) -> None:
        """Notes that a session has ended, and may not be opened again."""

    def is_lost(self, key: str, issued: int) -> bool:
        """Whether a session may not be opened again: it ended, or would lack the subscriptions that it had.

        `issued` is when its id was issued, a Unix time in seconds.
        """

    def reopened(self, key: str, listener: Listener) -> None:
        """Notes that a session which this process did not hold was opened again from its id."""


class _NotKept:
    """For a gateway that keeps nothing between runs."""

    def add(self, key: str, issued: int) -> None:
        return

    def end(self, key: str) -> None:
        return

    def is_lost(self, key: str, issued: int) -> bool:
        return False

    def reopened(self, key: str, listener: Listener) -> None:
        return


NOT_KEPT: Final[Subscribers] = _NotKept()


@dataclass(slots=True, eq=False)
class TransportContext:
    """One object for the process; a reload changes it by `reconfigure`."""

    handler: Handler
    audience: Audience
    proxy: Proxy
    sealer: Sealer
    metrics: Metrics
    exists: Callable[[str, Principal], bool]
    """Whether there is an endpoint that the principal may know of."""
    tasks: TaskGroup
    """Owns the tasks of handshake calls, which outlive the connections of their requests."""
    forwarded: frozenset[str] = frozenset()
    """Request headers, in lower case, whose values are passed to upstreams (`credentials.forward`)."""
    exchanges_tokens: bool = False
    """Whether an upstream exchanges callers' own tokens for its own (`oauth.grant: token_exchange`)."""
    traced: bool = False
    """Whether calls are recorded as spans, so that `traceparent` is read."""
    mirrored: Callable[[Caller, str], Sequence[MirroredParameter]] = lambda caller, tool: ()
    """The parameters of a tool, by its exposed name, that requests also carry in headers (`x-mcp-header`)."""
    passes: Callable[[Caller], bool] = lambda caller: False
    """Whether messages of extensions that the gateway does not know pass between a client and an upstream."""
    subscribers: Subscribers = NOT_KEPT
    ended_streams: EndedStreams = field(init=False, default_factory=EndedStreams)
    """Ended subscription streams of the stateless era."""
    keep_alive: KeepAlive = field(init=False)
    """The keep-alive timer of all event streams."""
    stream_deadlines: Deadlines = field(init=False)
    """Deadlines of POSTs: one without an answer after `stream_after` seconds is answered as a stream."""

    _queued: UnsentBytes = field(init=False)

    generation: object = field(init=False, default_factory=object)
    """Another object after each reload: values derived from settings are valid for one generation."""

    loop: asyncio.AbstractEventLoop = field(init=False, default_factory=asyncio.get_running_loop)
    """The event loop of the transports."""

    reloaded: Wakeup = field(init=False, default_factory=Wakeup)
    """Wakes tasks that have to act on a new generation."""

    def __post_init__(self) -> None:
        self.keep_alive = KeepAlive(lambda: self.proxy.keep_alive)
        self._queued = UnsentBytes(lambda: self.proxy.limits.max_unsent_bytes)
        self.stream_deadlines = Deadlines(self.proxy.stream_after)

    def send_buffer(self) -> SendBuffer:
        """A buffer for a new event stream; what waits in all of them is bounded together."""
        return SendBuffer(self.proxy.limits, self._queued)

    def reconfigure(self, proxy: Proxy, forwarded: frozenset[str], *, exchanges_tokens: bool = False) -> None:
        """Puts other settings in force from the next request on."""
        self.proxy, self.forwarded, self.exchanges_tokens = proxy, forwarded, exchanges_tokens
        self.stream_deadlines.seconds = proxy.stream_after
        self.generation = object()
        self.reloaded.notify_all()
