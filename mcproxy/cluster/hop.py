"""One request to another replica's internal listener, and its response brought back as it comes.

The request is sent once. After `ReplicaUnreachable`, `ReplicaSlow`, `Moved` and `EnvelopeRefused` nothing was executed;
after `Lost` the outcome is unknown. `forwarding` decides where a request goes.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Final

from yarl import URL

from mcproxy.cluster.envelope import EnvelopeFault
from mcproxy.concurrency.cancel_scope import TaskCancelScope
from mcproxy.http import server as http
from mcproxy.http.client import ClientResponse, ConnectFailed, ConnectionBroken, Pool, Way, write_head
from mcproxy.telemetry.metrics import Metrics

CONNECT_TIMEOUT: Final = 1.0
"""Seconds that a connection to another replica may take."""
MAX_IDLE: Final = 256
"""Connections to one replica that are kept while idle."""
MOVED: Final = 421
"""The status of a replica that shuts down and executed nothing (RFC 9110, section 15.5.20: Misdirected Request)."""
REFUSED: Final = 403
"""The status of a replica that refused the envelope."""
OUTCOME_FIELD: Final = "mcproxy-hop"
"""A response field that only the internal listener sets: it marks the listener's own refusals."""

_FAULTS: Final = {fault.name.lower(): fault for fault in EnvelopeFault}
_HOP_FIELDS: Final = frozenset({"connection", "content-length", "date", "keep-alive", "transfer-encoding"})
"""Response fields that concern the connection between the replicas."""


class ReplicaUnreachable(Exception):
    """A connection was refused, or another replica is at the address: nothing was executed."""


class ReplicaSlow(Exception):
    """No connection was made in time, so nothing was sent. Either replica may only be busy."""


class Moved(Exception):
    """The replica shuts down, and executed nothing."""


class EnvelopeRefused(Exception):
    """The replica refused the envelope, and executed nothing. The text says why, in our own words."""

    def __init__(self, fault: EnvelopeFault) -> None:
        super().__init__(f"the replica that should answer refuses what this one sends: {fault.value}")
        self.is_replaced: Final = fault is EnvelopeFault.RECEIVER
        """Whether another replica is at that address, so that the one which was sent to is gone."""


class Lost(Exception):
    """The connection broke before the response was complete: the outcome is unknown."""


class Hops:
    """Connections to other replicas. `tls` is for their https addresses."""

    def __init__(self, metrics: Metrics, tls: ssl.SSLContext | None = None) -> None:
        self._metrics = metrics
        self._tls = tls
        self._pools: dict[str, tuple[Pool, URL, bytes]] = {}
        """By address: its connections, its URL, and the head of each request."""

    def forget(self, address: str) -> None:
        """Breaks every connection to a replica that is gone: waiting requests fail."""
        if address in self._pools:
            self._pools.pop(address)[0].close()

    def close(self) -> None:
        """Breaks the connections to all replicas."""
        for address in list(self._pools):
            self.forget(address)

    async def send(self, address: str, token: bytes, body: bytes) -> ClientResponse:
        """The response once its head has come. Raises ReplicaUnreachable, ReplicaSlow, Moved,
        EnvelopeRefused and Lost."""
        pool, url, head = self._pools.get(address) or self._pool(address)
        began = time.perf_counter()
        try:
            response = await pool.request("POST", url, head, b"%b\n%b" % (token, body))
        except ConnectFailed as error:
            self._metrics.cluster_hops.labels("unreachable").inc()
            is_late = isinstance(error.__cause__, TimeoutError)
            raise (ReplicaSlow if is_late else ReplicaUnreachable)(address) from error
        except ConnectionBroken as error:
            self._metrics.cluster_hops.labels("broken").inc()
            raise Lost(address) from error
        self._metrics.cluster_hop_seconds.observe(time.perf_counter() - began)
        if OUTCOME_FIELD in response.head.fields:
            response.release()
            self._metrics.cluster_hops.labels("refused").inc()
            if response.head.status == MOVED:
                raise Moved(address)
            raise EnvelopeRefused(_FAULTS.get(response.head.fields[OUTCOME_FIELD], EnvelopeFault.UNTOLD))
        self._metrics.cluster_hops.labels("answered").inc()
        return response

    def _pool(self, address: str) -> tuple[Pool, URL, bytes]:
        url = URL(address)
        fields = {"Content-Type": "application/octet-stream"}
        made = (
            Pool(CONNECT_TIMEOUT, MAX_IDLE, ways=lambda _: Way(tls=self._tls)),
            url,
            write_head("POST", url, fields),
        )
        self._pools[address] = made
        return made


async def brought_back(
    request: http.Request, response: ClientResponse, ends: Callable[[Callable[[], None]], Callable[[], None]] | None
) -> http.Answered:
    """Answers `request` with the response of another replica.

    `ends` is given a callable that ends a stream before its time, and returns one to be called when it has ended.
    """
    fields = {_spelled(name): value for name, value in response.head.fields.items() if name not in _HOP_FIELDS}
    if response.is_complete:
        return http.Response(response.head.status, response.rest(response.unread), fields)
    return await _streamed(request, response, fields, ends)


async def _streamed(
    request: http.Request,
    response: ClientResponse,
    fields: Mapping[str, str],
    ends: Callable[[Callable[[], None]], Callable[[], None]] | None,
) -> http.Answered:
    with TaskCancelScope() as scope:
        closed: Callable[[], None] = _nothing
        try:
            if ends is not None:
                closed = ends(scope.cancel)
            ready = asyncio.Event()
            chunks = request.start_stream(response.head.status, fields)
            chunks.ready, chunks.on_disconnect = ready.set, scope.cancel
            if request.is_disconnected:
                return http.Streamed()
            chunks.write(b"")
            async for piece in response:
                while chunks.full:
                    ready.clear()
                    await ready.wait()
                chunks.write(piece)
            chunks.end()
        except ConnectionBroken:
            # Cut off rather than ended: the client sees that something is missing.
            chunks.reset()
        except asyncio.CancelledError:
            if not request.is_disconnected:
                chunks.end()
            raise
        finally:
            response.close()
            closed()
    return http.Streamed()


def _spelled(name: str) -> str:
    return name.title()


def _nothing() -> None:
    return
