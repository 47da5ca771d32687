"""The twin of `mcproxy.admin.approval_page`: what a link of the operators' webhook shows and decides."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest

from mcproxy.access.approval_links import ApprovalLinks
from mcproxy.admin.approval_page import ELSEWHERE, ApprovalPage
from mcproxy.admin.listener import served
from mcproxy.admin.pages import Pages
from mcproxy.configuration.problems import Problem, RefusedReload
from mcproxy.sealing import Sealer
from tests.admin.test_status_page import HOSTILE, TOKEN, FakeGateway

pytestmark = pytest.mark.anyio


@dataclass
class Visit:
    gateway: FakeGateway
    http: aiohttp.ClientSession
    link: str

    async def get(self) -> tuple[int, str]:
        async with self.http.get(self.link) as response:
            return response.status, await response.text()

    async def post(self, decision: str) -> tuple[int, str]:
        async with self.http.post(self.link, data={"decision": decision}) as response:
            return response.status, await response.text()

    async def post_json(self, body: object) -> tuple[int, str]:
        async with self.http.post(self.link, json=body) as response:
            return response.status, await response.text()


@asynccontextmanager
async def visited() -> AsyncIterator[Visit]:
    gateway, links = FakeGateway(), ApprovalLinks(Sealer(b"secret"))
    pages = Pages(gateway, gateway.figures, frozenset, lambda: gateway.refused_reload, TOKEN)
    async with served("127.0.0.1", 0, ApprovalPage(pages, links).routes()) as url, aiohttp.ClientSession() as http:
        links.base = url
        link = links.link("one")
        assert link is not None
        yield Visit(gateway, http, link)


async def test_the_page_shows_the_call_escaped_and_decides_nothing_by_itself() -> None:
    async with visited() as visit:
        status, page = await visit.get()
        assert status == 200
        assert HOSTILE not in page
        assert "Approve" in page
        assert TOKEN not in page
        assert visit.gateway.decided == []


@pytest.mark.parametrize(("decision", "approve"), [("allow", True), ("deny", False)])
async def test_its_form_decides(decision: str, approve: bool) -> None:
    async with visited() as visit:
        status, page = await visit.post(decision)
        assert (status, "Decided." in page) == (200, True)
        assert visit.gateway.decided == [("one", approve)]


async def test_a_service_decides_by_json() -> None:
    async with visited() as visit:
        assert await visit.post_json({"decision": "deny", "more": 1}) == (200, '{"decided": true}')
        assert visit.gateway.decided == [("one", False)]


@pytest.mark.parametrize("body", [{}, {"decision": "perhaps"}, {"decision": ["allow"]}, [], 7, None])
async def test_what_is_no_decision_is_refused(body: object) -> None:
    async with visited() as visit:
        assert (await visit.post_json(body))[0] == 400
        assert (await visit.post("perhaps"))[0] == 400
        async with visit.http.post(visit.link, data=b"{", headers={"Content-Type": "application/json"}) as response:
            assert response.status == 400
        assert visit.gateway.decided == []


async def test_a_call_that_waits_no_more_is_gone() -> None:
    async with visited() as visit:
        visit.gateway.waits = []
        assert (await visit.get())[0] == 410
        status, page = await visit.post("allow")
        assert (status, "Not decided: this call waits no more." in page) == (410, True)
        told = '{"decided": false, "reason": "this call waits no more"}'
        assert await visit.post_json({"decision": "allow"}) == (410, told)


async def test_a_link_of_another_replica_is_told_to_be_one_and_decides_nothing() -> None:
    async with visited() as visit:
        other = ApprovalLinks(Sealer(b"secret", label="another-1"))
        other.base = visit.link.partition("/approvals/")[0]
        visit.link = other.link("one") or ""
        status, page = await visit.get()
        assert (status, ELSEWHERE in page, "Approve" in page) == (421, True, False)
        status, page = await visit.post("allow")
        assert (status, f"Not decided: {ELSEWHERE}" in page) == (421, True)
        status, told = await visit.post_json({"decision": "allow"})
        assert (status, json.loads(told)) == (421, {"decided": False, "reason": ELSEWHERE})
        assert visit.gateway.decided == []


async def test_a_link_that_was_altered_shows_nothing() -> None:
    async with visited() as visit:
        visit.link = visit.link[:-3]
        assert (await visit.get())[0] == 404
        assert (await visit.post("allow"))[0] == 404
        assert visit.gateway.decided == []


async def test_the_holder_of_a_link_learns_nothing_of_the_configuration() -> None:
    async with visited() as visit:
        visit.gateway.refused_reload = RefusedReload(0, (Problem("proxy", "should be another"),))
        _, page = await visit.get()
        assert "should be another" not in page
        assert "/ui/configuration" not in page
