"""The conformance suite's client scenarios: what the gateway sends upstream is judged by the suite's servers."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import anyio
import pytest
from anyio.abc import SocketStream

from tests.conformance.client import use_all
from tests.conformance.oauth_client import ERA, THROUGH
from tests.conformance.test_suite import HERE, NODE, need
from tests.depth import IN_CI
from tests.system.running import PYTHON, ROOT, Gateway, Json, configuration, gateway
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

SUITE: Final = HERE / "conformance-0.2" / "dist" / "index.js"
RELAY: Final = Path(__file__).with_name("relay.py")
LOGIN_COMMAND: Final = shlex.join([PYTHON, "-W", "ignore", "-m", "tests.conformance.oauth_client"])
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


BOTH: Final = [
    *("metadata-default", "metadata-var1", "metadata-var2", "metadata-var3", "basic-cimd", "pre-registration"),
    *("scope-from-www-authenticate", "scope-from-scopes-supported", "scope-omitted-when-undefined"),
    *("scope-step-up", "scope-retry-limit"),
    *("token-endpoint-auth-basic", "token-endpoint-auth-post", "token-endpoint-auth-none"),
]
"""Scenarios of OAuth that both revisions have."""
NEWEST: Final = [
    *("resource-mismatch", "offline-access-scope", "offline-access-not-supported", "authorization-server-migration"),
    *("iss-supported", "iss-not-advertised", "iss-supported-missing", "iss-wrong-issuer", "iss-unexpected"),
    *("iss-normalized", "metadata-issuer-mismatch"),
]
OLDEST: Final = ["2025-03-26-oauth-metadata-backcompat", "2025-03-26-oauth-endpoint-fallback"]
EXTENSIONS: Final = [
    *("client-credentials-jwt", "client-credentials-basic", "enterprise-managed-authorization", "wif-jwt-bearer"),
]
"""Those of the authorization extensions, but for DPoP, which the gateway does not speak."""

AUTHORIZATION: Final = [
    *((scenario, NEW, "auto") for scenario in (*BOTH, *NEWEST, *EXTENSIONS)),
    *((scenario, OLD, "legacy") for scenario in BOTH),
    *((scenario, "2025-03-26", "legacy") for scenario in OLDEST),
]
WITHOUT_CI: Final = {"metadata-default", "scope-step-up", "authorization-server-migration", "client-credentials-jwt"}
"""Scenarios that are run everywhere: CI runs all."""
PAGE_WITHOUT_CI: Final = {"scope-step-up"}
"""Of them, those that are run on the gateway's own page."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def running(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """A gateway for all scenarios, one after another, with the suite's server of the moment behind it."""
    async with gateway(tmp_path_factory.mktemp("gateway"), configuration({}, watch=False)) as running:
        yield running


@pytest.mark.parametrize(("scenario", "version", "era", "successes"), SCENARIOS)
async def test_the_suite_finds_nothing_wrong(
    scenario: str, version: str, era: str, successes: int, tmp_path: Path, running: Gateway
) -> None:
    async def play(relay: SocketStream) -> None:
        """Does what the suite asks of its client, which ends when the connection does."""
        async with relay:
            asked = json.loads(await relay.receive())
            # However slow the machine, its server is not taken for one of the other era.
            suite = {"url": asked["url"], "prefix": "", "timeouts": {"probe": GUARD}}
            async with running.serving({"suite": suite}):
                await use_all(f"{running.url}/mcp", era, json.loads(asked["context"]))

    command = shlex.join([PYTHON, "-I", "-S", str(RELAY), str(tmp_path / "socket")])
    async with await anyio.create_unix_listener(tmp_path / "socket") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, play)
        code = await run(command, scenario, version, era, tmp_path)
        tasks.cancel_scope.cancel()
    assert code == 0
    assert [check for check in checks(tmp_path) if check["status"] not in PASSED] == []
    assert sum(check["status"] == "SUCCESS" for check in checks(tmp_path)) == successes


@pytest.mark.parametrize(
    ("scenario", "version", "era"),
    [
        pytest.param(
            *case,
            id="-".join(case),
            marks=pytest.mark.skipif(not IN_CI and case[0] not in WITHOUT_CI, reason="CI runs all scenarios of OAuth"),
        )
        for case in AUTHORIZATION
    ],
)
async def test_r69_the_suite_finds_nothing_wrong_with_logins(
    scenario: str, version: str, era: str, tmp_path: Path
) -> None:
    code = await run(
        LOGIN_COMMAND, f"auth/{scenario}", version, era, tmp_path, *(["--force"] * (scenario in EXTENSIONS))
    )
    assert [check for check in checks(tmp_path) if check["status"] not in PASSED] == []
    assert any(check["status"] == "SUCCESS" for check in checks(tmp_path))
    assert code == 0


@pytest.mark.parametrize(
    ("scenario", "version", "era"),
    [
        pytest.param(
            *case,
            id="-".join(case),
            marks=pytest.mark.skipif(
                not IN_CI and case[0] not in PAGE_WITHOUT_CI, reason="CI runs all scenarios of OAuth"
            ),
        )
        for case in AUTHORIZATION
        if case[0] not in EXTENSIONS
    ],
)
async def test_the_suite_finds_nothing_wrong_with_logins_on_the_gateways_own_page(
    scenario: str, version: str, era: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(THROUGH, "page")
    code = await run(LOGIN_COMMAND, f"auth/{scenario}", version, era, tmp_path)
    assert [check for check in checks(tmp_path) if check["status"] not in PASSED] == []
    assert any(check["status"] == "SUCCESS" for check in checks(tmp_path))
    assert code == 0


async def run(command: str, scenario: str, version: str, era: str, folder: Path, *more: str) -> int:
    """The suite's exit code; it writes what it checked below `folder`."""
    need(NODE, SUITE)
    options = ["--command", command, "--scenario", scenario, "--spec-version", version, "--timeout", "480000", *more]
    arguments = [str(NODE), str(SUITE), "client", *options, "--output-dir", str(folder)]
    done = await anyio.run_process(
        arguments,
        check=False,
        env={**os.environ, ERA: era},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    print(done.stdout.decode())
    return done.returncode


def checks(folder: Path) -> list[Json]:
    """What the suite wrote down of its run."""
    [file] = folder.rglob("checks.json")
    found: list[Json] = json.loads(file.read_text())
    return found
