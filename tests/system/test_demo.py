"""What `make run` shows: the demo's configuration as it is in the repository, with its servers as published."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.clients.raw import over_http
from tests.system.running import ROOT, serving

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
