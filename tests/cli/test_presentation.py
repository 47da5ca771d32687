"""How results look."""

from __future__ import annotations

import json

import pytest

from mcproxy.cli.inspection import UpstreamReport
from mcproxy.cli.presentation import banner, entry_row, remarks, report_row, show_contents, show_table, tool_text
from mcproxy.protocol.methods import Kind
from mcproxy.settings import Settings

READY = UpstreamReport(
    "git", True, "stdio", "2025-11-25", "handshake", 0.5, 3, 1, 1, 0, None, {"a b": "git__a_b"}, {"": "no"}
)
DOWN = UpstreamReport("web", False, "http", None, None, None, 0, 0, 0, 0, "refused", {}, {})


def test_the_banner_has_a_line_for_each_host() -> None:
    text = banner("http://127.0.0.1:8000", Settings())
    assert "claude mcp add --transport http mcproxy http://127.0.0.1:8000/mcp" in text
    assert json.dumps({"mcpServers": {"mcproxy": {"url": "http://127.0.0.1:8000/mcp"}}}) in text
    assert "code --add-mcp '{" in text
    assert "http://127.0.0.1:8000/servers/NAME/mcp" in text


def test_elsewhere_than_on_a_terminal_fields_are_separated_by_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(("name", "what"), [("a", "x\ty\nz"), ("b", "\x1b[31m")])
    assert capsys.readouterr().out == "a\tx y z\nb\t\ufffd[31m\n"


def test_an_upstream_is_a_row_and_its_oddities_are_remarks() -> None:
    offers = "3 tools, 2 resources, 0 prompts"
    assert report_row(READY) == ("git", "ready", "stdio", "2025-11-25 (handshake)", offers, "0.50 s")
    assert remarks(READY) == ["git: a b is called git__a_b", "git: an entry is not shown: no"]
    assert report_row(DOWN)[1:4] == ("failed", "http", "")
    assert remarks(DOWN) == ["web: refused"]


def test_an_entry_is_its_key_and_a_line() -> None:
    assert entry_row(Kind.TEMPLATES, {"uriTemplate": "a://{b}", "description": "one\ntwo"}) == ("a://{b}", "one")
    assert entry_row(Kind.TOOLS, {"name": "t"}) == ("t", "")


def test_a_tools_content_is_shown_block_by_block() -> None:
    blocks = [
        {"type": "text", "text": "hello"},
        {"type": "image", "mimeType": "image/png", "data": "AAAA"},
        {"type": "resource_link", "uri": "git+x:y"},
        {"type": "resource", "resource": {"uri": "u", "text": "inside"}},
        {"type": "hologram"},
    ]
    assert tool_text({"content": blocks}).splitlines() == [
        "hello",
        "[image image/png, 3 bytes]",
        "[resource git+x:y]",
        "inside",
        "[hologram]",
    ]
    assert tool_text({"content": [], "structuredContent": {"a": 1}}) == '{\n  "a": 1\n}'


def test_bytes_are_written_as_they_are(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    show_contents({"contents": [{"uri": "u", "blob": "AAEC"}]})
    assert capfdbinary.readouterr().out == b"\x00\x01\x02"
