"""What commands ask of a gateway that runs, over its control socket: its status, actions, and the stderr of children.

JSON over HTTP/1.1. A process that may open the socket acts for an operator; this module authenticates no peer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from socket import socket
from typing import Any, Final, Protocol

from aiohttp import web

from mcproxy.admin.actions import Actions, NoSuchUpstream
from mcproxy.call.upstreams import UpstreamStatus

OPERATOR: Final = "the control socket"
"""As whom actions over the socket are recorded."""

MAX_BODY: Final = 64 * 1024


class Controlled(Protocol):
    """What the socket tells of the gateway, as of now."""

    def statuses(self) -> list[UpstreamStatus]: ...

    def facts(self) -> Mapping[str, object]:
        """The process and what it serves, as JSON values by name."""


def routes(gateway: Controlled, actions: Actions) -> list[web.RouteDef]:
    """The handlers, by path. An upstream that does not run is 404, with the names of those that do."""

    async def status(_: web.Request) -> web.Response:
        upstreams = [_upstream(found) for found in gateway.statuses()]
        return web.json_response({**gateway.facts(), "upstreams": upstreams})

    async def stderr(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        found = next((status for status in gateway.statuses() if status.name == name), None)
        if found is None:
            return _missing(NoSuchUpstream(f"no server {name!r} runs here"))
        after = request.query.get("after", "")
        lines = found.stderr_after(int(after) if after.isdecimal() else 0)
        return web.json_response({"lines": lines, "next": found.stderr_count})

    async def log_level(request: web.Request) -> web.Response:
        level = await request.text()
        try:
            actions.set_log_level(level, OPERATOR)
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response({})

    return [
        web.get("/status", status),
        web.get("/servers/{name}/stderr", stderr),
        web.post("/servers/{name}/restart", _acting(actions.restart)),
        web.post("/servers/{name}/retry", _acting(actions.retry)),
        web.post("/log-level", log_level),
    ]


@asynccontextmanager
async def served(listener: socket | None, table: list[web.RouteDef]) -> AsyncIterator[None]:
    """Serves the routes at the socket while entered; nothing without a socket."""
    if listener is None:
        yield
        return
    app = web.Application(client_max_size=MAX_BODY)
    app.add_routes(table)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.25)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        yield
    finally:
        await runner.cleanup()


def _acting(act: Callable[[str, str], None]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        try:
            act(request.match_info["name"], OPERATOR)
        except NoSuchUpstream as missing:
            return _missing(missing)
        return web.json_response({})

    return handle


def _missing(missing: NoSuchUpstream) -> web.Response:
    return web.json_response({"error": str(missing)}, status=404)


def _upstream(status: UpstreamStatus) -> dict[str, Any]:
    identity = status.identity
    found = asdict(status)
    for left_out in ("identity", "stderr", "address"):
        del found[left_out]
    return {
        **found,
        "state": status.state.value,
        "failure": None if status.failure is None else status.failure.value,
        "version": None if identity is None else identity.version,
    }
