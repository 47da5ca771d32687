"""How results look."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout

import pytest

from mcproxy.cli.output import banner, print_err, print_json, print_out, print_table, stdio_hint
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


@pytest.mark.parametrize("break_", ["\n", "\r\n", "\r", "\v", "\f", "\x1e", "\x85", "\u2028", "\u2029"])
def test_a_name_with_line_breaks_forges_no_line(break_: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"git{break_}evil: approved\x1b[2K"
    print_out(f"{name} is hidden")
    print_err(f"{name} is hidden")
    print_table(("name",), [(name,)])
    shown = capsys.readouterr()
    for text, count in ((shown.out, 2), (shown.err, 1)):
        assert len(text.splitlines()) == text.count("\n") == count
        assert "\x1b" not in text


def test_lines_that_are_meant_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_out("a: 1\nb: 2", lines=True)
    assert capsys.readouterr().out == "a: 1\nb: 2\n"


class Screen(io.StringIO):
    """A terminal that shows what was written to it."""

    def isatty(self) -> bool:
        return True


def test_json_of_servers_texts_cannot_take_a_terminal_over_and_says_what_they_say() -> None:
    name = "é\x1b[2J\x9b2J\x7f\u202e\u2028\U000e0041"
    with redirect_stdout(Screen()) as screen:
        print_json({name: [name]})
    assert json.loads(screen.getvalue()) == {name: [name]}
    assert screen.getvalue().replace("\n", "").isprintable()
    assert "é" in screen.getvalue()
