"""One resource that counts, on the official SDK over stdio: `python -m tests.fakes.servers.counter FILE`.

The number is kept in FILE, so that the server that is started next goes on from there. In the era of whoever connects.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import EmptyResult, SubscribeRequestParams, UnsubscribeRequestParams

from tests.fakes.servers.asking import is_stateless

NUMBER = "counter://number"
FILE = Path(sys.argv[-1])

server = MCPServer("counter", version="1", log_level="ERROR")


def known() -> int:
    return int(FILE.read_text())


def become(value: int) -> None:
    FILE.write_text(str(value))


@server.resource(NUMBER, name="number")
async def number() -> str:
    return str(known())


@server.tool()
async def count(ctx: Context[Any, Any], until: int) -> str:
    """Changes the number step by step, and announces each of them."""
    for value in range(known() + 1, until + 1):
        become(value)
        if is_stateless(ctx):
            await ctx.notify_resource_updated(NUMBER)
        else:
            await ctx.session.send_resource_updated(NUMBER)
    return str(known())


@server.tool()
async def count_and_die(ctx: Context[Any, Any], until: int) -> str:
    """Changes the number once more than it lives to announce; what it announced may still be on its way."""
    await count(ctx, until)
    become(until + 1)
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


async def _accept(ctx: Any, params: Any) -> EmptyResult:
    return EmptyResult()


server._lowlevel_server.add_request_handler("resources/subscribe", SubscribeRequestParams, _accept)
server._lowlevel_server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, _accept)


if __name__ == "__main__":
    server.run()
