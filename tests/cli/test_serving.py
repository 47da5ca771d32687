"""What `mcproxy serve` imports until it answers: libraries of features that are not configured are left alone."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit

from benchmarks.asking import NUMBER, Ask, open_session, post
from mcproxy.protocol.eras import Era
from tests.timeouts import GUARD

ROOT: Final = Path(__file__).parents[2]
SERVER: Final = {"command": sys.executable, "args": ["-m", "tests.system.odd_server"], "cwd": str(ROOT)}
FOR_FEATURES: Final = frozenset(
    {
        "aiohttp",  # pages for people, issuers, authorization servers, webhooks, cookies of upstreams
        "cryptography",  # sealed: request states, ids of tasks, grants
        "jinja2",  # pages
        "jwt",  # tokens
        "keyring",
        "opentelemetry",  # proxy.tracing
        "pygments",
        "re2",  # patterns of a policy and of schemas; secrets to mask; the audit
        "pydantic.networks",  # its types of URLs
        "redis",  # cluster
        "rich.console",  # tables and progress on a terminal; `rich` alone is looked for, and not found
        "snowballstemmer",  # discovery: search
        "tomllib",  # a configuration in TOML
        "yaml",  # a configuration in YAML
        "mcproxy.admin.approval_page",
        "mcproxy.admin.listener",
        "mcproxy.admin.pages",
        "mcproxy.admin.status_page",
        "mcproxy.cluster",
        "mcproxy.configuration.descriptions",
        "mcproxy.configuration.schema",
        "mcproxy.downstream.front.page_authentication",
        "mcproxy.features.tracing",
    }
)
"""Libraries, and modules of our own on top of them, that a plain gateway does without."""
_IMPORTED: Final = re.compile(r"import time: +\d+ \| +\d+ \| +(\S+)")


def imported(folder: Path, admin: dict[str, object]) -> set[str]:
    """The modules that a gateway with one server has imported once it has listed that server's tools."""
    config = folder / "mcproxy.json"
    config.write_text(json.dumps({"proxy": {"port": 0}, "admin": admin, "mcpServers": {"odd": SERVER}}))
    command = [sys.executable, "-X", "importtime", "-m", "mcproxy", "serve", "--config", str(config)]
    # A coverage of it would import for itself what it reads its own settings with.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment | state(folder)) as process:
        assert process.stderr is not None
        try:
            lines = until_serving(process.stderr)
            url = urlsplit(json.loads(lines[-1])["url"])
            for era in Era:
                assert '"tools":[' in listed(url.port or 0, url.path, era)
        finally:
            process.send_signal(signal.SIGTERM)
            rest = process.stderr.read()
    return set(_IMPORTED.findall("".join(lines) + rest))


def state(folder: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(folder / "state"), "XDG_RUNTIME_DIR": str(folder)}


def until_serving(stderr: IO[str]) -> list[str]:
    lines = []
    for line in stderr:
        lines.append(line)
        if '"serving"' in line:
            return lines
    raise AssertionError("it ended:\n" + "".join(lines[-20:]))


def listed(port: int, path: str, era: Era) -> str:
    """The answer to `tools/list`."""
    asked = post(Ask("tools/list", {}, "", 0), era, open_session(port) if era is Era.HANDSHAKE else None)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD)
    connection.request("POST", path, asked.body.replace(NUMBER, "1"), asked.headers)
    answer = connection.getresponse().read().decode()
    connection.close()
    return answer


def features(modules: set[str]) -> set[str]:
    return {name for name in FOR_FEATURES if any(found == name or found.startswith(f"{name}.") for found in modules)}


def test_a_gateway_imports_nothing_of_features_that_it_does_not_have(tmp_path: Path) -> None:
    assert features(imported(tmp_path, {})) == set()


def test_a_gateway_with_a_status_page_imports_what_serves_pages(tmp_path: Path) -> None:
    assert {"aiohttp", "jinja2", "mcproxy.admin.pages"} <= features(imported(tmp_path, {"port": 0}))
