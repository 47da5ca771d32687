"""The HTTP server: admission, identity, limits, the choice of the era, and dispatch. Answers no message itself.

Everything that is refused here is refused with a JSON-RPC error that says why.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final
from urllib.parse import urlsplit

import anyio
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from mcproxy.call import AGGREGATE, ANONYMOUS, McpError, Principal
from mcproxy.downstream.admission import admits_host, admits_origin, cors_headers, preflight_headers
from mcproxy.downstream.edge import Edge
from mcproxy.downstream.handshake import opens
from mcproxy.downstream.open_streams import OpenStreams, TooManyStreams
from mcproxy.downstream.opening import Incoming, read, speaks_stateless
from mcproxy.downstream.responses import JSON, Refusal, error, refused, send_whole
from mcproxy.downstream.sessions import Sessions
from mcproxy.downstream.sse import EventStreams
from mcproxy.downstream.stateless_http import StatelessHttp
from mcproxy.downstream.streamable import Streamable
from mcproxy.propagation import arrived, picked
from mcproxy.protocol.eras import STATELESS_VERSIONS
from mcproxy.protocol.headers import VERSION
from mcproxy.protocol.jsonrpc import INVALID_REQUEST, InvalidMessage
from mcproxy.settings.endpoints import key_of

Identify = Callable[[web.Request], Awaitable[Principal]]
"""Says who sends a request. Raises Refusal where that cannot be told, with the headers that say what is missing."""

FAREWELL: Final = 2.0
"""Seconds beyond the grace in which the server itself must be down."""

LAST_WORDS: Final = 0.25
"""Seconds of them for responses to be written, twice: aiohttp waits, cancels, and waits again."""


async def anonymous(request: web.Request) -> Principal:
    return ANONYMOUS


def build_app(
    edge: Edge, *, identify: Identify = anonymous, extra_routes: Iterable[web.RouteDef] = ()
) -> web.Application:
    """The whole HTTP side. `extra_routes` are served beside MCP, behind the same admission, without identity."""
    listener = Listener(edge, identify)
    app = web.Application(
        middlewares=[*([_heard] if edge.traced else []), listener.present, _written(edge), _explained, _admitted(edge)],
        client_max_size=edge.proxy.limits.max_body_bytes,
    )
    app.add_routes(listener.routes())
    app.add_routes(extra_routes)
    app.on_response_prepare.append(_allow_origin)
    app.on_shutdown.append(listener.drain)
    app.cleanup_ctx.append(listener.running)
    return app


async def serve_http(
    edge: Edge,
    *,
    stop: anyio.Event,
    started: Callable[[str], None],
    identify: Identify = anonymous,
    extra_routes: Iterable[web.RouteDef] = (),
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serves until `stop`; then admits nothing, lets calls end within `shutdown_grace`, and returns (R9).

    `started` hears the base URL, with the port that was really taken. Raises OSError where it cannot listen.
    """
    proxy = edge.proxy
    runner = web.AppRunner(
        build_app(edge, identify=identify, extra_routes=extra_routes),
        access_log=None,
        # aiohttp counts this from the first byte to the whole head as well, and would take an hour by itself.
        keepalive_timeout=proxy.connection_idle,
        # A connection's end is its handler's. Calls do not mind: they run in the edge's own tasks.
        handler_cancellation=True,
        # The grace itself is given in `Listener.drain`.
        shutdown_timeout=LAST_WORDS,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, proxy.host, proxy.port, ssl_context=tls).start()
        started(_base_url("http" if tls is None else "https", proxy.host, runner.addresses[0][1]))
        await stop.wait()
    finally:
        with anyio.move_on_after(proxy.shutdown_grace + FAREWELL, shield=True):
            await runner.cleanup()


class Listener:
    """The routes of MCP, for every endpoint and every era."""

    def __init__(self, edge: Edge, identify: Identify) -> None:
        self._edge = edge
        self._identify = identify
        self._sessions = Sessions(edge)
        streams = OpenStreams(edge)
        self._stateless = StatelessHttp(edge, streams)
        self._streamable = Streamable(edge, self._sessions, streams)
        self._event_streams = EventStreams(edge, self._sessions, streams)
        self._present = 0
        self._quiet = anyio.Event()

    def routes(self) -> list[web.RouteDef]:
        paths = self._edge.proxy.paths
        one = paths.servers + "/{endpoint}"
        selection = paths.mcp + "/{selection}"
        return [
            *(
                route
                for path in (paths.mcp, f"{paths.mcp}/", f"{one}/mcp", f"{one}/mcp/", selection, f"{selection}/")
                for route in (
                    web.post(path, self._post),
                    web.get(path, self._get, allow_head=False),
                    web.delete(path, self._delete),
                )
            ),
            *(
                web.get(path, self._get_events, allow_head=False)
                for path in (paths.sse, f"{one}/sse", paths.sse + "/{selection}")
            ),
            web.post(paths.messages, self._post_message),
        ]

    async def running(self, app: web.Application) -> AsyncIterator[None]:
        """Sweeps idle sessions for as long as the server runs, and ends them all with it."""
        scope = anyio.CancelScope()

        async def sweep() -> None:
            with scope:
                await self._sessions.sweep()

        self._edge.tasks.start_soon(sweep)
        yield
        scope.cancel()
        self._sessions.close()

    @web.middleware
    async def present(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The outermost middleware: counts the requests that wait for the end of their response."""
        self._present += 1
        try:
            return await handler(request)
        finally:
            self._present -= 1
            if not self._present:
                self._quiet.set()
                self._quiet = anyio.Event()

    async def drain(self, app: web.Application) -> None:
        """Ends what is idle at once, gives the rest `shutdown_grace`, and then cuts it off (requirement R9)."""
        self._stateless.drain()
        self._event_streams.drain()
        self._sessions.drain()
        if self._present:
            with anyio.move_on_after(self._edge.proxy.shutdown_grace):
                await self._quiet.wait()
        self._stateless.abandon()
        self._sessions.abandon()

    async def _post(self, request: web.Request) -> web.StreamResponse:
        principal = await self._identify(request)
        endpoint = self._endpoint(request, principal)
        incoming = await self._read(request, "http")
        if _is_stateless(request, incoming):
            return await self._stateless.post(request, incoming, principal, endpoint)
        return await self._streamable.post(request, incoming, principal, endpoint)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        principal = await self._identify(request)
        endpoint = self._endpoint(request, principal)
        _check_method(request)
        return await self._streamable.get(request, principal, endpoint)

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        principal = await self._identify(request)
        endpoint = self._endpoint(request, principal)
        _check_method(request)
        return await self._streamable.delete(request, principal, endpoint)

    async def _get_events(self, request: web.Request) -> web.StreamResponse:
        principal = await self._identify(request)
        return await self._event_streams.get(request, principal, self._endpoint(request, principal))

    async def _post_message(self, request: web.Request) -> web.StreamResponse:
        principal = await self._identify(request)
        return await self._event_streams.post(request, await self._read(request, "sse"), principal)

    def _endpoint(self, request: web.Request, principal: Principal) -> str:
        """Raises Refusal where there is none, or none for `principal`: that must look the same (requirement R38)."""
        found = request.match_info
        endpoint = key_of(found["selection"]) if "selection" in found else found.get("endpoint", AGGREGATE)
        if not self._edge.exists(endpoint, principal):
            raise Refusal(404, INVALID_REQUEST, "no server of that name is behind this gateway")
        return endpoint

    async def _read(self, request: web.Request, transport: str) -> Incoming:
        """The message in a request's body. Raises Refusal."""
        if request.content_type != JSON:
            sentence = f"the header Content-Type must be {JSON}, not {request.content_type!r}"
            raise Refusal(415, INVALID_REQUEST, sentence)
        timeout = self._edge.proxy.read_timeout
        try:
            body = await _whole_body(request, timeout)
        except TimeoutError as late:
            sentence = f"the message did not arrive within {timeout:g} s (read_timeout)"
            raise Refusal(408, INVALID_REQUEST, sentence) from late
        except web.RequestPayloadError as error:
            raise Refusal(400, INVALID_REQUEST, "the body is not what its headers say, or is cut short") from error
        self._edge.metrics.received(transport).inc(len(body))
        try:
            return read(body)
        except InvalidMessage as invalid:
            raise Refusal(400, invalid.code, invalid.reason) from invalid


async def _whole_body(request: web.Request, patience: float) -> bytes:
    """Raises TimeoutError, and what aiohttp raises. Mostly the body came with the head, and there is no wait."""
    if request.content.is_eof():
        return await request.read()
    async with asyncio.timeout(patience):
        return await request.read()


def _is_stateless(request: web.Request, incoming: Incoming) -> bool:
    """Whether a POST opens in the era of 2026-07-28: its body says so, or its header and no handshake (versioning)."""
    return speaks_stateless(incoming) or (_names_stateless(request) and not opens(incoming))


def _names_stateless(request: web.Request) -> bool:
    return request.headers.get(VERSION) in STATELESS_VERSIONS


def _check_method(request: web.Request) -> None:
    """GET and DELETE are of the handshake eras alone (2026-07-28, streamable-http). Raises Refusal."""
    if _names_stateless(request):
        raise Refusal(405, INVALID_REQUEST, "this protocol version has POST alone", headers={"Allow": "POST"})


def _written(edge: Edge) -> Middleware:
    """Writes whole responses within `write_timeout`: a client that does not take one is disconnected (R8)."""

    @web.middleware
    async def written(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if isinstance(response, web.Response):
            await send_whole(request, response, edge.proxy.write_timeout)
            if response.content_type == JSON and isinstance(response.body, bytes):
                edge.metrics.sent("http").inc(len(response.body))
        return response

    return written


@web.middleware
async def _explained(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Gives every refusal its JSON-RPC error."""
    try:
        return await handler(request)
    except Refusal as refusal:
        return refused(refusal)
    except TooManyStreams as refusal:
        return error(503, refusal)
    except web.HTTPRequestEntityTooLarge as refusal:
        return error(413, McpError(INVALID_REQUEST, f"{refusal.text} (limits.max_body_bytes)"))
    except web.HTTPException as refusal:
        kept = {name: value for name, value in refusal.headers.items() if name == "Allow"}
        return error(refusal.status, McpError(INVALID_REQUEST, f"{request.path!r}: {refusal.reason}"), headers=kept)


@web.middleware
async def _heard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Notes of which trace a request is, for as long as it is served."""
    token = arrived.set(picked(request.headers))
    try:
        return await handler(request)
    finally:
        arrived.reset(token)


def _admitted(edge: Edge) -> Middleware:
    """Checks Host and Origin, and answers preflights before anybody asks who is there (R42, R57)."""

    @web.middleware
    async def admitted(request: web.Request, handler: Handler) -> web.StreamResponse:
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if not admits_host(host, edge.proxy.allowed_hosts, _bound(edge, request)):
            raise Refusal(421, INVALID_REQUEST, f"the Host {host!r} is not served here (proxy.allowed_hosts)")
        if origin is not None:
            if not admits_origin(origin, host, edge.proxy.allowed_origins):
                raise Refusal(403, INVALID_REQUEST, f"the Origin {origin!r} is not allowed (proxy.allowed_origins)")
            request[_ORIGIN] = origin
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            requested = request.headers.get("Access-Control-Request-Headers")
            return web.Response(status=204, headers=preflight_headers(requested))
        return await handler(request)

    return admitted


async def _allow_origin(request: web.Request, response: web.StreamResponse) -> None:
    if _ORIGIN in request:
        response.headers.update(cors_headers(request[_ORIGIN]))


_ORIGIN: Final = web.RequestKey("origin", str)


def _bound(edge: Edge, request: web.Request) -> set[str]:
    """The names of the address that a request arrived at, and our own. No page can have another host's name for it."""
    address = request.transport.get_extra_info("sockname") if request.transport is not None else None
    public = urlsplit(edge.proxy.public_url or "").hostname or edge.proxy.host
    return {edge.proxy.host, public, *(address[:1] if isinstance(address, tuple) else ())}


def _base_url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
