"""Answers the HTTP requests of clients: routes, Host and Origin, identity, and the choice of the era.

Answers no message itself; `listener` opens the socket. Every refusal is a JSON-RPC error that says why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import anyio

from mcproxy.access.identity import Identified
from mcproxy.call.errors import McpError
from mcproxy.call.identity import AGGREGATE, ANONYMOUS, ForwardedCredentials
from mcproxy.downstream.front.origin import admits_host, admits_origin, cors_headers, preflight_headers
from mcproxy.downstream.handshake.http_sse import HttpSse
from mcproxy.downstream.handshake.session_store import SessionStore
from mcproxy.downstream.handshake.streamable_http import StreamableHttp
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.inbound import Incoming, is_initialize, read_inbound, speaks_stateless, whole_body
from mcproxy.downstream.io.open_streams import IdentifyAgain, OpenStreams, TooManyStreams
from mcproxy.downstream.io.request_head import (
    HeadHandler,
    HeadNote,
    RequestHead,
    RequestHeaders,
    forwarded_credentials,
    gaps,
    read_headers,
)
from mcproxy.downstream.io.responses import JSON, Refusal, error, refused
from mcproxy.downstream.stateless.streamable_http import StatelessHttp
from mcproxy.http import server as http
from mcproxy.protocol.jsonrpc import INVALID_REQUEST, InvalidMessage, Request
from mcproxy.settings.access.authentication import Authentication
from mcproxy.settings.endpoints import is_key, key_of
from mcproxy.telemetry.trace_context import arrived, picked

PathParameters = Mapping[str, str]
"""Values of the named segments in a route's path."""


class Identify(Protocol):
    """Finds out who sends a request."""

    async def __call__(self, request: http.Request) -> Identified:
        """Raises Refusal where the request does not identify a principal, with a challenge in its headers."""

    @property
    def header_names(self) -> Collection[str]:
        """The header fields that identify a request, in lower case."""

    def credentials(self, request: http.Request) -> bytes:
        """A digest of all that decides who sends a request, beside the settings."""

    def known(self, credentials: bytes) -> Identified | None:
        """Who was identified by these credentials, if they identify the same principal now."""

    def again(self, request: http.Request) -> IdentifyAgain:
        """Keeps the credentials of a request, so that they can be judged again when the request is gone."""


class Companion(Protocol):
    """A participant in serving requests that is no part of MCP: it may have some requests answered elsewhere."""

    def stage(self, handler: HeadHandler) -> HeadHandler:
        """Wraps the handler of a route; called with requests of identified senders."""

    def serving(self, app: HttpApp) -> AbstractAsyncContextManager[None]:
        """Entered before requests come, and left once the last is answered."""

    def drain(self) -> None:
        """The gateway shuts down: sessions take no more calls, and the rest of the requests end within the grace."""


class _Alone:
    """The companion of a gateway that answers every request itself."""

    def stage(self, handler: HeadHandler) -> HeadHandler:
        return handler

    def serving(self, app: HttpApp) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def drain(self) -> None:
        return


alone: Final[Companion] = _Alone()


class _Anonymous:
    """Identifies every sender as ANONYMOUS, for listeners without authentication."""

    _found: Final = Identified(ANONYMOUS, Authentication())
    header_names: Final = frozenset[str]()

    async def __call__(self, request: http.Request) -> Identified:
        return self._found

    def credentials(self, request: http.Request) -> bytes:
        return b""

    def known(self, credentials: bytes) -> Identified:
        return self._found

    def again(self, request: http.Request) -> IdentifyAgain:
        return self._identify_again

    async def _identify_again(self) -> Identified:
        return self._found


anonymous: Final[Identify] = _Anonymous()


class Admitted(NamedTuple):
    """Who answers a request that another replica identified, and what it is told of it."""

    handler: HeadHandler
    head: RequestHead


class HttpApp:
    """The routes of MCP, for every endpoint and every era."""

    def __init__(
        self,
        context: TransportContext,
        identify: Identify,
        extra_routes: Iterable[http.Route] = (),
        companion: Companion = alone,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._context = context
        self._identify = identify
        self.sessions: Final = SessionStore(context)
        self.streams: Final = OpenStreams(context, wall)
        self._stateless = StatelessHttp(context, self.streams)
        self._streamable = StreamableHttp(context, self.sessions, self.streams)
        self._event_streams = HttpSse(context, self.sessions, self.streams)
        self._edges: dict[http.RoutedHandler, HeadHandler] = {}
        """The handlers of MCP's routes, without companion and identification."""
        self._router = http.PathRouter([*self._routes(companion), *extra_routes])
        self._received = context.metrics.received("http")
        self._sent = context.metrics.sent("http")
        self._in_flight = 0
        self._idle: asyncio.Event | None = None
        """Set once no request is in flight; made when `drain` waits for that."""

    async def handle(self, request: http.Request, admitted: Admitted | None = None) -> http.Answered:
        """Answers any request; turns refusals that are raised into responses. `admitted` is from `admit`."""
        token = arrived.set(picked(request.fields)) if self._context.traced else None
        self._in_flight += 1
        try:
            if admitted is not None:
                return await admitted.handler(request, admitted.head)
            return await self._routed(request)
        except Refusal as refusal:
            return refused(refusal)
        except TooManyStreams as refusal:
            return error(503, refusal)
        except http.NotFound:
            return error(404, McpError(INVALID_REQUEST, f"{request.path!r}: Not Found"))
        except http.MethodNotAllowed as refusal:
            sentence = f"{request.path!r}: Method Not Allowed"
            return error(405, McpError(INVALID_REQUEST, sentence), headers={"Allow": refusal.allowed})
        finally:
            self._in_flight -= 1
            if self._idle is not None and not self._in_flight:
                self._idle.set()
            if token is not None:
                arrived.reset(token)

    async def run(self) -> None:
        """Expires unused sessions, and judges open streams after each reload, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.sessions.sweep)
            tasks.start_soon(self.streams.judge_after_reloads)

    async def drain(self) -> None:
        """Ends idle streams at once, gives calls `shutdown_grace`, and then cuts them off (requirement R9)."""
        self._stateless.drain()
        self._event_streams.drain()
        self.sessions.drain()
        with anyio.move_on_after(self._context.proxy.shutdown_grace):
            while self._in_flight:
                self._idle = asyncio.Event()
                await self._idle.wait()
            await self.streams.wait_closed()
        self._stateless.cut_off()
        self.sessions.cut_off()

    def close(self) -> None:
        """Ends all sessions without recording that they ended: their ids can open them again."""
        self.sessions.close()

    def _routes(self, companion: Companion) -> list[http.Route]:
        paths = self._context.proxy.paths
        one = paths.servers + "/{endpoint}"
        selection = paths.mcp + "/{selection}"
        streamable = (paths.mcp, f"{paths.mcp}/", f"{one}/mcp", f"{one}/mcp/", selection, f"{selection}/")
        methods = {"POST": self._post, "GET": self._get, "DELETE": self._delete}
        routes = [(method, path, handler) for path in streamable for method, handler in methods.items()]
        routes += [("GET", path, self._get_events) for path in (paths.sse, f"{one}/sse", paths.sse + "/{selection}")]
        routes += [("POST", paths.messages, self._post_message)]
        made = []
        for method, path, handler in routes:
            identified = self._identified(companion.stage(handler))
            self._edges[identified] = handler
            made.append(http.Route(method, path, identified))
        return made

    def admit(
        self, request: http.Request, identified: Identified, credentials: ForwardedCredentials | None
    ) -> Admitted:
        """Has `handle` answer a request as one of an identified sender, without companion and identification.

        Its streams are not judged again here. Raises Refusal, and http.NotFound and http.MethodNotAllowed where no
        route of MCP has its path and method.
        """

        async def again() -> Identified:
            return identified

        handler, path = self._router.find(request)
        if handler not in self._edges:
            raise http.NotFound
        head = RequestHead(
            _endpoint(path),
            read_headers(request.fields),
            identified,
            identified.principal,
            lambda request: again,
            credentials,
        )
        return Admitted(self._edges[handler], head)

    def _routed(self, request: http.Request) -> Awaitable[http.Answered]:
        """Answers by the note on a head that came before, if the settings are the same still."""
        note = request.recall(HeadNote, self._context.generation)
        if note is None:
            return self._newly_routed(request)
        request.response_fields = note.cors
        found = self._identify.known(note.credentials)
        if found is None:
            return self._identify_first(request, note)
        return note.handler(request, self._head(request, note, found))

    async def _identify_first(self, request: http.Request, note: HeadNote) -> http.Answered:
        return await note.handler(request, self._head(request, note, await self._identify(request)))

    def _newly_routed(self, request: http.Request) -> Awaitable[http.Answered]:
        """Checks, then routes. CORS preflights are answered before identification (R57).

        Raises Refusal, http.NotFound and http.MethodNotAllowed.
        """
        request.response_fields = self._check_browser(request)
        if request.method == "OPTIONS" and "access-control-request-method" in request.fields:
            return _preflight(request)
        handler, path = self._router.find(request)
        return handler(request, path)

    def _identified(self, handler: HeadHandler) -> http.RoutedHandler:
        """`handler` behind identification.

        A head is remembered once its sender is known; earlier, it would cost memory.
        """

        async def identify(request: http.Request, path: PathParameters) -> http.Answered:
            # The generation when the checks began: a reload meanwhile makes the note invalid.
            generation, cors, identify = self._context.generation, request.response_fields, self._identify
            found = await identify(request)
            fields = request.fields
            note = HeadNote(handler, _endpoint(path), read_headers(fields), cors, identify.credentials(request))
            request.remember(note, generation, gaps(fields, identify.header_names))
            return await handler(request, self._head(request, note, found))

        return identify

    def _head(self, request: http.Request, note: HeadNote, found: Identified) -> RequestHead:
        """Raises Refusal."""
        principal, credentials = found.principal, None
        if self._context.forwarded or self._context.exchanges_tokens:
            credentials = forwarded_credentials(self._context, found, request.fields)
        return RequestHead(note.endpoint, note.headers, found, principal, self._identify.again, credentials)

    def _check_browser(self, request: http.Request) -> Mapping[str, str]:
        """Checks Host and Origin (R42, R57); returns the CORS headers of the response. Raises Refusal."""
        proxy, host = self._context.proxy, request.fields.get("host", "")
        if not (admits_host(host, proxy.allowed_hosts) or admits_host(host, (), _own_hosts(self._context, request))):
            raise Refusal(421, INVALID_REQUEST, f"the Host {host!r} is not served here (proxy.allowed_hosts)")
        if "origin" not in request.fields:
            return {}
        origin = request.fields["origin"]
        if not admits_origin(origin, host, proxy.allowed_origins):
            raise Refusal(403, INVALID_REQUEST, f"the Origin {origin!r} is not allowed (proxy.allowed_origins)")
        return cors_headers(origin)

    async def _post(self, request: http.Request, head: RequestHead) -> http.Answered:
        if head.endpoint != AGGREGATE:
            self._check_endpoint(head)
        if not head.headers.is_readable:
            raise _unreadable(head.headers)
        body = request.received
        if body is None:
            body = await whole_body(request, self._context.proxy.read_timeout)
        self._received.inc(len(body))
        incoming = _message(body)
        # versioning: a stateless request names its version in its body, or in its header and is no handshake.
        is_stateless = (head.headers.is_stateless and not is_initialize(incoming)) or speaks_stateless(incoming)
        try:
            answer = await (self._stateless if is_stateless else self._streamable).post(request, head, incoming)
        except Refusal as refusal:
            # basic, Error Responses: "MUST include the same ID as the request they correspond to".
            if isinstance(incoming, Request):
                refusal.id = incoming.id
            raise
        if isinstance(answer, http.Response):
            self._sent.inc(len(answer.body))
        return answer

    async def _get(self, request: http.Request, head: RequestHead) -> http.Answered:
        self._check_endpoint(head)
        _check_method(head)
        return await self._streamable.get(request, head)

    async def _delete(self, request: http.Request, head: RequestHead) -> http.Answered:
        self._check_endpoint(head)
        _check_method(head)
        return await self._streamable.delete(request, head)

    async def _get_events(self, request: http.Request, head: RequestHead) -> http.Answered:
        self._check_endpoint(head)
        return await self._event_streams.get(request, head)

    async def _post_message(self, request: http.Request, head: RequestHead) -> http.Answered:
        if not head.headers.is_readable:
            raise _unreadable(head.headers)
        body = await whole_body(request, self._context.proxy.read_timeout)
        self._context.metrics.received("sse").inc(len(body))
        return await self._event_streams.post(request, head, _message(body))

    def _check_endpoint(self, head: RequestHead) -> None:
        """Raises Refusal where the endpoint does not exist, or not for the principal: that looks the same (R38)."""
        if head.endpoint != AGGREGATE and not self._context.exists(head.endpoint, head.principal):
            raise _no_endpoint()


def _endpoint(path: PathParameters) -> str:
    """The key of the endpoint that a path names. Raises Refusal if no endpoint can have it.

    `%2F` in a path is decoded: an upstream's name in a path must not become the key of a configured endpoint.
    """
    if "selection" in path:
        return key_of(path["selection"])
    upstream = path.get("endpoint", AGGREGATE)
    if is_key(upstream):
        raise _no_endpoint()
    return upstream


def _no_endpoint() -> Refusal:
    return Refusal(404, INVALID_REQUEST, "no server of that name is behind this gateway")


def _unreadable(headers: RequestHeaders) -> Refusal:
    if headers.content_type != JSON:
        sentence = f"the header Content-Type must be {JSON}, not {headers.content_type!r}"
        return Refusal(415, INVALID_REQUEST, sentence)
    sentence = "the body must not be compressed"
    return Refusal(415, INVALID_REQUEST, sentence, headers={"Accept-Encoding": "identity"})


def _message(body: bytes) -> Incoming:
    """Raises Refusal."""
    try:
        return read_inbound(body)
    except InvalidMessage as invalid:
        raise Refusal(400, invalid.code, invalid.reason, id=invalid.id) from invalid


def _check_method(head: RequestHead) -> None:
    """Refuses GET and DELETE to the stateless era, which has none (2026-07-28, streamable-http). Raises Refusal."""
    if head.headers.is_stateless:
        raise Refusal(405, INVALID_REQUEST, "this protocol version has POST alone", headers={"Allow": "POST"})


async def _preflight(request: http.Request) -> http.Response:
    return http.Response(204, fields=preflight_headers(request.fields.joined("access-control-request-headers")))


def _own_hosts(context: TransportContext, request: http.Request) -> set[str]:
    """Host names of ours beside `allowed_hosts`: those configured, and the connection's local address.

    No page of another origin can have these.
    """
    public = urlsplit(context.proxy.public_url or "").hostname or context.proxy.host
    return {context.proxy.host, public, *(request.local or ())[:1]}
