"""Usage of a gateway that runs: the page, the command and the raw audit add up to the same, to the byte."""

from __future__ import annotations

import json
import re
from pathlib import Path

import aiohttp
import anyio
import pytest

from tests.ports import free_port
from tests.system.running import PYTHON, Json, configuration, run, serving, write
from tests.system.test_access import ACCESS, KEYS, ODD, ask
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

FIGURES = {"Calls": "calls", "Errors": "errors", "Denials": "denials", "Bytes in": "bytes_in", "Bytes out": "bytes_out"}


async def page(url: str, who: str) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {KEYS[who]}"}
    async with aiohttp.ClientSession(headers=headers) as http, http.get(url) as response:
        return response.status, await response.text()


def shown(text: str) -> Json:
    """The totals on a page."""
    found = re.findall(r"<dt>([^<]+)</dt><dd[^>]*>([\d\u202f]+)</dd>", text)
    return {FIGURES[name]: int(value.replace("\u202f", "")) for name, value in found if name in FIGURES}


def summed(lines: list[Json]) -> Json:
    """The totals of raw lines, worked out anew."""
    calls = [line for line in lines if "event" not in line]
    denials = sum(line["outcome"] == "denied" for line in calls)
    errors = sum(line["outcome"] not in {"ok", "input_required", "denied"} for line in calls)
    sizes = {name: sum(line[name] for line in calls) for name in ("bytes_in", "bytes_out")}
    return {"calls": len(calls), "errors": errors, "denials": denials, **sizes}


def audited(folder: Path) -> list[Json]:
    """All lines of the log, which was rotated."""
    files = list(folder.glob("audit.jsonl*"))
    assert len(files) > 1
    return [json.loads(line) for each in files for line in each.read_text().splitlines()]


async def test_the_page_the_command_and_the_raw_audit_say_the_same_and_operators_alone_see_it(tmp_path: Path) -> None:
    admin = {"port": free_port(), "role": "admin"}
    audit = {"file": str(tmp_path / "audit.jsonl"), "max_bytes": 2000}
    settings = {**configuration({"odd": ODD}), "admin": admin, "access": {**ACCESS, "audit": audit}}
    url = f"http://127.0.0.1:{admin['port']}/ui/usage?by=principal&and=outcome&since=all"
    file = write(tmp_path, settings)
    async with serving(tmp_path, file) as running:
        with anyio.fail_after(GUARD):
            for who, tool in [("ann", "echo"), ("bob", "echo"), ("ann", "fail"), ("bob", "links"), ("ann", "none")] * 3:
                name = f"odd__{tool}"
                await ask(f"{running.url}/mcp", who, "tools/call", name, name=name, arguments={"text": "x" * 99})
            assert (await page(url, "bob"))[0] == 403
            # The log is written by a task of its own, and a reading is shown for a while.
            while shown((await page(url, "ann"))[1])["calls"] < 15:  # noqa: ASYNC110 another process has no event
                await anyio.sleep(0.1)
            text = (await page(url, "ann"))[1]
    lines = audited(tmp_path)
    usage = [PYTHON, "-m", "mcproxy", "usage", "--config", str(file), "--by", "principal,outcome", "--json"]
    told = json.loads(await run(usage, within=GUARD))
    total = {name: value for name, value in told["total"].items() if name != "tokens"}
    assert shown(text) == total == summed(lines)
    assert total["calls"] == 15
    assert min(total.values()) > 0
    assert text.count('<th scope="row"') == len(told["rows"])
