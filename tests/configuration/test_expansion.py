"""References in a configuration's strings."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcproxy.configuration.expansion import parse_env_file
from mcproxy.configuration.hosts.importing import Imported
from tests.configuration.reading import SENTINEL, configure, problems, upstream


def test_references_are_expanded_in_every_string(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    text = """\
mcpServers:
  x:
    command: ${CMD}
    args: ["${A}-${env:A}", "${UNSET:-fallback}", "$${A}", "$A", "${file:token}"]
    env: {HOME_OF: "${userHome}"}
proxy: {name: "${A}", port: "${PORT}"}
"""
    configuration = configure(tmp_path, text, {"CMD": "run", "A": "aaa", "PORT": "99"})
    (only,) = configuration.settings.upstreams
    assert only.command == "run"
    assert only.args == ("aaa-aaa", "fallback", "${A}", "$A", "from-file")
    assert only.env == {"HOME_OF": str(Path.home())}
    assert (configuration.settings.proxy.name, configuration.settings.proxy.port) == ("aaa", 99)


def test_a_missing_variable_is_an_error_that_names_file_line_and_key(tmp_path: Path) -> None:
    text = "mcpServers:\n  x:\n    command: x\n    env:\n      T: Bearer ${TOKEN}\nproxy:\n  port: ${PORT}\n"
    assert problems(tmp_path, text) == [
        "mcproxy.yaml:5:7: mcpServers.x.env.T: the environment variable TOKEN is not set: "
        "set it in the environment or in `.env` beside this file, or write ${TOKEN:-default}",
        "mcproxy.yaml:7:3: proxy.port: the environment variable PORT is not set: "
        "set it in the environment or in `.env` beside this file, or write ${PORT:-default}",
    ]


def test_a_missing_file_and_an_unknown_reference_are_errors(tmp_path: Path) -> None:
    text = 'mcpServers: {x: {command: x, args: ["${file:/no/such}", "${what ever}"]}}'
    missing, unknown = problems(tmp_path, text)
    assert "args.0: there is no file /no/such" in missing
    assert "args.1: ${what ever} is no known reference" in unknown


def test_what_refers_to_the_caller_is_left_for_each_call_and_is_for_arguments_alone(tmp_path: Path) -> None:
    overrides = "{roll: {arguments: {path: {value: '/srv/${caller.name}'}}}}"
    only = upstream(tmp_path, f"mcpServers: {{x: {{command: x, tools: {{overrides: {overrides}}}}}}}")
    assert only.tools.overrides["roll"].arguments["path"].value == "/srv/${caller.name}"
    (problem,) = problems(tmp_path, "mcpServers: {x: {command: x, args: ['${caller.name}']}}")
    assert "args.0: ${caller.name} differs with each call" in problem


@pytest.mark.parametrize("text", ["${HOME", "a ${B:-{}}", "x${"])
def test_r87_a_reference_that_is_never_closed_is_told(tmp_path: Path, text: str) -> None:
    (problem,) = problems(tmp_path, f"mcpServers: {{s: {{command: '{text}'}}}}")
    assert "s.command: a ${ without its }, or with another brace before it; write $${ for a literal ${" in problem


def test_a_disabled_server_may_lack_its_variables(tmp_path: Path) -> None:
    only = upstream(tmp_path, "mcpServers: {x: {command: x, enabled: false, env: {T: '${TOKEN}'}}}")
    assert not only.enabled


def test_r44_no_error_shows_an_expanded_value(tmp_path: Path) -> None:
    text = """\
mcpServers:
  a: {command: x, url: "${S}", headers: {A: "${S}"}}
  b: {url: "${S}", prefix: "${S}", type: "${S}", enabled: "${S}", max_in_flight: "${S}"}
  c: {command: x, cwd: ["${S}"], timeouts: {idle: "${S}"}, max_message_bytes: "${S}", envFile: "${file:secret}/x"}
proxy: {host: "${S}", port: "${S}", log_level: "${S}"}
"""
    (tmp_path / "secret").write_text("other")
    found = problems(tmp_path, text, {"S": SENTINEL})
    assert len(found) >= 10
    assert SENTINEL not in "\n".join(found)


def test_r44_the_secrets_of_a_file_are_known(tmp_path: Path) -> None:
    text = 'mcpServers: {x: {url: "http://h/?key=${KEY}", headers: {Authorization: "Bearer tok-123"}}}'
    configuration = configure(tmp_path, text, {"KEY": SENTINEL})
    assert {SENTINEL, "tok-123", "Bearer tok-123"} <= configuration.secrets
    assert configuration.settings.secrets == configuration.secrets


DOTENV = {
    "A=b": "b",
    "A = b": "b",
    "export A=b": "b",
    "A=b # a comment": "b",
    "A=b#c": "b#c",
    "A='b # c' # a comment": "b # c",
    'A="b" # a comment': "b",
    'A="b\\nc"': "b\nc",
    "A='b\\nc'": "b\\nc",
    'A="b\nc"': "b\nc",
    "A='-----BEGIN KEY-----\nx\n-----END KEY-----\n'": "-----BEGIN KEY-----\nx\n-----END KEY-----\n",
    'A="say \\"b\\""': 'say "b"',
    "A=b\r\nB=c\r\n": "b",
    "\ufeffA=b": "b",
    "A=": "",
    "A=${B}": "${B}",
    "not a line\nA=b": "b",
}


@pytest.mark.parametrize(("text", "value"), DOTENV.items())
def test_a_dotenv_file_is_read_as_python_dotenv_reads_it(text: str, value: str) -> None:
    assert parse_env_file(text)["A"] == value


@pytest.mark.parametrize("value", ["b", 'say "b"', "C:\\new\\table", 'it\'s "b"', "\\'", "a\\", "$x ${y} # z"])
def test_what_import_writes_to_env_is_read_back(value: str) -> None:
    assert parse_env_file(Imported({}, values={"A": value}).render_env()) == {"A": value}
