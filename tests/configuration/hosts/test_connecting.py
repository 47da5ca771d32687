"""The gateway in each host's file, and out of it again to the byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcproxy.configuration.documents.parsing import parse_document
from mcproxy.configuration.documents.tree import follow
from mcproxy.configuration.hosts.connecting import CannotConnect, Program, Running, connect, entry
from mcproxy.configuration.hosts.dialects import host_servers
from mcproxy.configuration.hosts.locations import HOSTS, Machine
from mcproxy.configuration.hosts.references import Origin

PROGRAM = Program("/bin/mcproxy", ("serve", "--stdio"), (("PATH", "/bin"),))
FILES = {
    ".json": '{\n\t// mine\n\t"theme": "dark",\n\t"%s": {\n\t\t"a": {"command": "x"}, // first\n\t},\n}\n',
    ".toml": '# mine\nmodel = "m"\n\n[%s.a]\ncommand = "x" # first\n',
    ".yaml": "# mine\ntheme: dark\n%s:\n    # first\n    a:\n        cmd: x\n        type: stdio\n# end\n",
}


def file_of(name: str) -> Path:
    return Machine({"HOME": "/h"}, "linux").user_file(HOSTS[name])


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_the_gateway_is_put_into_a_host_s_file_and_taken_out_to_the_byte(name: str, ending: str) -> None:
    host, path = HOSTS[name], file_of(name)
    before = (FILES[path.suffix] % ".".join(host.servers)).replace("\n", ending)
    done, after = connect(name, host, str(path), before, "mcproxy", entry(host, PROGRAM))
    assert {line for line in before.split(ending) if "}" not in line} <= set(after.split(ending))
    servers = follow(parse_document(after, str(path)), host.servers).members
    assert servers["mcproxy"].plain == entry(host, PROGRAM)
    assert done.undone(after) == before


@pytest.mark.parametrize("name", HOSTS)
def test_a_file_that_was_not_there_goes_again(name: str) -> None:
    host, path = HOSTS[name], file_of(name)
    done, after = connect(name, host, str(path), None, "mcproxy", entry(host, PROGRAM))
    assert follow(parse_document(after, str(path)), (*host.servers, "mcproxy")).plain == entry(host, PROGRAM)
    assert done.undone(after) is None


@pytest.mark.parametrize("name", HOSTS)
def test_an_entry_is_understood_by_what_imports_the_host_s_files(name: str) -> None:
    host, path = HOSTS[name], file_of(name)
    _, after = connect(name, host, str(path), None, "mcproxy", entry(host, PROGRAM))
    (server,) = host_servers(parse_document(after, str(path)), Path("/p"), Origin(path.parent))
    assert server.members["command"].plain == "/bin/mcproxy"
    assert server.members["args"].plain == ["serve", "--stdio"]
    assert server.members["env"].plain == {"PATH": "/bin"}


def test_what_was_changed_since_stays_when_the_gateway_is_taken_out() -> None:
    host = HOSTS["cursor"]
    done, after = connect("cursor", host, "mcp.json", '{"mcpServers": {}}', "mcproxy", entry(host, PROGRAM))
    assert done.undone(after + "\n// later") == '{"mcpServers": {}}\n// later'
    with pytest.raises(CannotConnect, match="by hand"):
        done.undone(after.replace("/bin/mcproxy", "/usr/bin/mcproxy"))


def test_the_gateway_is_taken_out_of_a_file_that_its_host_wrote_anew() -> None:
    host = HOSTS["claude-code"]
    done, after = connect("claude-code", host, ".claude.json", None, "mcproxy", entry(host, PROGRAM))
    anew = json.dumps({**json.loads(after), "numStartups": 1}, indent=1)
    assert json.loads(str(done.undone(anew))) == {"mcpServers": {}, "numStartups": 1}
    with pytest.raises(CannotConnect, match="by hand"):
        done.undone(anew.replace("/bin/mcproxy", "/usr/bin/mcproxy"))


def test_a_server_that_the_gateway_replaced_is_back_though_its_host_wrote_the_file_anew() -> None:
    host, before = HOSTS["claude-code"], {"mcpServers": {"mcproxy": {"command": "mine", "args": ["a"]}}}
    text = json.dumps(before, indent=2)
    done, after = connect("claude-code", host, ".claude.json", text, "mcproxy", entry(host, PROGRAM))
    anew = json.dumps({**json.loads(after), "numStartups": 1}, indent=1)
    assert json.loads(str(done.undone(anew))) == {**before, "numStartups": 1}


def test_a_file_that_has_the_gateway_no_more_stays_as_it_is() -> None:
    host = HOSTS["cursor"]
    done, _ = connect("cursor", host, "mcp.json", None, "mcproxy", entry(host, PROGRAM))
    assert done.undone('{"mcpServers": {}, "later": 1}') == '{"mcpServers": {}, "later": 1}'


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cursor", {"url": "u", "headers": {"Authorization": "Bearer ${env:K}"}}),
        ("gemini", {"httpUrl": "u", "headers": {"Authorization": "Bearer $K"}}),
        ("codex", {"url": "u", "bearer_token_env_var": "K"}),
        ("opencode", {"type": "remote", "url": "u", "headers": {"Authorization": "Bearer {env:K}"}}),
        ("windsurf", {"serverUrl": "u", "headers": {"Authorization": "Bearer ${env:K}"}}),
    ],
)
def test_a_key_is_referred_to_as_the_host_does_it(name: str, expected: dict[str, object]) -> None:
    assert entry(HOSTS[name], Running("u", "K")) == expected


def test_a_key_goes_into_the_header_that_the_gateway_reads() -> None:
    assert entry(HOSTS["cursor"], Running("u", "K", "X-Key")) == {"url": "u", "headers": {"X-Key": "${env:K}"}}
    assert entry(HOSTS["codex"], Running("u", "K", "X-Key")) == {"url": "u", "env_http_headers": {"X-Key": "K"}}


def test_the_gateway_is_put_where_the_host_s_newer_version_keeps_its_servers_if_the_file_has_that() -> None:
    host, before = HOSTS["opencode"], '{"mcp": {"servers": {"a": {"type": "local", "command": ["a"]}}}}'
    done, after = connect("opencode", host, "opencode.json", before, "mcproxy", entry(host, PROGRAM))
    assert list(json.loads(after)["mcp"]["servers"]) == ["a", "mcproxy"]
    anew = json.dumps(json.loads(after), indent=3)
    assert json.loads(str(done.undone(anew))) == json.loads(before)


def test_a_host_that_only_starts_programs_is_given_no_url() -> None:
    with pytest.raises(CannotConnect, match="only starts programs"):
        entry(HOSTS["claude-desktop"], Running("u"))


def test_a_host_that_reads_no_variables_is_given_no_key() -> None:
    with pytest.raises(CannotConnect, match="no key from a variable"):
        entry(HOSTS["zed"], Running("u", "K"))
