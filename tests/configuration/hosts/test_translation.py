"""Hosts' own files, read unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcproxy.settings import Settings
from tests.configuration.reading import configure, problems, upstream


def test_the_file_of_claude_desktop_loads_unchanged(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "globalShortcut": "Ctrl+Space",
            "mcpServers": {"filesystem": {"command": "npx", "args": ["-y", "@x/fs", "/tmp"], "env": {"A": "b"}}},
        }
    )
    only = upstream(tmp_path, text, name="claude_desktop_config.json")
    assert (only.name, only.prefix, only.command, only.env) == ("filesystem", "filesystem", "npx", {"A": "b"})


def test_the_file_of_vs_code_loads_unchanged(tmp_path: Path) -> None:
    text = """{
  "inputs": [{"type": "promptString", "id": "github-token", "password": true}], // asked once
  "servers": {
    "gh": {"type": "http", "url": "https://api.x/mcp", "headers": {"Authorization": "Bearer ${input:github-token}"},
           "gallery": true, "version": "1.0"},
    "local": {"type": "stdio", "command": "${workspaceFolder}/run", "envFile": "${workspaceFolder}/.env",
              "dev": {"watch": "**"}},
  },
}"""
    (tmp_path / ".env").write_text("# comment\nexport A=1\nB=\"two words\"\nC=3 # three\nD='#4'\n")
    gh, local = configure(tmp_path, text, {"MCPROXY_INPUT_GITHUB_TOKEN": "t"}, ".vscode/mcp.json").settings.upstreams
    assert (gh.type, gh.headers) == ("http", {"Authorization": "Bearer t"})
    assert local.command == f"{tmp_path}/run"
    assert local.env == {"A": "1", "B": "two words", "C": "3", "D": "#4"}


def test_an_input_without_a_value_says_what_to_set(tmp_path: Path) -> None:
    text = '{"servers": {"gh": {"url": "https://x", "headers": {"A": "${input:gh-token}"}}}}'
    (problem,) = problems(tmp_path, text, name="mcp.json")
    assert problem.endswith("set the environment variable MCPROXY_INPUT_GH_TOKEN")


def test_the_files_of_cursor_windsurf_cline_and_claude_code_load_unchanged(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "mcpServers": {
                "cursor": {"type": "stdio", "command": "x", "env": {"K": "${K}"}, "auth": {}},
                "windsurf": {"serverUrl": "https://a/mcp", "disabledTools": ["t"], "disabled": True},
                "cline": {"type": "streamableHttp", "url": "https://b", "autoApprove": ["x"], "timeout": 60},
                "roo": {"type": "streamable-http", "url": "https://c", "alwaysAllow": [], "watchPaths": []},
                "claude": {"type": "sse", "url": "https://d/sse", "headers": {"X": "${V:-w}"}},
            },
            "projects": {"/home/x": {"history": []}},
        }
    )
    cursor, windsurf, cline, roo, claude = configure(tmp_path, text, {"K": "k"}, ".claude.json").settings.upstreams
    assert (cursor.command, cursor.env) == ("x", {"K": "k"})
    assert (windsurf.url, windsurf.tools.exclude, windsurf.enabled) == ("https://a/mcp", ("t",), False)
    assert (cline.type, roo.type, claude.type) == ("http", "http", "sse")
    assert claude.headers == {"X": "w"}


def test_the_file_of_gemini_cli_loads_unchanged(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "theme": "dark",
            "mcpServers": {
                "a": {"httpUrl": "https://a", "headers": {"T": "Bearer $TOK"}, "trust": True, "timeout": 5000},
                "b": {"command": "x", "includeTools": ["one"], "excludeTools": ["two"], "description": "d"},
            },
        }
    )
    a, b = configure(tmp_path, text, {"TOK": "t"}, ".gemini/settings.json").settings.upstreams
    assert (a.url, a.headers) == ("https://a", {"T": "Bearer t"})
    assert (b.tools.include, b.tools.exclude) == (("one",), ("two",))


def test_a_json_file_with_a_proxy_section_is_ours_and_strict(tmp_path: Path) -> None:
    text = '{"theme": 1, "proxy": {}, "mcpServers": {}}'
    (problem,) = problems(tmp_path, text, name="mcproxy.json")
    assert problem.startswith("mcproxy.json:1:2: theme: unknown key")


@pytest.mark.parametrize("key", ["proxi", "Proxy", "porxy", "PROXY", "prxoy"])
def test_r50_what_was_meant_for_us_in_a_hosts_file_is_no_key_of_the_host(tmp_path: Path, key: str) -> None:
    (problem,) = problems(tmp_path, f'{{"mcpServers": {{}}, "{key}": {{"port": 1}}}}', name="mcp.json")
    assert problem == f'mcp.json:1:20: {key}: unknown key; did you mean "proxy"?'


@pytest.mark.parametrize("key", ["proxies", "httpProxy", "prompts", "projects"])
def test_a_hosts_own_keys_are_its_own(tmp_path: Path, key: str) -> None:
    assert configure(tmp_path, f'{{"mcpServers": {{}}, "{key}": 1}}', name="mcp.json").settings == Settings()


def test_in_a_hosts_file_an_env_file_is_named_by_the_hosts_references_alone(tmp_path: Path) -> None:
    (tmp_path / "name").write_text("secret.env")
    (tmp_path / "secret.env").write_text("A=1")
    text = json.dumps({"mcpServers": {"x": {"command": "x", "envFile": "${file:name}"}}})
    (problem,) = problems(tmp_path, text, name="mcp.json")
    assert "there is no file" in problem


@pytest.mark.parametrize("name", ["mcproxy.json", "mcproxy.yaml"])
def test_a_file_named_as_ours_has_our_references(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    text = json.dumps({"mcpServers": {"x": {"command": "x", "args": ["${file:secret}", "$${A}"]}}})
    assert upstream(tmp_path, text, {}, name).args == ("s3cret", "${A}")


def test_a_reference_of_ours_in_a_hosts_file_is_a_warning(tmp_path: Path) -> None:
    text = '{"mcpServers": {"x": {"command": "x",\n "env": {"T": "Bearer ${file:token}"}}}}'
    (warning,) = configure(tmp_path, text, name="mcp.json").warnings
    assert str(warning).removeprefix(f"{tmp_path}/") == (
        "mcp.json:2:10: mcpServers.x.env.T: ${file:token} is plain text in this host's own file: "
        "refer to it as the host does, or use mcproxy.yaml"
    )
