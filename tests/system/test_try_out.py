"""A tool that asks in the middle of a call, tried on the status page of a gateway that runs."""

from __future__ import annotations

import html
import re
from pathlib import Path

import aiohttp
import pytest

from tests.system.running import ODD_SERVER, ROOT, configuration, gateway

pytestmark = pytest.mark.anyio

ODD = {"command": ODD_SERVER[0], "args": ODD_SERVER[1:], "cwd": str(ROOT)}
HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)"')


def hidden(page: str) -> dict[str, str]:
    """The hidden fields of the last form of a page."""
    form = page[page.rindex("<form") :]
    return {html.unescape(name): html.unescape(value) for name, value in HIDDEN.findall(form)}


async def test_a_question_of_a_handshake_server_is_answered_in_the_page_s_next_request(tmp_path: Path) -> None:
    settings = {**configuration({"odd": ODD}), "admin": {"port": 0}}
    async with gateway(tmp_path, settings) as running, aiohttp.ClientSession() as http:
        serving = await running.log.says(lambda entry: "status_page" in entry)
        url = f"{serving['status_page']}/catalogue/tool?key=odd__form"
        async with http.get(url) as response:
            first = hidden(await response.text())
        async with http.post(url, data=first) as response:
            asked = await response.text()
        assert ">Question</h2>" in asked
        answers = dict.fromkeys(re.findall(r'name="(q\.[^"]+)"', asked), "7")
        assert answers
        async with http.post(url, data={**hidden(asked), **answers, "action": "accept"}) as response:
            answered = await response.text()
        assert ">Result</h2>" in answered
        assert "accept" in answered
