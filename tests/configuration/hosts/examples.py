"""One file of each host, in the form that the host's documentation shows, with what `mcproxy import` makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mcproxy.configuration.hosts.locations import HOSTS, Machine

Server = dict[str, object]


@dataclass(frozen=True)
class Example:
    """The file of a user; the servers that are imported from it; and what people are told of the rest."""

    text: str
    servers: dict[str, Server]
    """As they are in the new configuration; `{home}` is the user's folder."""
    variables: Sequence[str] = ()
    """Environment variables that the servers refer to afterwards."""
    dropped: Sequence[str] = ()
    """Server and key of everything that was left out, in order."""


def lay_out(name: str, home: Path) -> Path:
    """Writes a host's example where the host keeps it; returns the path."""
    host, machine = HOSTS[name], Machine({"HOME": str(home)}, "linux")
    # Continue keeps one server per file, and its own file, which `connect` leaves alone, may hold many.
    path = machine.files(host, home)[0] if name == "continue" else machine.user_file(host)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(EXAMPLES[name].text)
    return path


CODEX = """
model = "gpt-5"
[mcp_servers.context7]
command = "npx"
args = ["-y", "@upstash/context7-mcp"]
env_vars = ["LOCAL_TOKEN"]
startup_timeout_sec = 20
enabled_tools = ["open"]
[mcp_servers.context7.env]
MY_ENV_VAR = "MY_ENV_VALUE"
[mcp_servers.figma]
url = "https://mcp.figma.com/mcp"
bearer_token_env_var = "FIGMA_OAUTH_TOKEN"
http_headers = { "X-Figma-Region" = "us-east-1" }
env_http_headers = { "X-Team" = "TEAM" }
tool_timeout_sec = 45
"""
ZED = """{
  // comments are allowed
  "theme": "One Dark",
  "context_servers": {
    "local": {"source": "custom", "command": "some-command", "args": ["a"], "env": {}},
    "old": {"command": {"path": "node", "args": ["x.js"], "env": {"A": "b"}}},
    "remote": {"url": "https://x.example/mcp", "headers": {"Authorization": "Bearer t"}},
    "mcp-server-github": {"source": "extension", "settings": {"github_personal_access_token": "t"}},
  },
}"""
GOOSE = """
GOOSE_PROVIDER: openai
extensions:
  developer: {type: builtin, name: developer, enabled: true, bundled: true}
  github:
    name: GitHub
    cmd: npx
    args: [-y, "@modelcontextprotocol/server-github"]
    enabled: true
    envs: {"LOG": "1"}
    env_keys: [GITHUB_PERSONAL_ACCESS_TOKEN]
    type: stdio
    timeout: 300
  remote: {type: streamable_http, uri: "https://x.example/mcp", enabled: false, name: remote, timeout: 300}
"""
OPENCODE = """{
  "$schema": "https://opencode.ai/config.json",
  "mcp": {
    "local": {"type": "local", "command": ["npx", "-y", "my-mcp"], "enabled": true, "environment": {"A": "{env:B}"}},
    "remote": {"type": "remote", "url": "https://x.example", "headers": {"Authorization": "Bearer {env:KEY}"}},
  },
}"""
CONTINUE = """
name: mine
mcpServers:
  - name: My MCP Server
    command: uvx
    args: [mcp-server-sqlite, --db-path, ./test.db]
    env: {KEY: "${{ secrets.KEY }}"}
  - name: Remote
    type: streamable-http
    url: https://x.example/mcp
    requestOptions: {headers: {X-A: b}}
"""
ANTIGRAVITY = """{
  "mcpServers": {
    "local": {"command": "/srv/bin/mine", "args": ["--read-only"], "env": {"PORT": "5432"}, "disabled": true},
    "remote": {
      "serverUrl": "https://x.example/mcp", "headers": {"Authorization": "Bearer ${FEED_TOKEN}"},
      "disabledTools": ["publish"]
    }
  }
}
"""
CLAUDE_CODE = """{
  "numStartups": 7,
  "mcpServers": {
    "airtable": {"type": "stdio", "command": "npx", "args": ["-y", "airtable-mcp"], "env": {"BASE": "${BASE:-b1}"}},
    "notion": {"type": "http", "url": "https://notes.example/mcp"},
    "asana": {"type": "sse", "url": "https://tasks.example/sse", "headers": {"X-API-Key": "${ASANA_KEY}"}},
    "api": {"type": "http", "url": "https://a.example/mcp", "headersHelper": "/opt/bin/headers.sh"}
  },
  "projects": {}
}
"""
CLAUDE_DESKTOP = """{
  "globalShortcut": "",
  "mcpServers": {
    "filesystem": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/me/Desktop", "/home/me/Downloads"]
    }
  }
}
"""
CLINE = """{
  "mcpServers": {
    "local": {
      "transport": {"type": "stdio", "command": "node", "args": ["/srv/server.js"], "env": {"LEVEL": "info"}},
      "disabled": false, "metadata": {"from": "marketplace"}
    },
    "remote": {
      "type": "streamableHttp", "url": "https://x.example/mcp", "headers": {"X-Region": "eu"}, "timeout": 60,
      "disabled": true
    }
  }
}
"""
COPILOT = """{
  "mcpServers": {
    "playwright": {"type": "local", "command": "npx", "args": ["@playwright/mcp@0.0.60"], "env": {}, "tools": ["*"]},
    "remote": {"type": "http", "url": "https://x.example/mcp", "headers": {"X-Key": "${COPILOT_KEY}"}, "tools": ["one"]}
  }
}
"""
CURSOR = """{
  "mcpServers": {
    "local": {"command": "npx", "args": ["-y", "my-mcp"], "env": {"API_URL": "${env:API_URL}"}, "envFile": ".env"},
    "remote": {"url": "https://x.example/mcp", "headers": {"Authorization": "Bearer ${env:REMOTE_TOKEN}"}}
  }
}
"""
GEMINI = """{
  "theme": "GitHub",
  "mcpServers": {
    "python": {
      "command": "python", "args": ["server.py", "--port", "8080"], "cwd": "/srv", "env": {"DB": "$DB_NAME"},
      "timeout": 15000, "trust": true, "includeTools": ["safe"], "excludeTools": ["odd"]
    },
    "http": {"httpUrl": "https://x.example/mcp", "headers": {"X-Key": "${GEMINI_KEY}"}, "timeout": 5000},
    "sse": {"url": "https://x.example/sse"}
  }
}
"""
VSCODE = """{
  // secrets are asked for once, and kept by the editor
  "inputs": [{"type": "promptString", "id": "api-key", "description": "API key", "password": true}],
  "servers": {
    "local": {"type": "stdio", "command": "npx", "args": ["-y", "my-mcp"], "env": {"API_KEY": "${input:api-key}"}},
    "remote": {"type": "http", "url": "https://x.example/mcp", "headers": {"X-Version": "1"}},
  }
}
"""
WINDSURF = """{
  "mcpServers": {
    "github": {
      "command": "npx", "args": ["-y", "server-github"], "env": {"LOG": "1"}, "disabled": false, "disabledTools": ["rm"]
    },
    "remote": {"serverUrl": "https://x.example/mcp", "headers": {"Authorization": "Bearer ${env:AUTH_TOKEN}"}}
  }
}
"""

EXAMPLES: Final[dict[str, Example]] = {
    "antigravity": Example(
        ANTIGRAVITY,
        {
            "local": {
                "command": "/srv/bin/mine",
                "args": ["--read-only"],
                "env": {"PORT": "5432"},
                "enabled": False,
            },
            "remote": {
                "url": "https://x.example/mcp",
                "headers": {"Authorization": "Bearer ${FEED_TOKEN}"},
                "tools": {"exclude": ["publish"]},
            },
        },
        ["FEED_TOKEN"],
        [],
    ),
    "claude-code": Example(
        CLAUDE_CODE,
        {
            "airtable": {
                "type": "stdio",
                "command": "npx",
                "args": ["-y", "airtable-mcp"],
                "env": {"BASE": "${BASE:-b1}"},
            },
            "notion": {"type": "http", "url": "https://notes.example/mcp"},
            "asana": {"type": "sse", "url": "https://tasks.example/sse", "headers": {"X-API-Key": "${ASANA_KEY}"}},
            "api": {
                "type": "http",
                "url": "https://a.example/mcp",
                "headers_command": ["/opt/bin/headers.sh"],
                "cwd": "{home}",
            },
        },
        ["ASANA_KEY"],
        [],
    ),
    "claude-desktop": Example(
        CLAUDE_DESKTOP,
        {
            "filesystem": {
                "command": "npx",
                "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/me/Desktop", "/home/me/Downloads"],
            }
        },
        [],
        [],
    ),
    "cline": Example(
        CLINE,
        {
            "local": {"type": "stdio", "command": "node", "args": ["/srv/server.js"], "env": {"LEVEL": "info"}},
            "remote": {"type": "http", "url": "https://x.example/mcp", "headers": {"X-Region": "eu"}, "enabled": False},
        },
        [],
        ["remote: `timeout`"],
    ),
    "codex": Example(
        CODEX,
        {
            "context7": {
                "command": "npx",
                "args": ["-y", "@upstash/context7-mcp"],
                "env": {"MY_ENV_VAR": "MY_ENV_VALUE", "LOCAL_TOKEN": "${LOCAL_TOKEN}"},
                "timeouts": {"connect": 20},
                "tools": {"include": ["open"]},
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
        ["FIGMA_OAUTH_TOKEN", "LOCAL_TOKEN", "TEAM"],
        ["figma: `tool_timeout_sec`"],
    ),
    "continue": Example(
        CONTINUE,
        {
            "My MCP Server": {
                "command": "uvx",
                "args": ["mcp-server-sqlite", "--db-path", "./test.db"],
                "env": {"KEY": "${KEY}"},
            },
            "Remote": {"type": "http", "url": "https://x.example/mcp", "headers": {"X-A": "b"}},
        },
        ["KEY"],
        [],
    ),
    "copilot": Example(
        COPILOT,
        {
            "playwright": {
                "type": "stdio",
                "command": "npx",
                "args": ["@playwright/mcp@0.0.60"],
                "env": {},
                "tools": {"include": ["*"]},
            },
            "remote": {
                "type": "http",
                "url": "https://x.example/mcp",
                "headers": {"X-Key": "${COPILOT_KEY}"},
                "tools": {"include": ["one"]},
            },
        },
        ["COPILOT_KEY"],
        [],
    ),
    "cursor": Example(
        CURSOR,
        {
            "local": {"command": "npx", "args": ["-y", "my-mcp"], "env": {"API_URL": "${API_URL}"}},
            "remote": {"url": "https://x.example/mcp", "headers": {"Authorization": "Bearer ${REMOTE_TOKEN}"}},
        },
        ["API_URL", "REMOTE_TOKEN"],
        ["local: `envFile`"],
    ),
    "gemini": Example(
        GEMINI,
        {
            "python": {
                "command": "python",
                "args": ["server.py", "--port", "8080"],
                "cwd": "/srv",
                "env": {"DB": "${DB_NAME}"},
                "tools": {"include": ["safe"], "exclude": ["odd"]},
            },
            "http": {"headers": {"X-Key": "${GEMINI_KEY}"}, "url": "https://x.example/mcp"},
            "sse": {"url": "https://x.example/sse"},
        },
        ["DB_NAME", "GEMINI_KEY"],
        ["python: `timeout`", "python: `trust`", "http: `timeout`"],
    ),
    "goose": Example(
        GOOSE,
        {
            "github": {
                "command": "npx",
                "args": ["-y", "@modelcontextprotocol/server-github"],
                "env": {"LOG": "1", "GITHUB_PERSONAL_ACCESS_TOKEN": "${GITHUB_PERSONAL_ACCESS_TOKEN}"},
                "type": "stdio",
            },
            "remote": {"type": "http", "url": "https://x.example/mcp", "enabled": False},
        },
        ["GITHUB_PERSONAL_ACCESS_TOKEN"],
        ["github: `timeout`", "remote: `timeout`"],
    ),
    "opencode": Example(
        OPENCODE,
        {
            "local": {"command": "npx", "env": {"A": "${B}"}, "args": ["-y", "my-mcp"]},
            "remote": {"url": "https://x.example", "headers": {"Authorization": "Bearer ${KEY}"}},
        },
        ["B", "KEY"],
        [],
    ),
    "vscode": Example(
        VSCODE,
        {
            "local": {
                "type": "stdio",
                "command": "npx",
                "args": ["-y", "my-mcp"],
                "env": {"API_KEY": "${MCPROXY_INPUT_API_KEY}"},
            },
            "remote": {"type": "http", "url": "https://x.example/mcp", "headers": {"X-Version": "1"}},
        },
        ["MCPROXY_INPUT_API_KEY"],
        [],
    ),
    "windsurf": Example(
        WINDSURF,
        {
            "github": {
                "command": "npx",
                "args": ["-y", "server-github"],
                "env": {"LOG": "1"},
                "tools": {"exclude": ["rm"]},
            },
            "remote": {"headers": {"Authorization": "Bearer ${AUTH_TOKEN}"}, "url": "https://x.example/mcp"},
        },
        ["AUTH_TOKEN"],
        [],
    ),
    "zed": Example(
        ZED,
        {
            "local": {"command": "some-command", "args": ["a"], "env": {}},
            "old": {"command": "node", "args": ["x.js"], "env": {"A": "b"}},
            "remote": {"url": "https://x.example/mcp", "headers": {"Authorization": "Bearer t"}},
        },
        [],
        [],
    ),
}
