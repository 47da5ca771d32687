"""How results look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcproxy.cli.output import banner, import_summary, print_table
from mcproxy.configuration.hosts.importing import Imported
from mcproxy.settings import Settings


def test_the_banner_has_a_line_for_each_host() -> None:
    text = banner("http://127.0.0.1:8000", Settings())
    assert "claude mcp add --transport http mcproxy http://127.0.0.1:8000/mcp" in text
    assert json.dumps({"mcpServers": {"mcproxy": {"url": "http://127.0.0.1:8000/mcp"}}}) in text
    assert "code --add-mcp '{" in text
    assert "http://127.0.0.1:8000/servers/NAME/mcp" in text


def test_elsewhere_than_on_a_terminal_fields_are_separated_by_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "what"), [("a", "x\ty\nz"), ("b", "\x1b[31m")])
    assert capsys.readouterr().out == "a\tx y z\nb\t\ufffd[31m\n"


def test_an_import_says_which_servers_want_a_login_and_which_variables_a_value() -> None:
    servers: dict[str, dict[str, object]] = {"my web": {"url": "https://a", "oauth": {}}, "kid": {"command": "x"}}
    said = import_summary(Imported(servers, {"TOKEN": "kid: env.TOKEN"}, [Path("mcp.json")]), None)
    assert said.splitlines() == [
        "2 servers from mcp.json",
        "set these variables to the values that the host's file has:",
        "  TOKEN  (kid: env.TOKEN)",
        "these want an OAuth login, which hosts do not share; log in here once:",
        "  mcproxy login 'my web'",
    ]
