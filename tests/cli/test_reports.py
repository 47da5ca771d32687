"""What `mcproxy check --connect` prints of each upstream."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mcproxy.cli.reports import UpstreamReport, check_connected, list_upstreams, remarks, report_row
from mcproxy.cli.runtime import ExitCode
from mcproxy.configuration.loading import load_configuration
from tests.fakes.authorization import authorization
from tests.fakes.upstream import tool

pytestmark = pytest.mark.anyio

READY = UpstreamReport(
    "git", "git", True, "stdio", "2025-11-25", "handshake", 0.5, 3, 1, 1, 0, None, {"a b": "git__a_b"}, {"": "no"}
)
DOWN = UpstreamReport("web", "", False, "http", None, None, None, 0, 0, 0, 0, "refused", {}, {})


def test_an_upstream_is_a_row_and_its_oddities_are_remarks() -> None:
    assert report_row(READY) == ("git", "ready", "stdio", "2025-11-25", "3 tools, 2 resources", "0.50 s", "git__*")
    one = report_row(replace(READY, tools=1, resources=0, templates=0))
    nothing = report_row(replace(READY, tools=0, resources=0, templates=0))
    assert (one[4], nothing[4]) == ("1 tool", "nothing")
    assert remarks(READY) == ["git: a b is exposed as git__a_b", "git: an entry is hidden: no"]
    assert report_row(DOWN)[1:4] == ("failed", "http", "")
    assert remarks(DOWN) == ["web: refused"]


def test_r87_a_prefix_that_is_not_the_name_is_told() -> None:
    report = replace(READY, name="my_server", prefix="my-server", renamed={}, refused={})
    assert report_row(report)[-1] == "my-server__*"
    assert remarks(report) == ["my_server: its names begin with my-server__; `prefix` chooses another beginning"]


def test_a_server_that_asks_on_a_shared_connection_is_told_with_the_setting() -> None:
    said = remarks(replace(READY, asks=True, renamed={}, refused={}))
    assert len(said) == 1
    assert "`connection: principal`" in said[0]


async def test_r44_arguments_that_a_child_repeats_are_told_without_their_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = (
        "import json, sys; sys.stdin.readline(); words = ' '.join(sys.argv);"
        "print(json.dumps({'jsonrpc': '2.0', 'id': 0, 'error': {'code': -32000, 'message': words}})); sys.exit(words)"
    )
    secrets = ["hunter2hunter", "letmein-9", "abc.def.ghi", "pass-word-1", "value-of-it"]
    args = ["--api-key", secrets[0], f"--token={secrets[1]}", "-H", f"Authorization: Bearer {secrets[2]}"]
    args += [f"postgres://me:{secrets[3]}@host/db", "-e", f"MY_SECRET={secrets[4]}", "--verbose"]
    config = tmp_path / "mcproxy.json"
    server = {"command": sys.executable, "args": ["-c", program, *args]}
    config.write_text(json.dumps({"mcpServers": {"child": server}}))
    configuration = load_configuration(config)
    assert set(secrets) <= configuration.secrets, "and no log line shows them"
    assert await check_connected(configuration, strict=False, as_json=True) is ExitCode.FAILED
    told = "".join(capsys.readouterr())
    assert "--verbose" in told, "it was repeated"
    assert [secret for secret in secrets if secret in told] == []


async def test_r85_a_server_that_wants_oauth_is_reported_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with authorization() as server:
        config = tmp_path / "mcproxy.json"
        config.write_text(json.dumps({"mcpServers": {"my web": {"url": server.url, "type": "http"}}}))
        assert await check_connected(load_configuration(config), strict=False, as_json=False) is ExitCode.FAILED
    said = capsys.readouterr().err
    assert "this server wants OAuth: add `oauth: {}` to it, then run `mcproxy login 'my web'`" in said


async def test_a_server_that_awaits_a_login_is_said_to_offer_nothing_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with authorization() as server:
        config = tmp_path / "mcproxy.json"
        config.write_text(json.dumps({"mcpServers": {"web": {"url": server.url, "type": "http", "oauth": {}}}}))
        assert await check_connected(load_configuration(config), strict=False, as_json=True) is ExitCode.FAILED
    said = capsys.readouterr().out
    (report,) = json.loads(said[said.index("{\n") :])["reports"]  # log lines stand before it
    assert report["error"] == "there is no valid login: run `mcproxy login web`"
    assert report["tools"] == 0


CONFIGURATION = """\
mcpServers:
  up:
    command: {python}
    args: [-m, tests.fakes.servers.swapper, {tools}, {tools}]
    cwd: {folder}
    era: legacy
    tools:
      overrides:
        push: {{title: Push}}
        pull: {{title: Pull}}
  down:
    command: /no/such/command
    enabled: {both}
    tools: {{overrides: {{x: {{title: X}}}}}}
endpoints:
  agent: {{upstreams: [up], discovery: search, pinned: [up__push, push]}}
  all: {{discovery: search, pinned: [y*]}}
access:
  hooks:
  - {{url: 'https://ops.example/', secret: sixteen-characters-or-more, upstreams: [up], tools: [swap, push_*]}}
  - {{url: 'https://ops.example/', secret: sixteen-characters-or-more, tools: [rm_*]}}
"""
PULL = "mcpServers.up.tools.overrides.pull: changes nothing: the server has no tool 'pull'; there are 'push', 'swap'"
ABSENT = [
    f"10:9: {PULL}",
    "20:102: access.hooks.0.tools.1: no tool matches 'push_*'; did you mean 'push'?",
    "16:66: endpoints.agent.pinned.1: no tool matches 'push'; did you mean 'up__push'?",
]
ABSENT_OF_ALL = [
    "21:79: access.hooks.1.tools.0: no tool matches 'rm_*'; there are 'push', 'swap'",
    "17:37: endpoints.all.pinned.0: no tool matches 'y*'; there are 'up__push', 'up__swap'",
]


@pytest.mark.parametrize("both", [False, True])
async def test_r86_what_speaks_of_tools_that_do_not_exist_is_told_where_the_lists_are_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], both: bool
) -> None:
    tools, config = tmp_path / "tools", tmp_path / "mcproxy.yaml"
    tools.write_text(json.dumps([tool("push"), tool("swap")]))
    folder = Path(__file__).parents[2]
    config.write_text(CONFIGURATION.format(python=sys.executable, tools=tools, folder=folder, both=json.dumps(both)))
    found = await check_connected(load_configuration(config), strict=True, as_json=False)
    assert found is (ExitCode.FAILED if both else ExitCode.INPUT)
    said = capsys.readouterr()
    told = [line.removeprefix(f"warning: {config}:") for line in said.err.splitlines() if line.startswith("warning: ")]
    assert sorted(told) == sorted(ABSENT if both else [*ABSENT, *ABSENT_OF_ALL])
    assert await list_upstreams(load_configuration(config), as_json=True) is ExitCode.OK


async def test_check_prints_one_object_with_everything_where_json_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tools, config = tmp_path / "tools", tmp_path / "mcproxy.yaml"
    tools.write_text(json.dumps([tool("push"), tool("swap")]))
    folder = Path(__file__).parents[2]
    text = CONFIGURATION.format(python=sys.executable, tools=tools, folder=folder, both="false")
    config.write_text(text + "  audit: {file: /no/such/folder/audit.jsonl}\n")
    assert await check_connected(load_configuration(config), strict=True, as_json=True) is ExitCode.INPUT
    said = capsys.readouterr()
    told = json.loads(said.out[said.out.index("{\n") :])  # log lines stand before it
    assert (told["valid"], told["problems"], told["upstreams"]) == (False, [], ["up"])
    sentences = [warning["sentence"] for warning in told["warnings"]]
    assert len(sentences) == 1 + len(ABSENT) + len(ABSENT_OF_ALL)
    assert sentences[0].startswith("nothing can be written to the folder")
    assert [(report["name"], report["ok"]) for report in told["reports"]] == [("up", True)]
    assert "warning" not in said.err
