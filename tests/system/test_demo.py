"""What `make run` shows: the demo's configuration as it is in the repository, with its servers as published."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urljoin

import aiohttp
import anyio
import pytest

from mcproxy.cli.access.grants import login, logout
from mcproxy.cli.runtime import ExitCode
from mcproxy.configuration.loading import load_configuration
from tests.fakes.clients.raw import over_http
from tests.system.running import PYTHON, ROOT, configuration, serving, web_server, write
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


async def test_the_demo_lists_the_tools_of_all_its_servers_and_calls_one(tmp_path: Path) -> None:
    zones = {"source_timezone": "UTC", "target_timezone": "Asia/Tokyo"}
    demo = tmp_path / "demo.yaml"
    shown_to_people = (ROOT / "config" / "demo.yaml").read_text()
    demo.write_text(shown_to_people.replace("log_format: console", "log_format: json"))
    async with (
        serving(tmp_path, demo, "time", "git", "fetch", more=["--port", "0"]) as running,
        over_http(running.url + "/mcp") as client,
    ):
        await client.initialize()
        names = {tool["name"] for tool in (await client.result("tools/list"))["tools"]}
        assert {"time__convert_time", "git__git_status", "fetch__fetch"} <= names
        answer = await client.call("time__convert_time", {"time": "12:00", **zones})
        assert "21:00" in answer["result"]["content"][0]["text"]


async def person(url: str, name: str) -> None:
    """Opens a login's link, says a name and agrees."""
    async with aiohttp.ClientSession() as http:
        async with http.get(url) as response:
            page, at = await response.text(), str(response.url)
        assert "wants to read and write your notes" in page
        async with http.post(urljoin(at, ""), data={"name": name, "answer": "yes"}) as response:
            assert response.status == 200


async def test_the_demos_own_server_wants_a_login_and_knows_who_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def open_browser(url: str) -> None:
        anyio.run(person, url, "ann")

    async def enter_code(seconds: float) -> None:
        """Instead of waiting: the person enters the code."""
        [url] = re.findall(r"^(http\S+)$", capsys.readouterr().err, re.MULTILINE)
        await person(url, "bob")

    with anyio.fail_after(GUARD):
        async with web_server(PYTHON, str(ROOT / "config" / "notes_server.py")) as url:
            file = write(tmp_path, configuration({"notes": {"url": url, "oauth": {}}}))
            settings = load_configuration(file).settings
            assert await login(settings, "notes", open_url=open_browser) is ExitCode.OK
            async with serving(tmp_path, file, "notes") as running, over_http(running.url + "/mcp") as client:
                await client.initialize()
                answer = await client.call("notes__add", {"text": "milk"})
                assert answer["result"]["content"][0]["text"] == "ann's notes: milk"
            capsys.readouterr()
            assert await login(settings, "notes", device=True, sleep=enter_code) is ExitCode.OK
            assert await logout(settings, "notes") is ExitCode.OK
