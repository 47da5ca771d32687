"""`headers_command` of an upstream: what excludes it, and the key of a host that means it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcproxy.configuration.hosts.importing import import_servers
from tests.configuration.reading import problems, upstream

WEB = "url: 'https://a.example/mcp', headers_command: [/bin/token, --for, web]"


def server(keys: str) -> str:
    return f"mcpServers: {{web: {{{keys}}}}}\n"


def test_the_command_has_an_environment_and_a_folder(tmp_path: Path) -> None:
    web = upstream(tmp_path, server(f"{WEB}, env: {{A: b}}, cwd: tools"))
    assert web.headers_command == ("/bin/token", "--for", "web")
    assert (web.env, web.cwd) == ({"A": "b"}, str(tmp_path / "tools"))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("command: x, headers_command: [y]", "headers_command: is for a server with a url"),
        (f"{WEB}, oauth: {{}}", "headers_command: and oauth exclude each other"),
        (f"{WEB}, credentials: {{forward: {{X-A: X-B}}}}", "headers_command: and credentials.forward exclude"),
        (f"{WEB}, args: [x]", "args: is for a server with a command"),
        ("url: 'https://a.example/mcp', env: {A: b}", "env: is for a server with a command"),
        ("url: 'https://a.example/mcp', headers_command: token", "headers_command: should be"),
    ],
)
def test_what_cannot_be_meant_is_a_problem_at_its_place(tmp_path: Path, keys: str, says: str) -> None:
    [problem] = problems(tmp_path, server(keys))
    assert says in problem


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("/opt/bin/headers.sh", ("/opt/bin/headers.sh",)),
        ("gcloud-headers --account me@example.com", ("gcloud-headers", "--account", "me@example.com")),
        ("./headers.sh", ("./headers.sh",)),
        ('echo "{}" | cat', ("/bin/sh", "-c", 'echo "{}" | cat')),
    ],
)
def test_a_hosts_helper_is_a_command_of_ours(tmp_path: Path, line: str, command: tuple[str, ...]) -> None:
    host = {"mcpServers": {"web": {"type": "http", "url": "https://a.example/mcp", "headersHelper": line}}}
    web = upstream(tmp_path, json.dumps(host), name="mcp.json")
    assert web.headers_command == command
    assert web.cwd == str(tmp_path)
    (tmp_path / "host.json").write_text(json.dumps(host))
    imported = import_servers(str(tmp_path / "host.json"), tmp_path)
    again = upstream(tmp_path, imported.render())
    assert (again.headers_command, again.cwd) == (web.headers_command, web.cwd)


def test_a_secret_in_a_hosts_helper_becomes_a_variable(tmp_path: Path) -> None:
    line = "/opt/bin/headers --token ghp_0123456789abcdefghij"
    (tmp_path / "host.json").write_text(
        json.dumps({"mcpServers": {"web": {"url": "https://a", "headersHelper": line}}})
    )
    imported = import_servers(str(tmp_path / "host.json"), tmp_path)
    assert imported.servers["web"]["headers_command"] == ["/opt/bin/headers", "--token", "${MCPROXY_WEB_TOKEN}"]
    assert imported.variables == {"MCPROXY_WEB_TOKEN": "web: headers_command.2"}
    assert "ghp_" not in imported.render()
