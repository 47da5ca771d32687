"""The official conformance suite: through the gateway every scenario passes that passes directly, in both eras.

The crossed cells put an upstream of the other era behind the gateway; what the specification makes impossible there
is named in `IMPOSSIBLE`, with its reason. What passes before a server that is not there says nothing of upstreams; it
is named in `HOLLOW`, with the reason, and is no proof of anything but of the gateway's own side.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import anyio
import pytest

from tests.ports import free_port
from tests.system.running import PYTHON, configuration, gateway, serving, web_server, write

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent / "node" / "node_modules"
ARCHITECTURE = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
NODE = HERE / f"node-linux-{ARCHITECTURE}" / "bin" / "node"

Results = dict[str, tuple[int, int]]
"""By scenario: the checks that passed, and those that failed."""

SUITES: Final = {
    "0.1": ("conformance-0.1", ()),
    "2025-11-25": ("conformance-0.2", ("--spec-version", "2025-11-25", "--suite", "all")),
    "2026-07-28": ("conformance-0.2", ("--spec-version", "2026-07-28", "--suite", "all")),
}
SCENARIOS: Final = {"0.1": 30, "2025-11-25": 33, "2026-07-28": 40}

_KEYS: Final = "wants the upstream's own key of the question; before 2026-07-28 a question has none"
IMPOSSIBLE: Final[dict[tuple[str, str], dict[str, str]]] = {
    ("2026-07-28", "legacy"): {
        "input-required-result-basic-elicitation": _KEYS,
        "server-stateless": "wants a tool to refuse what this request's client did not declare; a handshake connection "
        "declares once for all who share it (requirement R61)",
    }
}
"""By suite and era of the upstream: the scenarios that cannot pass, and why."""
BY_CHANCE: Final[dict[tuple[str, str], dict[str, str]]] = {
    ("2026-07-28", "legacy"): {
        "input-required-result-multiple-input-requests": "wants all questions in one result; before 2026-07-28 "
        "they come one by one, nothing says how many there will be, and after a longer pause they are two results",
    }
}
"""Scenarios that pass or not by when the upstream's messages come, and why."""


_OWN: Final = "the gateway answers by itself"
_EMPTY: Final = "an empty list is a list"
_ANY_ERROR: Final = "any error will do, that of a tool that is not known too"
_NO_STREAM: Final = "checks how requests are answered, whatever the answer"
HOLLOW: Final[dict[str, dict[str, str]]] = {
    "0.1": {
        "dns-rebinding-protection": _OWN,
        "logging-set-level": _OWN,
        "ping": _OWN,
        "prompts-list": _EMPTY,
        "resources-list": _EMPTY,
        "resources-subscribe": "a subscription is kept for an upstream that is away (requirement R21)",
        "resources-unsubscribe": _OWN,
        "server-initialize": _OWN,
        "server-sse-multiple-streams": _NO_STREAM,
        "tools-list": _EMPTY,
    },
    "2025-11-25": {
        "dns-rebinding-protection": _OWN,
        "logging-set-level": _OWN,
        "ping": _OWN,
        "prompts-list": _EMPTY,
        "resources-list": _EMPTY,
        "resources-subscribe": "a subscription is kept for an upstream that is away (requirement R21)",
        "resources-unsubscribe": _OWN,
        "server-initialize": _OWN,
        "server-session-lifecycle": _OWN,
        "server-sse-multiple-streams": _NO_STREAM,
        "server-sse-polling": "checks nothing where no stream is primed",
        "tools-list": _EMPTY,
    },
    "2026-07-28": {
        "caching": "lists say how long they are good for, those that are empty too",
        "dns-rebinding-protection": _OWN,
        "input-required-result-ignore-extra-params": _ANY_ERROR,
        "input-required-result-missing-input-response": _ANY_ERROR,
        "input-required-result-unsupported-methods": "lists ask for nothing, those that are empty neither",
        "input-required-result-validate-input": _ANY_ERROR,
        "prompts-list": _EMPTY,
        "resources-list": _EMPTY,
        "sep-2164-resource-not-found": "no resource is known",
        "server-sse-multiple-streams": _NO_STREAM,
        "tools-list": _EMPTY,
    },
}
"""By suite: the scenarios that pass without any upstream, and why: their passing is no proof that one is reached."""


@pytest.mark.parametrize("suite", SUITES)
async def test_what_passes_without_an_upstream_is_named(suite: str, tmp_path: Path) -> None:
    nowhere = {"reference": {"url": f"http://127.0.0.1:{free_port()}/mcp", "prefix": "", "timeouts": {"connect": 1}}}
    async with serving(tmp_path, write(tmp_path, configuration(nowhere, list_wait=0))) as running:
        results = await conformance(suite, f"{running.url}/mcp")
    assert len(results) == SCENARIOS[suite]
    assert sorted(results.keys() - failures(results)) == sorted(HOLLOW[suite])


@pytest.mark.parametrize("suite", SUITES)
async def test_what_passes_directly_passes_through_the_gateway(suite: str, tmp_path: Path) -> None:
    async with upstream("both") as url:
        direct = await conformance(suite, url)
        async with gateway(tmp_path, passed_through(url)) as running:
            through = await conformance(suite, f"{running.url}/mcp")
    assert len(direct) == SCENARIOS[suite]
    assert failures(direct) == []
    assert failures(through) == []
    assert through.keys() == direct.keys()


@pytest.mark.parametrize(("suite", "era"), [("2026-07-28", "legacy"), ("2025-11-25", "modern")])
async def test_scenarios_pass_with_an_upstream_of_the_other_era(suite: str, era: str, tmp_path: Path) -> None:
    async with upstream(era) as url, gateway(tmp_path, passed_through(url)) as running:
        through = await conformance(suite, f"{running.url}/mcp")
    assert len(through) == SCENARIOS[suite]
    failed = set(failures(through)) - BY_CHANCE.get((suite, era), {}).keys()
    assert failed == IMPOSSIBLE.get((suite, era), {}).keys()


def upstream(era: str) -> AbstractAsyncContextManager[str]:
    """The reference server, restricted to `era`; its URL."""
    return web_server(PYTHON, "-W", "ignore", "-m", "tests.conformance.server", "--era", era, "--port")


async def conformance(suite: str, url: str) -> Results:
    """Runs a suite against `url`."""
    package, options = SUITES[suite]
    script = HERE / package / "dist" / "index.js"
    need(NODE, script)
    arguments = [str(NODE), str(script), "server", "--url", url, *options]
    done = await anyio.run_process(arguments, check=False, stderr=subprocess.STDOUT)
    summary = done.stdout.decode().rpartition("=== SUMMARY ===")[2]
    print(summary)
    lines = re.findall(r"^[✓✗] ([\w-]+): (\d+) passed, (\d+) failed", summary, re.MULTILINE)
    return {name: (int(passed), int(failed)) for name, passed, failed in lines}


def failures(results: Results) -> list[str]:
    return sorted(name for name, (_, failed) in results.items() if failed)


def passed_through(url: str) -> dict[str, object]:
    return configuration({"reference": {"url": url, "prefix": ""}})


def need(*files: Path) -> None:
    missing = [file for file in files if not file.exists()]
    if missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"not set up: {missing[0]}; run `make test`")
