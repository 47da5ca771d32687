"""A real Prometheus scrapes a real gateway under load: every query of the dashboards has an answer, alarms go off."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import pytest
import yaml

from tests.deploy.needs import DEPLOY, need
from tests.fakes.clients.raw import RawClient, over_http
from tests.system.running import ODD_SERVER, PYTHON, Gateway, Json, configuration, serving, web_server, write
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

COMMAND, *ARGUMENTS = ODD_SERVER
ODD: Json = {"command": COMMAND, "args": ARGUMENTS, "cache": {"ttl": {"*": 60}, "max_bytes": 1500}}
GONE: Json = {"command": PYTHON, "args": ["-c", "raise SystemExit('it never starts')"]}

LIMITS: Json = {"rules": {"of one tool": {"tools": ["fail"], "rate": "1/m"}}}

PAUSE = 0.1
"""Seconds between rounds of load, in which the machine is others'."""

OF_TROUBLE = {"Troubles", "Not connected because"}
"""Panels that are empty for a server that is well."""


OF_REPLICAS = "mcproxy_cluster_"
"""Series that a gateway alone does not have: their queries are only understood."""

OF_THE_MACHINE = {"McproxyDown", "McproxySlow", "McproxyEventLoopHeldUp", "McproxySaturated"}
"""Alarms that a machine which is busy with other tests sets off within a second, and rightly so."""


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[Gateway]:
    """A gateway in front of one server that is well, and one that is gone."""
    (folder / "gateway").mkdir()
    settings = {**configuration({"odd": ODD, "gone": GONE}, list_wait=0), "access": {"limits": LIMITS}}
    async with serving(folder, write(folder / "gateway", settings), "odd") as running:
        yield running


@asynccontextmanager
async def prometheus(folder: Path, target: str, rules: Path) -> AsyncIterator[str]:
    """The base URL of a Prometheus that scrapes `target` twice a second and knows `rules`."""
    job = {"job_name": "mcproxy", "static_configs": [{"targets": [target]}]}
    pace = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "200ms"}
    file = folder / "prometheus.yml"
    file.write_text(json.dumps({"global": pace, "rule_files": [str(rules / "*.yml")], "scrape_configs": [job]}))
    places = [f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
    script = 'exec "${@:1:$#-1}" "--web.listen-address=127.0.0.1:${@: -1}"'
    async with web_server("bash", "-c", script, "bash", need("prometheus"), *places, "--log.level=error") as url:
        yield url.removesuffix("/mcp")


async def asked(url: str, query: str) -> list[Json]:
    """The answer to an instant query."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/api/v1/query", params={"query": query}) as response:
        if response.status == 503:
            return []  # it still starts
        answer = await response.json()
    assert answer["status"] == "success", f"{query}: {answer}"
    result: list[Json] = answer["data"]["result"]
    return result


async def answered(url: str, query: str) -> list[Json]:
    """The answer, as soon as there is one."""
    while not (result := await asked(url, query)):  # noqa: ASYNC110 - Prometheus tells nobody that it has scraped
        await anyio.sleep(0.1)
    return result


def queries(board: str) -> Iterator[tuple[str, str]]:
    """Each panel's title and what it asks, with the variables filled in."""
    for panel in json.loads((DEPLOY / "grafana" / board).read_text())["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
            yield panel["title"], query.replace("$upstream", "gone" if panel["title"] in OF_TROUBLE else "odd")


async def load(client: RawClient, other: RawClient) -> None:
    """A little of everything, so that every series is there."""
    await client.result("resources/subscribe", {"uri": "odd+odd:memo"})
    for _round in range(3):
        await client.call("odd__echo", {"text": "hello"})
        await client.call("odd__fail")
        async with anyio.create_task_group() as tasks:
            for _change in range(5):
                tasks.start_soon(client.call, "odd__grow")
        async with anyio.create_task_group() as tasks:
            for caller in (client, other):  # whose log message is whose?
                tasks.start_soon(caller.call, "odd__log")
        for uri in ("odd:memo", "odd:memo", "ui://odd/view", "file:///odd/blob.bin"):
            await client.request("resources/read", {"uri": f"odd+{uri}"})
        await client.call("odd__touch", {"uri": "odd:memo"})
        await client.request("tools/list")


@pytest.mark.parametrize("board", ["fleet.json", "upstream.json"])
async def test_every_query_of_a_dashboard_has_an_answer(tmp_path: Path, board: str) -> None:
    async with (
        fleet(tmp_path) as running,
        prometheus(tmp_path, running.url.removeprefix("http://"), DEPLOY / "none") as url,
        over_http(f"{running.url}/mcp") as client,
        over_http(f"{running.url}/mcp") as other,
        anyio.create_task_group() as tasks,
    ):
        await client.initialize()
        await other.initialize()

        async def keep_busy() -> None:
            while True:
                await load(client, other)
                await anyio.sleep(PAUSE)

        tasks.start_soon(keep_busy)
        for title, query in queries(board):
            if OF_REPLICAS in query:
                await asked(url, query)
                continue
            with anyio.move_on_after(GUARD) as waiting:
                await answered(url, query)
            assert not waiting.cancelled_caught, f"{title}: {query}"
        tasks.cancel_scope.cancel()


async def test_the_alarm_of_a_server_that_is_gone_goes_off_and_no_other(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    for name in ("rules.yml", "alerts.yml"):
        text = yaml.safe_load((DEPLOY / "prometheus" / name).read_text())
        for rule in text["groups"][0]["rules"]:
            if "for" in rule and rule["alert"] not in OF_THE_MACHINE:
                rule["for"] = "1s"
        (rules / name).write_text(json.dumps(text))
    async with (
        fleet(tmp_path) as running,
        prometheus(tmp_path, running.url.removeprefix("http://"), rules) as url,
        over_http(f"{running.url}/servers/odd/mcp") as client,
    ):
        await client.initialize()
        for _call in range(5):
            await client.call("echo", {"text": "hello"})
        with anyio.fail_after(GUARD):
            alarms = await answered(url, 'ALERTS{alertstate="firing"}')
            (trouble,) = await answered(url, "mcproxy_upstream_trouble_info")
    assert (trouble["metric"]["upstream"], trouble["metric"]["why"]) == ("gone", "unreachable")
    assert [(alarm["metric"]["alertname"], alarm["metric"]["upstream"]) for alarm in alarms] == [
        ("McproxyUpstreamDown", "gone")
    ]


def test_every_series_of_a_dashboard_is_one_that_the_gateway_has() -> None:
    table = (DEPLOY / "prometheus" / "METRICS.md").read_text()
    recorded = {
        rule["record"]
        for rule in yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"][0]["rules"]
    }
    asked_for = {
        name
        for board in ("fleet.json", "upstream.json")
        for _title, query in queries(board)
        for name in re.findall(r"\bmcproxy[_:][\w:]+", query)
    }
    unknown = {name for name in asked_for - recorded if re.sub(r"_(bucket|sum|count)$", "", name) not in table}
    assert unknown == set()
