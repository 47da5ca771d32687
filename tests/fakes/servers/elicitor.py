"""A server of both eras whose tool asks as servers did before 2026-07-28: in the middle of the call. stdio or HTTP."""

from __future__ import annotations

import sys
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

server = MCPServer("elicitor", log_level="ERROR")


class Name(BaseModel):
    name: str


@server.tool()
async def greet(ctx: Context[Any, Any]) -> str:
    """Asks whom to greet."""
    answer = await ctx.elicit("Whom?", Name)
    return f"Hello, {answer.data.name}" if answer.action == "accept" else answer.action


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
