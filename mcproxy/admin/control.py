"""Answers commands over the control socket: status, actions, explanations, children's stderr.

JSON over HTTP/1.1. A process that may open the socket acts for an operator; this module authenticates no peer.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from socket import socket
from typing import Any, Final, Protocol

import anyio
import msgspec
from msgspec import Raw

from mcproxy.admin.actions import Actions, NoSuchUpstream
from mcproxy.call.upstreams import UpstreamStatus
from mcproxy.configuration.problems import RefusedReload, problem_json
from mcproxy.http import server as http

OPERATOR: Final = "the control socket"
"""The name under which actions over the socket are recorded."""

BODY_TIMEOUT: Final = 10.0
"""Seconds that the body of a request may take."""
FINAL_FLUSH: Final = 0.25
"""Seconds for commands to read their answers when the gateway stops."""
_BOUNDS: Final = http.Bounds(max_body=64 * 1024, idle=60, write_timeout=30, connections=100, head_timeout=30)


MAX_PROBLEMS: Final = 100
"""Problems of a refused reload that are reported."""


class ExplainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A call that is to be explained; `endpoint` is the key of one."""

    method: str
    subject: str
    principal: str
    roles: list[str] = []
    endpoint: str = ""
    arguments: dict[str, Raw] = {}


class Controlled(Protocol):
    """The gateway as the socket reports it, now."""

    def statuses(self) -> list[UpstreamStatus]:
        """The state of every enabled upstream."""

    def facts(self) -> Mapping[str, object]:
        """The process and what it serves, as JSON values by name."""

    def explain(self, request: ExplainRequest) -> Mapping[str, object]:
        """`allowed` and the `steps` to it, as JSON values. Raises ValueError for a method without a subject."""


def routes(gateway: Controlled, actions: Actions, refused: Callable[[], RefusedReload | None]) -> list[http.Route]:
    """The handlers, by path. An upstream that does not run is 404, with the names of those that do.

    `refused` is the reload that was refused, None where the latest was applied.
    """

    async def status(_request: http.Request, _path: Mapping[str, str]) -> http.Response:
        upstreams = [_upstream(found) for found in gateway.statuses()]
        return _json({**gateway.facts(), "refused_reload": _reload_json(refused()), "upstreams": upstreams})

    async def stderr(request: http.Request, path: Mapping[str, str]) -> http.Response:
        found = next((status for status in gateway.statuses() if status.name == path["name"]), None)
        if found is None:
            return _missing(actions.missing(path["name"]))
        after = request.query.get("after", "")
        lines = found.stderr_after(int(after) if after.isdecimal() else 0)
        return _json({"lines": lines, "next": found.stderr_count})

    def log_level(body: bytes) -> object:
        actions.set_log_level(body.decode(), OPERATOR)
        return {}

    def explain(body: bytes) -> object:
        return gateway.explain(msgspec.json.decode(body, type=ExplainRequest))

    return [
        http.Route("GET", "/status", status),
        http.Route("GET", "/servers/{name}/stderr", stderr),
        http.Route("POST", "/servers/{name}/restart", _acting(actions.restart)),
        http.Route("POST", "/servers/{name}/retry", _acting(actions.retry)),
        http.Route("POST", "/log-level", _answering(log_level)),
        http.Route("POST", "/explain", _answering(explain)),
    ]


@asynccontextmanager
async def served_at_socket(listener: socket | None, table: list[http.Route]) -> AsyncIterator[None]:
    """Serves the routes at the socket while entered; nothing without a socket."""
    if listener is None:
        yield
        return
    router = http.PathRouter(table)

    async def handle(request: http.Request) -> http.Answered:
        try:
            handler, path = router.find(request)
        except (http.NotFound, http.MethodNotAllowed):
            return _refuse(404, f"the control socket has no {request.method} {request.path}")
        return await handler(request, path)

    server = http.Server(handle, _refuse, lambda: _BOUNDS)
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.run)
        await server.listen_at(listener)
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await server.close(FINAL_FLUSH)
            tasks.cancel_scope.cancel()


def _acting(act: Callable[[str, str], None]) -> http.RoutedHandler:
    async def handle(_request: http.Request, path: Mapping[str, str]) -> http.Response:
        try:
            act(path["name"], OPERATOR)
        except NoSuchUpstream as missing:
            return _missing(missing)
        return _json({})

    return handle


def _answering(answer: Callable[[bytes], object]) -> http.RoutedHandler:
    """A handler whose answer is made from the body; a ValueError is 400, with its sentence."""

    async def handle(request: http.Request, _path: Mapping[str, str]) -> http.Response:
        try:
            return _json(answer(await request.body(BODY_TIMEOUT)))
        except ValueError as error:  # msgspec's own are among them
            return _refuse(400, str(error))
        except (http.BodyTimeout, http.BodyTooLarge, http.BodyIncomplete):
            return _refuse(400, "the request is incomplete or too large")

    return handle


def _missing(missing: NoSuchUpstream) -> http.Response:
    return _refuse(404, str(missing))


def _refuse(status: int, sentence: str) -> http.Response:
    return _json({"error": sentence}, status)


def _json(value: object, status: int = 200) -> http.Response:
    return http.Response(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


def _reload_json(reload: RefusedReload | None) -> dict[str, object] | None:
    if reload is None:
        return None
    return {"since": reload.since, "problems": [problem_json(problem) for problem in reload.problems[:MAX_PROBLEMS]]}


def _upstream(status: UpstreamStatus) -> dict[str, Any]:
    identity = status.identity
    found = msgspec.structs.asdict(status)
    for left_out in ("identity", "stderr", "address"):
        del found[left_out]
    return {
        **found,
        "state": status.state.value,
        "login": None if status.login is None else msgspec.structs.asdict(status.login),
        "failure": None if status.failure is None else status.failure.value,
        "version": None if identity is None else identity.version,
    }
