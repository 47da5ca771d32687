"""Commands for a gateway that runs, as a user runs them beside a real one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio.to_thread
import pytest
from aiohttp import web

from mcproxy.cli.running.client import NotRunning, RunningGateway
from mcproxy.cli.running.operating import is_well, order, status
from tests.fakes.servers.web import serving
from tests.system.running import configuration, gateway
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]
ODD = {"command": sys.executable, "args": ["-m", "tests.system.odd_server"], "cwd": str(ROOT)}
DYING = {"command": sys.executable, "args": ["-c", "import sys; sys.exit('no key')"], "prefix": "dying"}
SECRET = "s3cret-s3cret-s3cret"


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return iter([None])


async def mcproxy(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mcproxy", *arguments, "-c", str(folder / "mcproxy.json")]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=False, cwd=ROOT)

    return await anyio.to_thread.run_sync(run)


async def test_a_gateway_that_runs_is_asked_told_and_used(tmp_path: Path) -> None:
    async with gateway(tmp_path, configuration({"odd": ODD})) as running:
        shown = await mcproxy(tmp_path, "status", "--json")
        assert shown.returncode == 0, shown.stderr
        found = json.loads(shown.stdout)
        assert found["pid"] == running.process.pid
        assert found["url"] == running.url + "/mcp"
        assert [upstream["state"] for upstream in found["upstreams"]] == ["ready"]

        since = len(running.log.entries)
        ordered = await mcproxy(tmp_path, "restart", "other", "odd")
        assert ordered.returncode == 3, "one of them does not run"
        assert "no server 'other' runs here; there are odd\n" in ordered.stderr
        assert "odd is being restarted" in ordered.stderr
        with anyio.fail_after(GUARD):
            await running.log.says(lambda entry: entry.get("event") == "upstream connected", since)
        again = json.loads((await mcproxy(tmp_path, "status", "--json")).stdout)
        assert again["upstreams"][0]["reconnects"] == 1

        for command in ("restart", "retry", "logs"):
            refused = await mcproxy(tmp_path, command, "od")
            assert (refused.returncode, refused.stderr) == (3, "no server 'od' runs here; did you mean 'odd'?\n")

        wrong = await mcproxy(tmp_path, "loglevel", "loud")
        assert (wrong.returncode, "'loud' is no level: it should be one of debug" in wrong.stderr) == (2, True)
        changed = await mcproxy(tmp_path, "loglevel", "debug")
        assert (changed.returncode, "is at debug until" in changed.stderr) == (0, True)
        missing = await mcproxy(tmp_path, "read", "odd+odd://missing")
        assert missing.returncode == 3, missing.stderr
        since = len(running.log.entries)
        listed = await mcproxy(tmp_path, "list", "tools")
        assert listed.returncode == 0, listed.stderr
        assert "odd__" in listed.stdout, "its names are those of the gateway that runs"
        assert not [entry for entry in running.log.entries[since:] if entry.get("event") == "upstream connected"]


@pytest.mark.parametrize(
    ("state", "failure", "facts", "well"),
    [
        ("ready", None, {}, True),
        ("idle", None, {}, True),
        ("backing_off", "timeout", {}, False),
        ("backing_off", "login", {"login": {"is_per_principal": False}}, False),
        ("backing_off", "login", {"login": {"is_per_principal": True}}, True),
        ("backing_off", "rejected", {"takes_credentials": False}, False),
        ("backing_off", "rejected", {"takes_credentials": True}, True),
        ("backing_off", "unreachable", {"takes_credentials": True}, False),
    ],
)
def test_a_server_that_callers_have_their_own_credentials_for_is_well_without(
    state: str, failure: str | None, facts: dict[str, object], well: bool
) -> None:
    assert is_well({"state": state, "failure": failure, **facts}) is well


async def test_a_server_in_trouble_comes_first_with_its_reason_and_doctor_says_what_to_do(tmp_path: Path) -> None:
    dying = {**DYING, "args": [*DYING["args"], SECRET], "env": {"KEY": SECRET}}
    settings = configuration({"odd": ODD, "dying": dying})
    async with gateway(tmp_path, {**settings, "mcpServers": {"odd": ODD}}) as running:
        (tmp_path / "mcproxy.json").write_text(json.dumps(settings))
        with anyio.fail_after(GUARD):
            await running.log.says(lambda entry: entry.get("event") == "upstream unavailable")
        with anyio.fail_after(GUARD):
            # It is started again and again: in between it is being connected, and has said nothing yet.
            while not (shown := await mcproxy(tmp_path, "status")).stdout.startswith("dying\tbacking_off"):
                assert shown.stdout.startswith("dying\tconnecting"), shown
            assert shown.returncode == 1
            assert "no key" in shown.stderr
            while (said := (await mcproxy(tmp_path, "logs", "dying")).stdout) != "no key\n":
                assert said == ""
            while "run it by hand: " not in (told := await mcproxy(tmp_path, "doctor")).stdout:
                pass
        assert told.returncode == 1
        assert "server dying: " in told.stdout
        assert SECRET not in told.stdout
        assert (await mcproxy(tmp_path, "retry", "dying")).returncode == 0


async def test_a_gateway_at_a_url_is_asked_from_where_there_is_no_configuration(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(empty), "PYTHONPATH": str(ROOT)}
    async with gateway(tmp_path, configuration({"odd": ODD})) as running:
        command = [sys.executable, "-m", "mcproxy", "list", "tools", "--url", f"{running.url}/mcp"]
        listed = await anyio.run_process(command, cwd=empty, env=environment, check=False)
    assert (listed.returncode, b"odd__echo" in listed.stdout) == (0, True), listed.stderr


async def test_doctor_asks_the_gateway_though_this_shell_lacks_the_variables_that_it_has(tmp_path: Path) -> None:
    settings, file = configuration({"odd": ODD, "dying": DYING}, strict=True), tmp_path / "mcproxy.json"
    async with gateway(tmp_path, {**settings, "mcpServers": {"odd": ODD}}) as running:
        file.write_text(json.dumps(settings))
        with anyio.fail_after(GUARD):
            await running.log.says(lambda entry: entry.get("event") == "upstream unavailable")
        file.write_text(json.dumps({**settings, "mcpServers": {"web": {"url": "${ONLY_THE_SERVICE_HAS_IT}"}}}))
        with anyio.fail_after(GUARD):
            while "\nserver dying: " not in (told := await mcproxy(tmp_path, "doctor")).stdout:
                pass
    assert told.returncode == 2
    assert "ONLY_THE_SERVICE_HAS_IT is not set" in told.stdout


async def test_a_refused_reload_and_its_reasons_are_in_the_status_until_one_is_applied(tmp_path: Path) -> None:
    settings = configuration({})
    file = tmp_path / "mcproxy.json"
    async with gateway(tmp_path, settings) as running:
        file.write_text(json.dumps({**settings, "prosy": {}}))
        with anyio.fail_after(GUARD):
            await running.log.says(lambda entry: "was not applied" in str(entry.get("event")))
        shown = await mcproxy(tmp_path, "status")
        assert shown.returncode == 1
        assert "a reload was refused 0 s ago" in re.sub(r"\d+ s ago", "0 s ago", shown.stderr)
        assert f"{file}:1:" in shown.stderr
        assert 'prosy: unknown key; did you mean "proxy"?' in shown.stderr
        file.write_text(json.dumps(settings))
        with anyio.fail_after(GUARD):
            await running.log.says(lambda entry: "reloaded" in str(entry.get("event")))
        shown = await mcproxy(tmp_path, "status")
        assert (shown.returncode, "refused" in shown.stderr) == (0, False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux alone has a disk that is always full")
async def test_an_audit_log_that_cannot_be_written_is_in_the_status_and_told_by_doctor(tmp_path: Path) -> None:
    settings = {**configuration({"odd": ODD}), "access": {"audit": {"file": "/dev/full"}}}
    async with gateway(tmp_path, settings) as running:
        with anyio.fail_after(GUARD):
            await running.log.says(lambda entry: entry.get("event") == "the audit log cannot be written")
        shown = await mcproxy(tmp_path, "status")
        told = await mcproxy(tmp_path, "doctor")
    assert (shown.returncode, "the audit log cannot be written" in shown.stderr) == (1, True)
    assert (told.returncode, "gateway: the audit log cannot be written\n    make room" in told.stdout) == (1, True)


async def test_the_gateway_that_runs_explains_a_call_by_what_is_in_force_in_it(tmp_path: Path) -> None:
    rule = {"allow": [{"tools": ["echo"]}]}
    access = {"policy": {"roles": {"everyone": rule}}}
    async with gateway(tmp_path, {**configuration({"odd": ODD}, watch=False), "access": access}) as running:
        file = tmp_path / "mcproxy.json"
        in_force = json.loads(file.read_text())
        file.write_text(json.dumps({**in_force, "access": {"policy": {"roles": {"everyone": {}}}}}))
        since = len(running.log.entries)
        allowed = await mcproxy(tmp_path, "explain", "tools/call", "odd__echo")
        assert (allowed.returncode, allowed.stdout.splitlines()[-1]) == (0, "allowed"), allowed.stderr
        assert "as the gateway that runs has it" in allowed.stderr
        denied = await mcproxy(tmp_path, "explain", "tools/call", "odd__fail")
        assert denied.returncode == 1
        wrong = await mcproxy(tmp_path, "explain", "tools/list", "odd__fail")
        assert (wrong.returncode, "no method that is about" in wrong.stderr) == (2, True)
        assert not [entry for entry in running.log.entries[since:] if entry.get("event") == "upstream connected"]


async def test_r87_a_gateway_that_wants_another_key_is_told_with_the_option(tmp_path: Path) -> None:
    async def refuse(_http: web.Request) -> web.StreamResponse:
        return web.Response(status=401)

    (tmp_path / "mcproxy.json").write_text("{}")
    async with serving(refuse) as url:
        refused = await mcproxy(tmp_path, "list", "tools", "--url", url, "--key", "wrong")
    assert refused.returncode == 1
    assert "it wants an API key that it knows: --key, or MCPROXY_KEY" in refused.stderr


def test_without_a_gateway_the_way_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(tmp_path / "mcproxy.yaml", as_json=False) == 3
    assert order(tmp_path / "mcproxy.yaml", ["a"], "restart") == 3
    assert "start it" in capsys.readouterr().err
    with pytest.raises(NotRunning):
        RunningGateway(tmp_path / "mcproxy.yaml")
