"""The operator's routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from mcproxy.admin.health import routes
from mcproxy.metrics import Metrics

pytestmark = pytest.mark.anyio

Client = TestClient[web.Request, web.Application]


@asynccontextmanager
async def serving(missing: list[str], metrics: Metrics | None = None) -> AsyncIterator[Client]:
    application = web.Application()
    application.add_routes(routes(metrics or Metrics(), lambda: missing))
    with anyio.fail_after(5):
        async with TestClient(TestServer(application)) as client:
            yield client


async def test_r51_the_process_is_healthy_whatever_its_upstreams_do() -> None:
    async with serving(["waiting for git"]) as client, client.get("/healthz") as response:
        assert (response.status, await response.text()) == (200, "ok\n")


async def test_r51_ready_is_when_every_required_upstream_is() -> None:
    missing = ["waiting for git", "waiting for time"]
    async with serving(missing) as client:
        async with client.get("/readyz") as response:
            assert (response.status, await response.text()) == (503, "waiting for git\nwaiting for time\n")
        missing.clear()
        async with client.get("/readyz") as response:
            assert (response.status, await response.text()) == (200, "ok\n")


async def test_metrics_are_in_the_format_that_the_scraper_asks_for() -> None:
    metrics = Metrics()
    metrics.upstream_up.labels("git").set(1)
    async with serving([], metrics) as client:
        async with client.get("/metrics") as response:
            assert response.content_type == "text/plain"
            assert 'mcproxy_upstream_up{upstream="git"} 1.0' in await response.text()
        async with client.get(
            "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
        ) as response:
            assert response.content_type == "application/openmetrics-text"
            assert (await response.text()).endswith("# EOF\n")
