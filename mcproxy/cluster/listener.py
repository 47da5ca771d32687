"""The internal listener: takes requests that other replicas authenticated, and answers them as if they had come here.

An envelope that does not open, is for another replica, has expired, is replayed or comes with another body is refused
with 403, and nothing is executed. While this replica shuts down, requests that another could answer get 421.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final

import anyio
import structlog

from mcproxy.cluster.envelope import ALIVE, Envelopes, HopEnvelope, RefusedEnvelope
from mcproxy.cluster.homes import answered_label, body_home, names_stream
from mcproxy.cluster.hop import MOVED, OUTCOME_FIELD, REFUSED
from mcproxy.http import server as http
from mcproxy.settings import Cluster, Proxy

MAX_ENVELOPE: Final = 256 * 1024
"""Bytes that an envelope may add to the largest body."""
IDLE: Final = 120.0
"""Seconds that another replica's connection may be idle: longer than its pool keeps it."""
CLOSING: Final = 1.0
"""Seconds for other replicas to read the last responses."""

log = structlog.get_logger()

SESSION_FIELD: Final = "mcp-session-id"


Serve = Callable[[http.Request, HopEnvelope], Awaitable[http.Answered]]
"""Answers a request as one of the sender that its envelope names."""


AnswerReplica = Callable[[bytes], Awaitable[bytes]]


class InternalListener:
    """`serve` answers what was admitted. `proxy` tells the settings in force.

    `questions` are what replicas ask each other, by the envelope's method; their bodies are sealed by themselves. Those
    of `inquiries` are answered while this replica shuts down too.
    """

    def __init__(
        self,
        envelopes: Envelopes,
        serve: Serve,
        proxy: Callable[[], Proxy],
        questions: Mapping[str, AnswerReplica] = MappingProxyType({}),
        inquiries: Mapping[str, AnswerReplica] = MappingProxyType({}),
    ) -> None:
        self._questions = questions
        self._inquiries = inquiries
        self._envelopes = envelopes
        self._serve = serve
        self._proxy = proxy
        self._draining = False

    def drain(self) -> None:
        """From now on accepts only requests that no other replica can answer."""
        self._draining = True

    @asynccontextmanager
    async def listening(self, cluster: Cluster, tls: ssl.SSLContext | None) -> AsyncIterator[int]:
        """The port, for as long as it is entered. Raises OSError where it cannot listen."""
        server = http.Server(self.answer, _refuse, self._bounds)
        async with anyio.create_task_group() as tasks:
            await tasks.start(server.run)
            try:
                yield await server.listen(*cluster.address, tls)
            finally:
                with anyio.CancelScope(shield=True):
                    await server.close(CLOSING)
                tasks.cancel_scope.cancel()

    async def answer(self, request: http.Request) -> http.Answered:
        """Answers a request whose body is an envelope, a line feed, and the body of the client's request."""
        try:
            sent = await request.body(self._proxy().read_timeout)
            token, _, body = sent.partition(b"\n")
            envelope = self._envelopes.open(token, body)
        except (http.BodyTimeout, http.BodyTooLarge, http.BodyIncomplete):
            return _refuse(400, "incomplete")
        except RefusedEnvelope as refusal:
            log.warning("an envelope was refused", why=str(refusal), peer=request.peer)
            return _refuse(REFUSED, refusal.fault.name.lower())
        if envelope.target == ALIVE and not envelope.placed:
            return http.Response(204, b"")
        if (inquired := self._inquiries.get(envelope.method)) is not None:
            return http.Response(200, await inquired(body))
        if (answer := self._questions.get(envelope.method)) is not None:
            return _refuse(MOVED, "leaving") if self._draining else http.Response(200, await answer(body))
        if self._draining and not envelope.placed and not _is_bound_here(envelope, body):
            return _refuse(MOVED, "leaving")
        request.become(envelope.method, envelope.target, http.Headers.of(envelope.fields), body)
        return await self._serve(request, envelope)

    def _bounds(self) -> http.Bounds:
        proxy = self._proxy()
        return http.Bounds(
            max_body=proxy.limits.max_body_bytes + MAX_ENVELOPE,
            idle=IDLE,
            write_timeout=proxy.write_timeout,
            connections=proxy.limits.max_connections,
            head_timeout=proxy.limits.head_timeout,
        )


def _is_bound_here(envelope: HopEnvelope, body: bytes) -> bool:
    """Whether a request concerns a call that runs here (a parked one included), or a stream that ends here."""
    if any(name == SESSION_FIELD for name, _ in envelope.fields):
        return envelope.method == "POST" and answered_label(body) is not None
    return names_stream(envelope.target) or bool(body_home(body).label)


def _refuse(status: int, why: str) -> http.Response:
    return http.Response(status, b"", {OUTCOME_FIELD.title(): why})
