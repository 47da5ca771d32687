"""The login pages in a real browser, by keyboard alone: who is it, consent, the authorization server, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright

from tests.admin.test_browser import AXE, chromium
from tests.system.test_login import AUTHENTICATED, KEYS, as_principal, guarded, link_of, until_listed

SECONDS = 600  # a busy machine takes minutes to draw a few pages
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(SECONDS)]


async def faults(page: Page) -> list[str]:
    """The rules of accessibility that a page breaks."""
    # Evaluated by the debugger, which the page's policy does not bind.
    await page.evaluate(AXE.read_text())
    found: dict[str, Any] = await page.evaluate("axe.run()")
    return [rule["id"] for rule in found["violations"]]


async def press_button(page: Page, name: str) -> None:
    """Goes to a button by the Tab key, and presses it."""
    while not (await page.evaluate("document.activeElement.textContent")).startswith(name):
        await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")


async def type_key(page: Page, key: str) -> None:
    while await page.evaluate("document.activeElement.id") != "key":
        await page.keyboard.press("Tab")
    await page.keyboard.type(key)
    await page.keyboard.press("Enter")


async def test_a_person_logs_in_by_keyboard_alone_on_pages_that_are_accessible(tmp_path: Path) -> None:
    path = chromium()
    async with (
        guarded(tmp_path, within=SECONDS, **AUTHENTICATED) as (server, running, _),
        as_principal(running, "ann") as ann,
        async_playwright() as playwright,
    ):
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=0)
        context = await browser.new_context(viewport={"width": 390, "height": 800})
        context.set_default_timeout(0)  # how soon a busy machine has drawn a page is not what is tested
        page = await context.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))

        await page.goto(await link_of(ann))
        assert await faults(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") == 390

        await type_key(page, "no key at all")
        await page.get_by_role("alert").wait_for()
        assert await faults(page) == []
        assert any("403" in complaint for complaint in complaints), "the browser says that the key was refused"
        complaints.clear()

        await type_key(page, KEYS["ann"])
        await page.get_by_role("heading", name="Log in to web?").wait_for()
        assert await faults(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") == 390
        assert server.registrations == [], "nothing is begun before consent"

        await press_button(page, "Continue to")
        await page.get_by_role("heading", name="You are logged in to web").wait_for()
        assert await faults(page) == []
        assert complaints == []
        await browser.close()
        await until_listed(ann, "web__work")
        assert not (await ann.call_tool("web__work", {})).is_error
    assert server.served.count("tools/call") == 1
