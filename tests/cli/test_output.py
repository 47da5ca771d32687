"""How results look."""

from __future__ import annotations

import json

import pytest

from mcproxy.cli.output import banner, print_table, stdio_hint
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


def test_the_banner_has_the_header_of_keys_where_they_are_on_and_each_endpoint() -> None:
    settings = Settings.model_validate(
        {
            "upstreams": [],
            "endpoints": {"team": {"upstreams": ["*"]}},
            "access": {"authentication": {"keys": {"me": [{"sha256": "ab" * 32}]}}},
        }
    )
    said = banner("http://127.0.0.1:8000", settings)
    assert '--header "Authorization: Bearer $MCPROXY_KEY"' in said
    assert "http://127.0.0.1:8000/mcp/team" in said
    assert "--header" not in banner("http://127.0.0.1:8000", Settings(upstreams=()))


def test_who_starts_by_hand_what_a_host_starts_is_given_what_to_paste() -> None:
    said = stdio_hint(["/bin/mcproxy", "serve", "--stdio"])
    assert json.loads(said.splitlines()[-1]) == {
        "mcpServers": {"mcproxy": {"command": "/bin/mcproxy", "args": ["serve", "--stdio"]}}
    }
