"""What every transport is given: whom to hand calls to, and by which rules. Does nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from anyio.abc import TaskGroup

from mcproxy.call.calls import Handler
from mcproxy.call.clients import Audience
from mcproxy.call.identity import Caller, Principal
from mcproxy.concurrency.deadlines import Deadlines
from mcproxy.downstream.io.keep_alive import KeepAlive
from mcproxy.protocol.headers import MirroredParameter
from mcproxy.sealing import Sealer
from mcproxy.settings import Proxy
from mcproxy.telemetry.metrics import Metrics


@dataclass(slots=True, eq=False)
class TransportContext:
    handler: Handler
    audience: Audience
    proxy: Proxy
    """As of now: a reload puts another in its place. All else stays as it is."""
    sealer: Sealer
    metrics: Metrics
    exists: Callable[[str, Principal], bool]
    """Whether there is an endpoint, as of now and as far as somebody can see."""
    tasks: TaskGroup
    """Owns the calls: they outlive the connections that they came by."""
    forwarded: frozenset[str] = frozenset()
    """Headers, in lower case, that upstreams take callers' own credentials from; as of now."""
    traced: bool = False
    """Whether anybody wants to know of which trace a request is."""
    mirrored: Callable[[Caller, str], Sequence[MirroredParameter]] = lambda caller, tool: ()
    """The parameters of a tool, by its exposed name, that come in headers too, as far as that is known."""
    keep_alive: KeepAlive = field(init=False)
    """Of all event streams."""
    patience: Deadlines = field(init=False)
    """For all answers, of clients that take events: a stream begins where the first word is that late."""

    def __post_init__(self) -> None:
        self.keep_alive = KeepAlive(lambda: self.proxy.keep_alive)
        self.patience = Deadlines(lambda: self.proxy.stream_after)
