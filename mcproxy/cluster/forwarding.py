"""Decides which replica answers a client's request, and forwards it there with the header fields that it needs.

A stage between identification and the edges: the ids in a request name its home (`homes`), and `members` says which
replica that is now. A request goes to a second replica only if the first executed nothing: it refused the connection or
was shutting down. A request from another replica does not pass this stage, and is never forwarded again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Container
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, assert_never

import structlog

from mcproxy.call.errors import McpError, Reason
from mcproxy.cluster.envelope import Envelopes, HopEnvelope
from mcproxy.cluster.homes import (
    NOWHERE,
    Home,
    HomeKind,
    answered_label,
    body_home,
    names_something,
    names_stream,
    opens_stream,
    session_home,
    stream_home,
)
from mcproxy.cluster.hop import EnvelopeRefused, Hops, Lost, Moved, ReplicaSlow, ReplicaUnreachable, brought_back
from mcproxy.cluster.members import Member, Members
from mcproxy.concurrency.cancel_scope import TaskCancelScope
from mcproxy.downstream.io.inbound import read_inbound, whole_body
from mcproxy.downstream.io.open_streams import OpenStreams
from mcproxy.downstream.io.request_head import SESSION_FIELD, HeadHandler, RequestHead
from mcproxy.downstream.io.responses import error, failure
from mcproxy.http import server as http
from mcproxy.http.client import ClientResponse
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, InvalidMessage, Request, RequestId
from mcproxy.sealing import label_of

MAX_ATTEMPTS: Final = 8
"""Replicas that are tried for one request, if each before was unreachable or shutting down."""

_DROPPED: Final = frozenset(
    {"connection", "content-length", "cookie", "expect", "host", "keep-alive", "te", "transfer-encoding", "upgrade"}
)
"""Request fields that concern the client's connection."""

log = structlog.get_logger()

Adopting = Callable[[str, RequestHead], AbstractAsyncContextManager[None]]
"""Entered around a request for a session of another process; takes the session's id and the request's head."""


class UnknownOutcome(McpError):
    """The replica that ran a call is gone."""

    def __init__(self) -> None:
        sentence = "the replica that ran this call is gone: its outcome is unknown, and it is not repeated"
        super().__init__(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)


class Forwarding:
    """Makes the stage. `label` is this replica's; `identifying` tells the header fields that identify senders.

    `read_timeout` tells for how many seconds a body is awaited.
    """

    def __init__(
        self,
        label: str,
        members: Members,
        envelopes: Envelopes,
        hops: Hops,
        identifying: Callable[[], Collection[str]],
        read_timeout: Callable[[], float],
        adopting: Adopting,
    ) -> None:
        self._label = label
        self._members = members
        self._envelopes = envelopes
        self._hops = hops
        self._identifying = identifying
        self._read_timeout = read_timeout
        self._adopting = adopting
        self._streams: OpenStreams | None = None
        self._sessions: Container[str] = ()
        self._idle_streams: set[Callable[[], None]] = set()
        """For each forwarded stream of changes, a function that ends it."""
        self._draining = False
        self._doubtful = False

    def serve_with(self, streams: OpenStreams, sessions: Container[str]) -> None:
        """Counts and judges forwarded streams like those that begin here.

        `sessions` holds the ids of the open ones here.
        """
        self._streams, self._sessions = streams, sessions

    def doubt(self) -> None:
        """From now on reads the record of this replica's own sessions before it opens one again."""
        self._doubtful = True

    def drain(self) -> None:
        """Forwards all new requests; ends streams of changes, so that clients open them at another replica."""
        self._draining = True
        for end in list(self._idle_streams):
            end()

    def stage(self, handler: HeadHandler) -> HeadHandler:
        """Wraps a handler of requests: those whose home is another replica are forwarded there."""

        def placed(request: http.Request, head: RequestHead) -> Awaitable[http.Answered]:
            if not self._draining and self._is_clearly_here(request, head):
                return handler(request, head)
            return self._placed(handler, request, head)

        return placed

    def _is_clearly_here(self, request: http.Request, head: RequestHead) -> bool:
        """Whether a cheap look shows that a request belongs here, as most do."""
        session = request.fields.get(SESSION_FIELD)
        if session is not None:
            return label_of(session) == self._label and (not self._doubtful or session in self._sessions)
        if request.method != "POST":
            return True
        body = request.received
        return body is not None and not names_something(body) and not names_stream(request.target)

    def is_certain(self, session: str) -> bool:
        """Whether a session that is not open here may be opened from its id alone: no other replica has had it."""
        return not self._doubtful and label_of(session) == self._label

    def is_elsewhere(self, session: str) -> bool:
        """Whether a session of another replica is not for this one to serve, which may have opened it meanwhile."""
        home = session_home(session)
        return home.label not in {"", self._label} and self._session_owner(home) is not None

    async def _placed(self, handler: HeadHandler, request: http.Request, head: RequestHead) -> http.Answered:
        body = await whole_body(request, self._read_timeout()) if request.method == "POST" else b""
        home = _home(request, body)
        await self._members.look_for(home.label)
        if home.kind is HomeKind.SESSION:
            await self._members.look_for(answered_label(body) or "")
        try:
            for _ in range(MAX_ATTEMPTS):
                if (member := self._destination(home, request, body)) is None:
                    break
                try:
                    return await self._sent_on(member, request, head, body)
                except ReplicaUnreachable:
                    self._members.lose(member.label)
                except ReplicaSlow:
                    # One that announces itself lives: its sessions must not be opened elsewhere meanwhile.
                    if not self._members.is_announced(member.label):
                        self._members.lose(member.label)
                except Moved:
                    self._members.note_leaving(member.label)
            else:
                return _refused(_not_taken(), body)
        except UnknownOutcome as unknown:
            return _refused(unknown, body)
        if home.label not in {"", self._label} and not self._members.are_known:
            return _refused(_not_taken(), body)
        if home.kind is HomeKind.SESSION and not self.is_certain(home.key):
            async with self._adopting(home.key, head):
                return await handler(request, head)
        return await handler(request, head)

    def _destination(self, home: Home, request: http.Request, body: bytes) -> Member | None:
        """The replica that answers a request; None for this one. Raises UnknownOutcome."""
        is_own, member = home.label == self._label, self._members.find(home.label)
        match home.kind:
            case HomeKind.SESSION:
                return self._session_destination(home, request, body)
            case HomeKind.PARKED:
                if member is None and not is_own and self._members.are_known:
                    raise UnknownOutcome
                return member
            case HomeKind.STREAM | HomeKind.TASK | HomeKind.RESULT:
                return member
            case HomeKind.NOTHING:
                return self._members.owner(request.target) if self._draining else None
            case _:
                assert_never(home.kind)

    def _session_destination(self, home: Home, request: http.Request, body: bytes) -> Member | None:
        if request.method == "POST" and (asked := answered_label(body)) is not None:
            # An answer goes to the process that asked, even while that shuts down.
            asked = asked or home.label
            if asked == self._label or (member := self._members.find(asked)) is None:
                return None if asked == self._label else self._members.owner(home.key)
            return member
        if home.label == self._label:
            return self._members.owner(home.key) if self._draining else None
        return self._session_owner(home)

    def _session_owner(self, home: Home) -> Member | None:
        """The replica that serves a session of another one: its home, or who takes its place; None for this one."""
        member = self._members.find(home.label)
        return self._members.owner(home.key) if member is None or member.is_leaving else member

    async def _sent_on(self, member: Member, request: http.Request, head: RequestHead, body: bytes) -> http.Answered:
        """The response of another replica.

        Raises ReplicaUnreachable, ReplicaSlow and Moved, where nothing was executed.
        """
        token = self._envelopes.seal(self._envelope(request, head), member.label, body)
        response: ClientResponse | None = None
        with TaskCancelScope() as scope:
            request.on_disconnect = scope.cancel
            try:
                response = await self._hops.send(member.address, token, body)
            except Lost:
                log.warning("a replica ended before it answered", replica=member.label)
                return _refused(UnknownOutcome(), body)
            except EnvelopeRefused as refusal:
                log.warning("a replica refused what was sent on to it", replica=member.label, why=str(refusal))
                if refusal.is_replaced:
                    raise ReplicaUnreachable(member.address) from refusal
                return _refused(_not_taken(), body)
        request.on_disconnect = None
        if response is None:
            # Its client hung up, which the other replica has seen by now.
            return http.Response(202)
        judged = partial(self._judged, request, head) if opens_stream(request.method, body) else None
        return await brought_back(request, response, judged)

    def _judged(self, request: http.Request, head: RequestHead, end: Callable[[], None]) -> Callable[[], None]:
        """Ends a forwarded stream of changes by `end` when its sender loses access to it, or this replica drains."""
        assert self._streams is not None
        opened = self._streams.open(head.identified, head.identify_again(request), end)
        self._idle_streams.add(end)

        def closed() -> None:
            opened.close()
            self._idle_streams.discard(end)

        return closed

    def _envelope(self, request: http.Request, head: RequestHead) -> HopEnvelope:
        principal, credentials = head.principal, head.credentials
        dropped = _DROPPED.union(self._identifying(), () if credentials is None else credentials.headers)
        fields = [(name, value) for name in request.fields if name not in dropped for value in request.fields.all(name)]
        return HopEnvelope.of(request.method, request.target, fields, principal, credentials)


def _home(request: http.Request, body: bytes) -> Home:
    session = request.fields.get(SESSION_FIELD)
    if session is not None:
        return session_home(session)
    if request.method != "POST":
        return NOWHERE
    return stream_home(request.target) if names_stream(request.target) else body_home(body)


def _not_taken() -> McpError:
    sentence = "the replica that this request belongs to did not take it; nothing was executed: try again"
    return McpError(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)


def _refused(refusal: McpError, body: bytes) -> http.Response:
    """An error in a response to a call, or else of HTTP."""
    id = _request_id(body)
    if id is None:
        return error(503, refusal)
    return error(200, refusal, id) if isinstance(refusal, UnknownOutcome) else failure(refusal, id)


def _request_id(body: bytes) -> RequestId | None:
    try:
        message = read_inbound(body)
    except InvalidMessage:
        return None
    return message.id if isinstance(message, Request) else None
