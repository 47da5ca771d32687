"""The status page in a real browser: accessible in light and dark, on a phone, by keyboard, and alive."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.async_api import Browser, Page, async_playwright

from mcproxy.call.calls import Complete, InputRequired
from mcproxy.call.clients import InputRequest
from mcproxy.call.upstreams import Disconnected, LinkState, ServerIdentity, UpstreamStatus
from mcproxy.configuration.problems import Place, Problem, RefusedReload
from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import first_level
from tests.admin.test_status_page import PAGES, Site, make_calls, site

pytestmark = pytest.mark.anyio  # a busy machine takes minutes to draw nine pages

AXE = Path(__file__).parent / "node/node_modules/axe-core/axe.min.js"

REFUSED = RefusedReload(1_800_000_000.0, (Problem("/etc/" + 60 * "long" + ".yaml", "unknown key", Place(12, 3)),))

PIXEL = {
    "type": "image",
    "mimeType": "image/png",
    "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
}

Scheme = Literal["light", "dark"]
Browsing = Callable[..., AbstractAsyncContextManager[tuple[Site, Page]]]


def chromium() -> str:
    """The browser's path. Without it, or without axe, a test is skipped, and in CI it fails."""
    found = shutil.which("chromium")
    if found is None or not AXE.exists():
        what = "chromium is not installed" if found is None else "axe-core is not set up: run `make test`"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(what)
    return found


def asking() -> InputRequired:
    """The result of a call that waits for a number."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    request = InputRequest("elicitation/create", first_level({"message": "How many?", "requestedSchema": schema}))
    return InputRequired({"one": request}, "sealed", {})


@asynccontextmanager
async def page_in(browser: Browser, scheme: Scheme = "light", width: int = 1200) -> AsyncIterator[tuple[Site, Page]]:
    """A site of its own, and a window in which no page was opened."""
    async with (
        site() as ui,
        await browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800}) as context,
    ):
        context.set_default_timeout(0)  # how soon a busy machine has drawn a page is not what is tested
        yield ui, await context.new_page()


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The browser outlives a test, and so does the loop in which it was started."""
    return "asyncio"


@pytest.fixture(scope="module")
async def browsing(anyio_backend: str) -> AsyncIterator[Browsing]:
    path = chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=0)
        yield partial(page_in, browser)
        await browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_page_is_accessible_and_breaks_no_rule_of_its_policy(browsing: Browsing, scheme: Scheme) -> None:
    async with browsing(scheme) as (ui, page):
        complaints: list[str] = []
        ui.gateway.refused_reload = REFUSED
        make_calls(ui.gateway)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        for path in PAGES:
            await page.goto(ui.url + path)
            await page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            # Evaluated by the debugger, which the page's policy does not bind.
            await page.evaluate(AXE.read_text())
            found: dict[str, Any] = await page.evaluate("axe.run()")
            broken = [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found["violations"]]
            assert (path, broken) == (path, [])
        assert complaints == []


async def test_a_question_and_a_result_with_an_image_are_accessible_and_fit_a_phone(browsing: Browsing) -> None:
    async with browsing(width=390) as (ui, page):
        for ui.gateway.outcome in (asking(), Complete(first_level({"content": [PIXEL, PIXEL]}))):
            await page.goto(f"{ui.url}/ui/catalogue/tool?key=odd__echo")
            await page.get_by_role("button", name="Call").click()
            await page.wait_for_selector("#answer")
            await page.evaluate(AXE.read_text())
            found: dict[str, Any] = await page.evaluate("axe.run()")
            assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found["violations"]] == []
            assert await page.evaluate("document.documentElement.scrollWidth") == 390


async def test_nothing_of_a_page_is_wider_than_a_phone(browsing: Browsing) -> None:
    async with browsing(width=390) as (ui, page):
        ui.gateway.refused_reload = REFUSED
        make_calls(ui.gateway)
        for path in PAGES:
            await page.goto(ui.url + path)
            await page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            assert (path, await page.evaluate("document.documentElement.scrollWidth")) == (path, 390)


@pytest.mark.parametrize("width", [390, 1200])
async def test_cards_hold_their_figures(browsing: Browsing, width: int) -> None:
    async with browsing(width=width) as (ui, page):
        make_calls(ui.gateway)
        identity = ServerIdentity(Era.STATELESS, "2026-07-28", {})
        ui.gateway.further = [UpstreamStatus("far", LinkState.READY, 1.0, "streamable-http", identity)]
        for path in (*PAGES, "/ui/servers/far"):
            await page.goto(ui.url + path)
            wide = "[...document.querySelectorAll('.figures dd')].filter((one) => one.scrollWidth > one.clientWidth)"
            assert (path, await page.evaluate(f"{wide}.map((one) => one.textContent)")) == (path, [])


async def test_a_tool_is_called_by_keyboard_alone(browsing: Browsing) -> None:
    async with browsing() as (ui, page):
        await page.goto(f"{ui.url}/ui/catalogue/tool?key=odd__echo")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        await page.keyboard.press("Enter")
        while await page.evaluate("document.activeElement.name") != "p.text":
            await page.keyboard.press("Tab")
        await page.keyboard.type("hello")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("#answer")
        (call,) = ui.gateway.calls
        assert bytes(call.params["arguments"]) == b'{"text":"hello"}'


async def test_a_question_in_the_middle_of_a_call_is_answered_by_keyboard_alone(browsing: Browsing) -> None:
    async with browsing() as (ui, page):
        ui.gateway.outcome = asking()
        await page.goto(f"{ui.url}/ui/catalogue/tool?key=odd__echo")
        await page.locator("[name='p.text']").focus()
        await page.keyboard.press("Enter")
        await page.wait_for_selector("legend")
        while await page.evaluate("document.activeElement.name") != "q.one.n":
            await page.keyboard.press("Tab")
        await page.keyboard.type("3")
        ui.gateway.outcome = Complete(first_level({"content": [PIXEL]}))
        await page.keyboard.press("Enter")
        image = page.locator("main img")
        await image.wait_for()
        assert await image.evaluate("image => image.naturalWidth") == 1, "the page's policy lets the image be seen"
        first, second = ui.gateway.calls
        assert "inputResponses" not in first.params
        assert json.loads(bytes(second.params["inputResponses"])) == {"one": {"action": "accept", "content": {"n": 3}}}


async def test_a_server_is_restarted_and_the_catalogue_is_searched_by_keyboard_alone(browsing: Browsing) -> None:
    async with browsing() as (ui, page):
        await page.goto(f"{ui.url}/ui/servers/odd")
        while await page.evaluate("document.activeElement.textContent") != "Restart":
            await page.keyboard.press("Tab")
        async with page.expect_navigation():
            await page.keyboard.press("Enter")
        assert ui.gateway.upstream.done == ["restart"]
        await page.goto(f"{ui.url}/ui/catalogue")
        while await page.evaluate("document.activeElement.name") != "q":
            await page.keyboard.press("Tab")
        await page.keyboard.type("echo")
        async with page.expect_navigation():
            await page.keyboard.press("Enter")
        assert "q=echo" in page.url


async def test_what_passes_is_shown_as_it_passes(browsing: Browsing) -> None:
    async with browsing() as (ui, page):
        await page.goto(f"{ui.url}/ui/live")
        await page.get_by_text("Watching.").wait_for()
        ui.feed.on_event(Disconnected("odd", None, "<b>the child exited</b>"))
        await page.get_by_text("<b>the child exited</b>").wait_for()
        await page.get_by_label("Show only").fill("nothing like it")
        assert not await page.get_by_text("<b>the child exited</b>").is_visible()


async def test_a_page_that_is_looked_at_renews_itself(browsing: Browsing) -> None:
    async with browsing() as (ui, page):
        await page.clock.install()
        await page.goto(f"{ui.url}/ui")
        assert await page.locator("tbody .n").first.inner_text() == "0"
        ui.gateway.metrics.requests.labels("odd", "tools/call", "echo", "ok").inc(7)
        await page.clock.run_for(6000)
        await page.get_by_role("cell", name="7", exact=True).wait_for()


async def test_an_open_table_stays_open_when_the_page_renews_itself(browsing: Browsing) -> None:
    async with browsing() as (ui, page):
        await page.clock.install()
        await page.goto(f"{ui.url}/ui")
        await page.get_by_text("The last hour as a table").click()
        await page.evaluate("document.activeElement.blur()")
        make_calls(ui.gateway)
        await page.clock.run_for(6000)
        await page.locator("#minutes[open] td").first.wait_for()
