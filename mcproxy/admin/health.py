"""The operator's routes: is the process alive, may it have traffic, and the metrics (requirement R51).

Tells no more of upstreams than the names of the required ones that are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from mcproxy.metrics import Metrics


def routes(
    metrics: Metrics, unready: Callable[[], Iterable[str]], *, metrics_path: str = "/metrics"
) -> list[web.RouteDef]:
    """`unready` says why there should be no traffic now, a line each: required upstreams that are missing, the end."""

    async def healthz(_request: web.Request) -> web.Response:
        return _plain("ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        reasons = list(unready())
        if reasons:
            return _plain("".join(f"{reason}\n" for reason in reasons), status=503)
        return _plain("ok\n")

    async def exposition(request: web.Request) -> web.Response:
        # The text format of Prometheus, or OpenMetrics where Accept asks for it.
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(metrics.registry), headers={"Content-Type": content_type} | _NEVER_STORED)

    return [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get(metrics_path, exposition)]


_NEVER_STORED = {"Cache-Control": "no-store"}


def _plain(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, headers=_NEVER_STORED)
