"""The conformance suite's client scenarios: what the gateway sends upstream is judged by the suite's servers."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Final

import anyio
import pytest

from tests.conformance.client import ERA
from tests.conformance.test_suite import HERE, NODE, need
from tests.system.running import PYTHON, ROOT, Json

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

SUITE: Final = HERE / "conformance-0.2" / "dist" / "index.js"
COMMAND: Final = shlex.join([PYTHON, "-W", "ignore", "-m", "tests.conformance.client"])
OLD, NEW = "2025-11-25", "2026-07-28"
PASSED: Final = {"SUCCESS", "INFO", "SKIPPED"}

SCENARIOS: Final = [
    ("initialize", OLD, "legacy", 1),
    ("tools_call", OLD, "legacy", 2),
    ("tools_call", NEW, "auto", 2),
    ("sse-retry", OLD, "legacy", 3),
    ("elicitation-sep1034-client-defaults", OLD, "legacy", 5),
    ("request-metadata", NEW, "auto", 5),
    ("http-standard-headers", NEW, "auto", 10),
    ("http-custom-headers", NEW, "auto", 18),
    # A client of an older era leaves it to the gateway to keep tools with invalid headers away from it.
    ("http-invalid-tool-headers", NEW, "legacy", 12),
    ("sep-2322-client-request-state", NEW, "auto", 5),
    ("sep-2322-client-request-state", NEW, "legacy", 5),
    ("json-schema-ref-no-deref", NEW, "auto", 1),
    ("json-schema-2020-12-preservation", OLD, "legacy", 9),
    ("json-schema-2020-12-preservation", NEW, "auto", 9),
]
"""The scenario, the revision its server speaks, how our client speaks to the gateway, and the checks that succeed."""


@pytest.mark.parametrize(("scenario", "version", "era", "successes"), SCENARIOS)
async def test_the_suite_finds_nothing_wrong(
    scenario: str, version: str, era: str, successes: int, tmp_path: Path
) -> None:
    need(NODE, SUITE)
    options = ["--command", COMMAND, "--scenario", scenario, "--spec-version", version, "--timeout", "120000"]
    arguments = [str(NODE), str(SUITE), "client", *options, "--output-dir", str(tmp_path)]
    environment = {**os.environ, ERA: era}
    done = await anyio.run_process(
        arguments, check=False, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    print(done.stdout.decode())
    assert done.returncode == 0
    assert [check for check in checks(tmp_path) if check["status"] not in PASSED] == []
    assert sum(check["status"] == "SUCCESS" for check in checks(tmp_path)) == successes


def checks(folder: Path) -> list[Json]:
    """What the suite wrote down of its run."""
    [file] = folder.rglob("checks.json")
    found: list[Json] = json.loads(file.read_text())
    return found
