"""The page of endpoints has every route of the gateway and of the status page, and no others."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest

from mcproxy.access.identity import Identity
from mcproxy.admin.actions import Actions
from mcproxy.admin.approval_page import ApprovalPage
from mcproxy.admin.health import health_reports
from mcproxy.admin.status_page import StatusPage
from mcproxy.downstream.front import client_document, oauth_metadata
from mcproxy.downstream.front.app import HttpApp, alone, anonymous
from mcproxy.login.routes import LoginRoutes
from mcproxy.settings.access.authentication import Authentication
from mcproxy.upstream.oauth import registration
from tests.docs.diagrams import ROOT
from tests.fakes.gateway import FakeGateway, edge_of

pytestmark = pytest.mark.anyio

PAGE = (ROOT / "docs/reference/endpoints.md").read_text()
ROUTE = re.compile(r"`(GET|POST|DELETE|HEAD) (/[^`]*)`")
UNUSED = cast(Any, None)


def documented(heading: str) -> set[tuple[str, str]]:
    """Method and path of each route below a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return {(method, path) for method, path in ROUTE.findall(section)}


async def test_every_route_for_clients_is_documented() -> None:
    async with edge_of(FakeGateway()) as context:
        identity = Identity(Authentication(), context.tasks.start_soon)
        routes = [
            *HttpApp(context, anonymous)._routes(alone),
            *oauth_metadata.routes(context, identity),
            *client_document.routes(context, registration.DOCUMENT_PATH, registration.document),
            *LoginRoutes(UNUSED, UNUSED, UNUSED, identity, UNUSED, UNUSED).routes(),
        ]
        assert documented("For clients") == {(route.method, route.path) for route in routes}


async def test_every_route_for_operators_is_documented() -> None:
    async with edge_of(FakeGateway()) as context:
        paths = health_reports(context.metrics, list)
        assert documented("For operators") == {(method, path) for path in paths for method in ("GET", "HEAD")}


def test_every_route_of_the_status_page_is_documented() -> None:
    page = StatusPage(UNUSED, UNUSED, UNUSED, Actions(dict, lambda _: None), UNUSED)
    routes = [*page.routes(), *ApprovalPage(UNUSED, UNUSED).routes()]
    assert documented("The status page") == {(route.method, route.path) for route in routes}
