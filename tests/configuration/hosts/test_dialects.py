"""Each host's documented example, read as entries of `mcpServers`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcproxy.configuration.documents.parsing import parse_document
from mcproxy.configuration.hosts.dialects import host_servers
from mcproxy.configuration.hosts.references import Origin
from tests.configuration.hosts.examples import CODEX, CONTINUE, GOOSE, OPENCODE, ZED

VSCODE_SETTINGS = """{
  "editor.fontSize": 12,
  "mcp": {"inputs": [], "servers": {"fetch": {"command": "uvx", "args": ["mcp-server-fetch"]}}},
}"""


OPENCODE_2 = """{
  "mcp": {
    "old": {"type": "remote", "url": "https://old.example"},
    "servers": {
      "local": {"type": "local", "command": ["npx", "-y", "my-mcp"], "disabled": true, "environment": {"A": "{env:B}"}},
      "remote": {"type": "remote", "url": "https://x.example", "headers": {"Authorization": "Bearer {env:KEY}"}},
    },
  },
}"""


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        (
            "config.toml",
            CODEX,
            {
                "context7": {
                    "command": "npx",
                    "args": ["-y", "@upstash/context7-mcp"],
                    "env": {"MY_ENV_VAR": "MY_ENV_VALUE", "LOCAL_TOKEN": "${LOCAL_TOKEN}"},
                    "includeTools": ["open"],
                    "timeouts": {"connect": 20},
                },
                "figma": {
                    "url": "https://mcp.figma.com/mcp",
                    "headers": {
                        "X-Figma-Region": "us-east-1",
                        "Authorization": "Bearer ${FIGMA_OAUTH_TOKEN}",
                        "X-Team": "${TEAM}",
                    },
                },
            },
        ),
        (
            "settings.json",
            ZED,
            {
                "local": {"command": "some-command", "args": ["a"], "env": {}},
                "old": {"command": "node", "args": ["x.js"], "env": {"A": "b"}},
                "remote": {"url": "https://x.example/mcp", "headers": {"Authorization": "Bearer t"}},
            },
        ),
        (
            "config.yaml",
            GOOSE,
            {
                "github": {
                    "command": "npx",
                    "args": ["-y", "@modelcontextprotocol/server-github"],
                    "enabled": True,
                    "env": {"LOG": "1", "GITHUB_PERSONAL_ACCESS_TOKEN": "${GITHUB_PERSONAL_ACCESS_TOKEN}"},
                    "type": "stdio",
                    "timeout": 300,
                },
                "remote": {
                    "type": "streamable_http",
                    "url": "https://x.example/mcp",
                    "enabled": False,
                    "timeout": 300,
                },
            },
        ),
        (
            "opencode.json",
            OPENCODE,
            {
                "local": {"command": "npx", "args": ["-y", "my-mcp"], "enabled": True, "env": {"A": "${B}"}},
                "remote": {"url": "https://x.example", "headers": {"Authorization": "Bearer ${KEY}"}},
            },
        ),
        (
            "config.yaml",
            CONTINUE,
            {
                "My MCP Server": {
                    "command": "uvx",
                    "args": ["mcp-server-sqlite", "--db-path", "./test.db"],
                    "env": {"KEY": "${KEY}"},
                },
                "Remote": {"type": "streamable-http", "url": "https://x.example/mcp", "headers": {"X-A": "b"}},
            },
        ),
        (
            "opencode.jsonc",
            OPENCODE_2,
            {
                "old": {"url": "https://old.example"},
                "local": {"command": "npx", "args": ["-y", "my-mcp"], "disabled": True, "env": {"A": "${B}"}},
                "remote": {"url": "https://x.example", "headers": {"Authorization": "Bearer ${KEY}"}},
            },
        ),
        ("settings.json", VSCODE_SETTINGS, {"fetch": {"command": "uvx", "args": ["mcp-server-fetch"]}}),
    ],
    ids=["codex", "zed", "goose", "opencode", "continue", "opencode-2", "vscode-settings"],
)
def test_the_documented_example_of_a_host_is_read(file: str, text: str, expected: dict[str, object]) -> None:
    found = {
        server.name: server.entry.plain
        for server in host_servers(parse_document(text, file), Path("/p"), Origin(Path("/p")))
    }
    assert found == expected


def test_what_cannot_be_carried_over_is_said() -> None:
    notes = [
        note
        for server in host_servers(parse_document(CODEX, "c.toml"), Path("/p"), Origin(Path("/p")))
        for note in server.notes
    ]
    assert notes == ["`tool_timeout_sec` was left out: `timeouts.idle` and `timeouts.total` are the like"]


def test_a_server_that_its_host_runs_in_a_sandbox_is_disabled_here() -> None:
    text = '{"servers": {"x": {"command": "x", "sandboxEnabled": true, "sandbox": {"network": {}}}}}'
    (server,) = host_servers(parse_document(text, "mcp.json"), Path("/p"), Origin(Path("/p")))
    assert server.members["enabled"].value is False
    assert "sandbox" in server.notes[0]


def test_a_host_s_file_without_servers_has_none() -> None:
    for text in ("{}", '{"mcp": 1, "extensions": [], "mcpServers": "x"}', '{"mcpServers": [1, {"command": "x"}]}'):
        assert list(host_servers(parse_document(text, "a.json"), Path("/p"), Origin(Path("/p")))) == []
