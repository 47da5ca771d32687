"""The Python SDK's second generation as a server: `python -m tests.system.matrix_server [PORT]`.

Over HTTP with a port, over stdio without; in the era of whoever connects. Each tool does one thing that a gateway has
to carry. Its twin is `node/matrix_server.mjs`.
"""

from __future__ import annotations

import sys
from typing import Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import (
    EmptyResult,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    LoggingLevel,
    SetLevelRequestParams,
    SubscribeRequestParams,
    UnsubscribeRequestParams,
)

from tests.fakes.servers.asking import ask, form, is_stateless, sampling

MEMO = "matrix://memo"
PAUSE = 0.2
"""Seconds between progress and answer: some clients lose reports that they read together with the answer."""
LEVELS: tuple[LoggingLevel, ...] = ("info", "warning", "error")

AnyContext = Context[Any, Any]

server = MCPServer("matrix", version="1", log_level="ERROR")
_given_up: list[anyio.Event] = []


@server.tool()
def add(a: int, b: int) -> str:
    return str(a + b)


@server.tool()
async def report(ctx: AnyContext) -> str:
    for done in (1, 2, 3):
        await ctx.report_progress(done, 3)
    await anyio.sleep(PAUSE)
    return "report: done"


@server.tool()
async def wait(ctx: AnyContext) -> str:
    _given_up[:] = [anyio.Event()]
    try:
        await ctx.report_progress(0)
        await anyio.sleep_forever()
    finally:
        _given_up[0].set()
    return "never"


@server.tool()
async def given_up() -> str:
    await _given_up[0].wait()
    return "given_up: done"


@server.tool()
async def log(ctx: AnyContext, who: str) -> str:
    for level in LEVELS:
        await ctx.log(level, f"{who}: {level}", logger_name="matrix")
    return "log: done"


@server.tool()
def fail() -> str:
    raise ToolError("it did not work")


@server.tool()
def refuse() -> str:
    raise MCPError(code=-31999, message="no, and this is why", data={"kept": [1]})


@server.tool(structured_output=False)
def large(size: int) -> str:
    return "x" * size


async def _answer(ctx: AnyContext, question: InputRequest) -> str | InputRequiredResult:
    answers = await ask(ctx, {"answer": question})
    if isinstance(answers, InputRequiredResult):
        return answers
    return str(answers["answer"].model_dump_json(by_alias=True, exclude_none=True))


@server.tool()
async def elicit(ctx: AnyContext) -> str | InputRequiredResult:
    return await _answer(ctx, form("Who are you?", name={"type": "string"}))


@server.tool()
async def sample(ctx: AnyContext) -> str | InputRequiredResult:
    return await _answer(ctx, sampling("how are you?"))


@server.tool()
async def roots(ctx: AnyContext) -> str | InputRequiredResult:
    return await _answer(ctx, ListRootsRequest())


@server.tool()
async def touch(ctx: AnyContext) -> str:
    if is_stateless(ctx):
        await ctx.notify_resource_updated(MEMO)
    else:
        await ctx.session.send_resource_updated(MEMO)
    return "touch: done"


@server.tool()
async def grow(ctx: AnyContext) -> str:
    server.add_tool(add, name=f"grown_{len(await server.list_tools())}")
    if is_stateless(ctx):
        await ctx.notify_tools_changed()
    else:
        await ctx.session.send_tool_list_changed()
    return "grow: done"


@server.resource(MEMO, name="memo")
def memo() -> str:
    return "hello"


async def _accept(ctx: Any, params: Any) -> EmptyResult:
    return EmptyResult()


server._lowlevel_server.add_request_handler("logging/setLevel", SetLevelRequestParams, _accept)
server._lowlevel_server.add_request_handler("resources/subscribe", SubscribeRequestParams, _accept)
server._lowlevel_server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, _accept)


if __name__ == "__main__":
    match sys.argv[1:]:
        case [port]:
            uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(port), log_level="error")
        case _:
            server.run()
