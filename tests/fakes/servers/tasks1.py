"""A server of tasks on the Python SDK's first generation: `python tasks1.py [PORT]`; over stdio without a port."""

# mypy: ignore-errors
# The types here are those of another generation of the SDK than mypy sees.

from __future__ import annotations

import sys
from contextlib import asynccontextmanager

import anyio
import uvicorn
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.routing import Mount

server = Server("tasks1")
server.experimental.enable_tasks()

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
SUPPORT = {"greet": types.TASK_REQUIRED, "wait": types.TASK_OPTIONAL, "quick": types.TASK_FORBIDDEN}


@server.list_tools()
async def list_tools():
    return [
        types.Tool(name=name, inputSchema={"type": "object"}, execution=types.ToolExecution(taskSupport=support))
        for name, support in SUPPORT.items()
    ]


@server.call_tool()
async def call(name, arguments):
    experimental = server.request_context.experimental
    experimental.validate_task_mode(SUPPORT[name])
    if not experimental.is_task:
        return [types.TextContent(type="text", text="done at once")]
    return await experimental.run_task(greet if name == "greet" else wait)


async def greet(task):
    """Asks for a name, and gives the greeting with a link."""
    await task.update_status("thinking")
    answer = await task.elicit("Who are you?", SCHEMA)
    text = f"hello {answer.content['name']}" if answer.action == "accept" else answer.action
    link = types.ResourceLink(type="resource_link", uri="file:///greeting", name="greeting")
    return types.CallToolResult(content=[types.TextContent(type="text", text=text), link])


async def wait(task):
    await anyio.sleep_forever()


def app():
    manager = StreamableHTTPSessionManager(server)

    @asynccontextmanager
    async def lifespan(_):
        async with manager.run():
            yield

    return Starlette(routes=[Mount("/mcp", app=manager.handle_request)], lifespan=lifespan)


async def main():
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        uvicorn.run(app(), port=int(sys.argv[1]), log_level="error")
    else:
        anyio.run(main)
