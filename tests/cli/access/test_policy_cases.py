"""`mcproxy policy test` and `mcproxy explain`, as a user runs them."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from mcproxy.cli.access.explain import endpoint_key
from tests.cli.test_commands import code

POLICY = """
proxy: {port: 0}
mcpServers:
  files: {command: %s, args: [-c, ""], tools: {exclude: [rm*], overrides: {long: {name: short}}}}
access:
  policy:
    roles:
      reader:
        allow:
          - {tools: [long, get_*], read_only: true}
          - {resources: ['file:///open/*']}
          - {tools: [query], arguments: {n: {at_most: 3}}}
    principals: {bot: [reader]}
endpoints:
  team: {roles: [ops]}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mcproxy.yaml"
    path.write_text(POLICY % sys.executable)
    return path


def cases(folder: Path, text: str) -> Path:
    path = folder / "cases.yaml"
    path.write_text(text)
    return path


GOOD = """
- {principal: bot, subject: files__short, read_only: true, expect: allow}
- {principal: bot, subject: files__short, expect: deny}
- {principal: ann, roles: [reader], subject: files__get_x, read_only: true, expect: allow}
- {principal: ann, subject: files__get_x, read_only: true, expect: deny}
- {principal: bot, subject: files__rm_get, read_only: true, expect: deny}
- {principal: bot, upstream: files, subject: get_x, read_only: true, expect: allow}
- {principal: bot, endpoint: /servers/files, subject: get_x, read_only: true, expect: allow}
- {principal: bot, endpoint: /mcp/team, subject: files__get_x, read_only: true, expect: deny}
- {principal: bot, roles: [ops], endpoint: /mcp/team, subject: files__get_x, read_only: true, expect: allow}
- {principal: bot, method: resources/read, subject: 'files+file:///open/x', expect: allow}
- {principal: bot, method: resources/read, subject: 'files+file:///open/../x', expect: deny}
- {principal: bot, method: completion/complete, subject: 'files+file:///open/{x}', expect: allow}
- {principal: bot, method: prompts/get, subject: files__p, expect: deny}
- {principal: bot, subject: files__query, arguments: {n: 3}, expect: allow}
- {principal: bot, subject: files__query, arguments: {n: 4}, expect: deny}
- {principal: bot, subject: nobody__x, expect: deny}
- {subject: files__get_x, read_only: true, expect: deny}
"""


def test_decisions_as_expected_are_counted(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("policy", "test", cases(tmp_path, GOOD), "--config", config) == 0
    assert capsys.readouterr().out == "17 of 17 as expected\n"


def test_another_decision_is_told_with_its_place_and_rule(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "- {principal: bot, method: resources/read, subject: 'files+file:///open/x', expect: deny}\n"
    path = cases(tmp_path, text)
    assert code("policy", "test", path, "--config", config) == 1
    told = capsys.readouterr().out.splitlines()
    asked = f"{path}:1: bot resources/read files+file:///open/x: expected deny, is allow"
    assert told == [f"{asked}: roles.reader.allow, rule 2 ({config}:11)", "0 of 1 as expected"]


def test_the_result_is_json_where_that_is_asked(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code("policy", "test", cases(tmp_path, GOOD), "--config", config, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"cases": 17, "failed": []}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{}", "should be a list of cases"),
        ("- {subject: x}", "Field required"),
        ("- {subject: x, expect: perhaps}", "cases.yaml:1"),
        ("- {subject: x, expect: deny, method: tools/list}", "no method that is about"),
        ("- {subject: x, expect: deny, endpoint: /nowhere/at/all}", "should be /mcp"),
    ],
)
def test_a_case_that_cannot_be_judged_is_a_fault_of_its_file(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    assert code("policy", "test", cases(tmp_path, text), "--config", config) == 2
    assert sentence in capsys.readouterr().err


def test_an_explanation_ends_with_the_rule(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("explain", "-c", config, "--principal", "bot", "resources/read", "files+file:///open/x") == 0
    *_, rule, verdict = capsys.readouterr().out.splitlines()
    assert rule.endswith(f"allowed by roles.reader.allow, rule 2 ({config}:11)")
    assert verdict == "allowed"


def test_an_explanation_is_json_where_that_is_asked(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("explain", "-c", config, "--role", "reader", "--json", "resources/read", "files+file:///shut") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["allowed"] is False
    assert told["steps"][-1]["what"] == "policy"


def test_a_method_about_nothing_cannot_be_explained(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("explain", "-c", config, "tools/list", "x") == 2
    assert "no method that is about" in capsys.readouterr().err


@pytest.mark.parametrize(("path", "key"), [("/mcp", ""), ("mcp/", ""), ("/mcp/team", "/team"), ("/servers/a b", "a b")])
def test_endpoints_are_named_by_their_paths(path: str, key: str) -> None:
    assert endpoint_key(path) == key


def test_r87_an_explanation_names_the_endpoint_by_its_path(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("/mcp", "/mcp/team", "/servers/files"):
        code("explain", "-c", config, "-p", "bot", "--role", "ops", "--endpoint", path, "tools/call", "files__x")
        assert capsys.readouterr().out.splitlines()[0].split() == ["yes", "endpoint", path]


def test_r87_a_principal_that_does_not_exist_is_told(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("explain", "-c", config, "-p", "bto", "tools/call", "files__x") == 1
    assert "no caller is called 'bto'" in capsys.readouterr().err


def test_the_pipeline_is_explained_without_a_call(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("explain", "-c", config, "--pipeline") == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert ["client", "ERRORS", "core"] in [row[:3] for row in rows]
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert code("explain", "-c", config) == 2


def test_the_pipeline_of_a_replica_is_explained_without_its_store(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as store:
        store.setblocking(False)
        secret, url = "0123456789abcdef" * 3, f"redis://127.0.0.1:{store.getsockname()[1]}/0"
        text = POLICY.replace("{port: 0}", f"{{port: 0, secret: ['{secret}']}}") % sys.executable
        config.write_text(f"{text}cluster: {{redis: '{url}'}}\n")
        assert code("explain", "-c", config, "--pipeline") == 0
        with pytest.raises(BlockingIOError):
            store.accept()
    assert "client\tCLIENT\tprocess\trecords the session for other replicas" in capsys.readouterr().out
