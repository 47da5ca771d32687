"""The HTTP listener of clients: routes, Host and Origin, identity, limits, and the choice of the era.

Answers no message itself. Every refusal is a JSON-RPC error that says why.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import anyio
import msgspec

from mcproxy.call.errors import McpError
from mcproxy.call.identity import AGGREGATE, ANONYMOUS, Principal
from mcproxy.downstream.front.origin import admits_host, admits_origin, cors_headers, preflight_headers
from mcproxy.downstream.handshake.conversation import is_initialize
from mcproxy.downstream.handshake.http_sse import HttpSse
from mcproxy.downstream.handshake.session_store import SessionStore
from mcproxy.downstream.handshake.streamable_http import StreamableHttp
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.inbound import Incoming, read, speaks_stateless
from mcproxy.downstream.io.request_headers import RequestHeaders, request_headers
from mcproxy.downstream.io.responses import JSON, Refusal, error, refused
from mcproxy.downstream.io.stream_limits import StreamLimits, TooManyStreams
from mcproxy.downstream.stateless.streamable_http import StatelessHttp
from mcproxy.http import server as http
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, InvalidMessage
from mcproxy.settings import Proxy
from mcproxy.settings.endpoints import key_of
from mcproxy.telemetry.trace_context import arrived, picked

PathParameters = Mapping[str, str]
"""Values of the named segments in a route's path."""
Identify = Callable[[http.Request], Principal | Awaitable[Principal]]
"""The principal of a request, without awaiting where it is known already.

Raises Refusal where the request does not identify one, with a challenge in its headers.
"""

FINAL_FLUSH: Final = 0.5
"""Seconds beyond `shutdown_grace` for clients to read what was written."""


class RoutedHead(msgspec.Struct, frozen=True):
    """What follows from a head and the settings: whom it is for, once it has been let in."""

    proxy: Proxy
    method: str
    target: str
    handler: http.RoutedHandler
    found: PathParameters
    added: Mapping[str, str]
    """Header fields of the response."""


def anonymous(request: http.Request) -> Principal:
    return ANONYMOUS


async def serve_http(
    context: TransportContext,
    *,
    stop: anyio.Event,
    started: Callable[[str], None],
    identify: Identify = anonymous,
    extra_routes: Iterable[http.Route] = (),
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serves until `stop`; then admits nothing, lets calls end within `shutdown_grace`, and returns (R9).

    `started` is called with the base URL, including the port that was bound. `extra_routes` are served beside MCP,
    behind the same checks of Host and Origin, without identity. Raises OSError where it cannot listen.
    """
    proxy = context.proxy
    listener = HttpApp(context, identify, extra_routes)
    async with anyio.create_task_group() as tasks:
        server = http.Server(listener.handle, _refuse, partial(_server_bounds, context))
        await tasks.start(server.run)
        port = await server.listen(proxy.host, proxy.port, tls)
        tasks.start_soon(listener.sweep)
        try:
            started(_base_url("http" if tls is None else "https", proxy.host, port))
            await stop.wait()
        finally:
            with anyio.CancelScope(shield=True):
                server.drain()
                await listener.drain()
                await server.close(FINAL_FLUSH)
                listener.close()
            tasks.cancel_scope.cancel()


class HttpApp:
    """The routes of MCP, for every endpoint and every era."""

    def __init__(self, context: TransportContext, identify: Identify, extra_routes: Iterable[http.Route] = ()) -> None:
        self._context = context
        self._identify = identify
        self._sessions = SessionStore(context)
        self._streams = StreamLimits(context)
        self._stateless = StatelessHttp(context, self._streams)
        self._streamable = StreamableHttp(context, self._sessions, self._streams)
        self._event_streams = HttpSse(context, self._sessions, self._streams)
        self._router = http.PathRouter([*self._routes(), *extra_routes])
        self._answer = _traced(self._routed) if context.traced else self._routed
        self._received = context.metrics.received("http")
        self._sent = context.metrics.sent("http")
        self._in_flight = 0
        self._idle: asyncio.Event | None = None
        """Made where `drain` waits for requests in flight."""

    async def handle(self, request: http.Request) -> http.Answered:
        """Answers any request; refusals that are raised become responses."""
        self._in_flight += 1
        try:
            return await self._answer(request)
        except Refusal as refusal:
            return refused(refusal)
        except TooManyStreams as refusal:
            return error(503, refusal)
        except http.NotFound:
            return _refuse(404, f"{request.path!r}: Not Found")
        except http.MethodNotAllowed as refusal:
            sentence = f"{request.path!r}: Method Not Allowed"
            return error(405, McpError(INVALID_REQUEST, sentence), headers={"Allow": refusal.allowed})
        finally:
            self._in_flight -= 1
            if self._idle is not None and not self._in_flight:
                self._idle.set()

    async def sweep(self) -> None:
        """Expires unused sessions until cancelled."""
        await self._sessions.sweep()

    async def drain(self) -> None:
        """Ends idle streams at once, gives calls `shutdown_grace`, and then cuts them off (requirement R9)."""
        self._stateless.drain()
        self._event_streams.drain()
        self._sessions.drain()
        with anyio.move_on_after(self._context.proxy.shutdown_grace):
            while self._in_flight:
                self._idle = asyncio.Event()
                await self._idle.wait()
            await self._streams.wait_closed()
        self._stateless.cut_off()
        self._sessions.cut_off()

    def close(self) -> None:
        self._sessions.close()

    def _routes(self) -> list[http.Route]:
        paths = self._context.proxy.paths
        one = paths.servers + "/{endpoint}"
        selection = paths.mcp + "/{selection}"
        methods = {"POST": self._post, "GET": self._get, "DELETE": self._delete}
        return [
            *(
                http.Route(method, path, handler)
                for path in (paths.mcp, f"{paths.mcp}/", f"{one}/mcp", f"{one}/mcp/", selection, f"{selection}/")
                for method, handler in methods.items()
            ),
            *(
                http.Route("GET", path, self._get_events)
                for path in (paths.sse, f"{one}/sse", paths.sse + "/{selection}")
            ),
            http.Route("POST", paths.messages, self._post_message),
        ]

    def _routed(self, request: http.Request) -> Awaitable[http.Answered]:
        """CORS preflights are answered before identity is asked for (R57)."""
        standing = request.fields.noted.get(RoutedHead)
        if (
            standing is None
            or standing.proxy is not self._context.proxy
            or standing.target != request.target
            or standing.method != request.method
        ):
            standing = request.fields.noted[RoutedHead] = self._standing(request)
        else:
            request.added = standing.added
        return standing.handler(request, standing.found)

    def _standing(self, request: http.Request) -> RoutedHead:
        """Raises Refusal, http.NotFound and http.MethodNotAllowed."""
        request.added = added = self._admitted(request)
        if request.method == "OPTIONS" and "access-control-request-method" in request.fields:
            return RoutedHead(self._context.proxy, request.method, request.target, _preflight, {}, added)
        handler, found = self._router.find(request)
        return RoutedHead(self._context.proxy, request.method, request.target, handler, found, added)

    def _admitted(self, request: http.Request) -> Mapping[str, str]:
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

    async def _post(self, request: http.Request, found: PathParameters) -> http.Answered:
        principal = self._identify(request)
        if not isinstance(principal, Principal):
            principal = await principal
        endpoint = self._endpoint(found, principal) if found else AGGREGATE
        if request.candidate is not None:
            # Not before it is known who sends it: what is remembered of a head takes memory.
            request.remember(principal, self._context.proxy)
        head = request_headers(request.fields)
        if not head.is_readable:
            raise _unreadable(head)
        body = request.received
        if body is None:
            body = await self._late_body(request)
        self._received.inc(len(body))
        incoming = _message(body)
        # versioning: a request says its era in its body, or in its header and is no handshake.
        if (head.is_stateless and not is_initialize(incoming)) or speaks_stateless(incoming):
            answer = await self._stateless.post(request, incoming, principal, endpoint)
        else:
            answer = await self._streamable.post(request, head, incoming, principal, endpoint)
        if isinstance(answer, http.Response):
            self._sent.inc(len(answer.body))
        return answer

    async def _get(self, request: http.Request, found: PathParameters) -> http.Answered:
        principal = await self._principal(request)
        endpoint = self._endpoint(found, principal)
        _check_method(request)
        return await self._streamable.get(request, principal, endpoint)

    async def _delete(self, request: http.Request, found: PathParameters) -> http.Answered:
        principal = await self._principal(request)
        endpoint = self._endpoint(found, principal)
        _check_method(request)
        return await self._streamable.delete(request, principal, endpoint)

    async def _get_events(self, request: http.Request, found: PathParameters) -> http.Answered:
        principal = await self._principal(request)
        return await self._event_streams.get(request, principal, self._endpoint(found, principal))

    async def _post_message(self, request: http.Request, found: PathParameters) -> http.Answered:
        principal = await self._principal(request)
        head = request_headers(request.fields)
        if not head.is_readable:
            raise _unreadable(head)
        body = await self._late_body(request)
        self._context.metrics.received("sse").inc(len(body))
        return await self._event_streams.post(request, _message(body), principal)

    async def _principal(self, request: http.Request) -> Principal:
        principal = self._identify(request)
        return principal if isinstance(principal, Principal) else await principal

    def _endpoint(self, found: PathParameters, principal: Principal) -> str:
        """Raises Refusal where the endpoint does not exist, or not for `principal`: that looks the same (R38)."""
        if not found:
            return AGGREGATE
        endpoint = key_of(found["selection"]) if "selection" in found else found["endpoint"]
        if not self._context.exists(endpoint, principal):
            raise Refusal(404, INVALID_REQUEST, "no server of that name is behind this gateway")
        return endpoint

    async def _late_body(self, request: http.Request) -> bytes:
        """The body of a request, awaited for `read_timeout` seconds. Raises Refusal."""
        patience = self._context.proxy.read_timeout
        try:
            return await request.body(patience)
        except http.BodyLate as late:
            sentence = f"the message did not arrive within {patience:g} s (read_timeout)"
            raise Refusal(408, INVALID_REQUEST, sentence) from late
        except http.BodyTooLarge as large:
            raise Refusal(413, INVALID_REQUEST, "the body is too large (limits.max_body_bytes)") from large
        except http.BodyCut as cut:
            raise Refusal(400, INVALID_REQUEST, "the body is not what its headers say, or is cut short") from cut


def _unreadable(head: RequestHeaders) -> Refusal:
    if head.content_type != JSON:
        sentence = f"the header Content-Type must be {JSON}, not {head.content_type!r}"
        return Refusal(415, INVALID_REQUEST, sentence)
    sentence = "the body must not be compressed"
    return Refusal(415, INVALID_REQUEST, sentence, headers={"Accept-Encoding": "identity"})


def _message(body: bytes) -> Incoming:
    """Raises Refusal."""
    try:
        return read(body)
    except InvalidMessage as invalid:
        raise Refusal(400, invalid.code, invalid.reason) from invalid


def _check_method(request: http.Request) -> None:
    """Refuses GET and DELETE to the stateless era, which has none (2026-07-28, streamable-http). Raises Refusal."""
    if request_headers(request.fields).is_stateless:
        raise Refusal(405, INVALID_REQUEST, "this protocol version has POST alone", headers={"Allow": "POST"})


async def _preflight(request: http.Request, _: PathParameters) -> http.Response:
    return http.Response(204, fields=preflight_headers(request.fields.joined("access-control-request-headers")))


def _traced(answers: http.RequestHandler) -> http.RequestHandler:
    """Reads `traceparent` and the like, and holds them for as long as the request is served."""

    async def tracing(request: http.Request) -> http.Answered:
        token = arrived.set(picked(request.fields))
        try:
            return await answers(request)
        finally:
            arrived.reset(token)

    return tracing


def _refuse(status: int, sentence: str) -> http.Response:
    code = INTERNAL_ERROR if status == 500 else INVALID_REQUEST
    return error(status, McpError(code, sentence))


def _server_bounds(context: TransportContext) -> http.Bounds:
    limits = context.proxy.limits
    return http.Bounds(
        limits.max_body_bytes, context.proxy.connection_idle, context.proxy.write_timeout, limits.max_connections
    )


def _own_hosts(context: TransportContext, request: http.Request) -> set[str]:
    """Host names of ours beside `allowed_hosts`: those configured, and the local address of the connection. No page of
    another origin can have these."""
    public = urlsplit(context.proxy.public_url or "").hostname or context.proxy.host
    return {context.proxy.host, public, *(request.local or ())[:1]}


def _base_url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
