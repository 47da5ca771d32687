"""The official Python SDK in a host's place: reads the host's own file, connects as it says, and calls one tool.

What it knows of each host is from that host's documentation, and nothing of it from mcproxy's own tables.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
from httpx2 import AsyncClient
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.timeouts import GUARD


@dataclass(frozen=True, slots=True)
class OwnFile:
    """Where a host keeps the user's servers, and how a value in there refers to an environment variable."""

    path: str
    servers: str
    variable: str


HOSTS: Final = {
    "claude-code": OwnFile(".claude.json", "mcpServers", r"\$\{(\w+)\}"),
    "vscode": OwnFile(".config/Code/User/mcp.json", "servers", r"\$\{env:(\w+)\}"),
    "cursor": OwnFile(".cursor/mcp.json", "mcpServers", r"\$\{env:(\w+)\}"),
}


async def answer(host: str, server: str, tool: str, arguments: dict[str, Any]) -> str:
    """The text that a tool of a server in the host's file returns."""
    own = HOSTS[host]
    entry = json.loads(Path.home().joinpath(own.path).read_text())[own.servers][server]
    async with AsyncExitStack() as stack:
        if "url" in entry:
            headers = {
                name: re.sub(own.variable, lambda found: os.environ[found[1]], value)
                for name, value in entry.get("headers", {}).items()
            }
            http = await stack.enter_async_context(AsyncClient(headers=headers, timeout=GUARD))
            to: Any = streamable_http_client(entry["url"], http_client=http)
        else:
            to = StdioServerParameters(command=entry["command"], args=entry["args"], env=entry.get("env"))
        client = await stack.enter_async_context(Client(to))
        result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return "".join(block.text for block in result.content if block.type == "text")


if __name__ == "__main__":
    host, server, tool, arguments = sys.argv[1:]
    sys.stdout.write(anyio.run(answer, host, server, tool, json.loads(arguments)))
