"""A client of tasks on the Python SDK's first generation: `python -m tests.fakes.clients.tasks1 URL TOOL`.

Calls a tool as a task, answers what it asks, and prints what it was told, as JSON.
"""

# mypy: ignore-errors
# The types here are those of another generation of the SDK than mypy sees.

from __future__ import annotations

import json
import sys

import anyio
from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client

from tests.fakes.clients.script import dumped


async def main(url, tool):
    questions = []

    async def elicit(_, params):
        questions.append(dumped(params))
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async with (
        streamable_http_client(url) as (read, write, _),
        ClientSession(read, write, elicitation_callback=elicit) as session,
    ):
        await session.initialize()
        tasks = session.experimental
        created = (await tasks.call_tool_as_task(tool, {})).task
        result = await tasks.get_task_result(created.taskId, types.CallToolResult)
        told = {
            "created": dumped(created),
            "result": dumped(result),
            "questions": questions,
            "at last": dumped(await tasks.get_task(created.taskId)),
            "listed": [task.taskId for task in (await tasks.list_tasks()).tasks],
        }
    print(json.dumps(told))


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
