"""A server on the official SDK, for links to meet the real thing: `python sdk.py stdio|http|sse [PORT]`."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

server = MCPServer("sdk", version="1", log_level="ERROR")


class Name(BaseModel):
    name: str


@server.tool()
async def add(a: int, b: int) -> int:
    return a + b


@server.tool()
async def count(ctx: Context[Any, Any]) -> str:
    for step in range(3):
        await ctx.report_progress(step, 3)
    return "counted"


@server.tool()
async def greet(ctx: Context[Any, Any]) -> str:
    answer = await ctx.elicit("Who are you?", Name)
    return f"hello {answer.data.name}" if answer.action == "accept" else answer.action


def main(transport: str, port: int) -> None:
    match transport:
        case "stdio":
            server.run()
        case "http":
            uvicorn.run(server.streamable_http_app(), port=port, log_level="error")
        case "sse":
            uvicorn.run(server.sse_app(), port=port, log_level="error")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
