"""How results look."""

from __future__ import annotations

import json

import pytest

from mcproxy.cli.output import banner, print_table
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
