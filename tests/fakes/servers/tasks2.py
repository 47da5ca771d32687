"""A server of the extension of tasks, on the Python SDK's second generation: `python tasks2.py PORT`.

Its one tool becomes a task where the client can have one; the task asks for a name before it is done. Who listens is
told of each new state: this SDK listens for no tasks, so that the handler is one of our own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import anyio
import uvicorn
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import (
    CallToolRequestParams,
    ClientCapabilities,
    Notification,
    RequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
)

Context = ServerRequestContext[Any, Any]

TASK = {"createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z", "ttlMs": None}
QUESTION = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Who are you?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
}


class TaskParams(RequestParams):
    taskId: str


class UpdateParams(TaskParams):
    inputResponses: dict[str, Any]


class Tasks(Extension):
    """Tasks by id: the name that each was given, once it was."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self._names: dict[str, str | None] = {}
        self._cancelled: set[str] = set()
        self._streams: dict[MemoryObjectSendStream[str], list[str]] = {}

    def methods(self) -> list[MethodBinding]:
        return [
            MethodBinding("tasks/get", TaskParams, self._get),
            MethodBinding("tasks/update", UpdateParams, self._update),
            MethodBinding("tasks/cancel", TaskParams, self._cancel),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Context, call_next: CallNext
    ) -> HandlerResult:
        id = f"task-{len(self._names) + 1}"
        self._names[id] = None
        return {"resultType": "task", "taskId": id, "status": "working", **TASK}

    async def _get(self, ctx: Context, params: TaskParams) -> HandlerResult:
        return {"resultType": "complete", "taskId": params.taskId, **TASK, **self._state(params.taskId)}

    async def _update(self, ctx: Context, params: UpdateParams) -> HandlerResult:
        self._state(params.taskId)
        self._names[params.taskId] = params.inputResponses["name"]["content"]["name"]
        self._tell(params.taskId)
        return {"resultType": "complete"}

    async def _cancel(self, ctx: Context, params: TaskParams) -> HandlerResult:
        self._state(params.taskId)
        self._cancelled.add(params.taskId)
        self._tell(params.taskId)
        return {"resultType": "complete"}

    async def listen(self, ctx: Context, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        asked: list[str] = (params.notifications.model_extra or {}).get("taskIds", [])
        if asked and not ctx.session.check_client_capability(ClientCapabilities(extensions={self.identifier: {}})):
            raise MCPError(-32021, "tasks were not declared")
        honoured = [id for id in asked if id in self._names]
        meta = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
        send, receive = anyio.create_memory_object_stream[str](100)
        self._streams[send] = honoured
        try:
            acknowledged = {"notifications": {"taskIds": honoured}, "_meta": meta}
            await _notify(ctx, "notifications/subscriptions/acknowledged", acknowledged)
            async for id in receive:
                await _notify(ctx, "notifications/tasks", {"taskId": id, **TASK, **self._state(id), "_meta": meta})
        finally:
            del self._streams[send]
            send.close()
            receive.close()
        return SubscriptionsListenResult(_meta=meta)

    def _tell(self, id: str) -> None:
        for stream, ids in self._streams.items():
            if id in ids:
                stream.send_nowait(id)

    def _state(self, id: str) -> Mapping[str, object]:
        if id not in self._names:
            raise MCPError(-32602, f"no task {id}")
        if id in self._cancelled:
            return {"status": "cancelled"}
        name = self._names[id]
        if name is None:
            return {"status": "input_required", "inputRequests": {"name": QUESTION}}
        link = {"type": "resource_link", "uri": "file:///greeting", "name": "greeting"}
        return {"status": "completed", "result": {"content": [{"type": "text", "text": f"hello {name}"}, link]}}


async def _notify(ctx: Context, method: str, params: dict[str, Any]) -> None:
    notification: Any = Notification[dict[str, Any], str](method=method, params=params)
    await ctx.session.send_notification(notification, related_request_id=ctx.request_id)


tasks = Tasks()
server = MCPServer("tasks2", version="1", log_level="ERROR", extensions=[tasks], subscriptions=False)
server._lowlevel_server.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, tasks.listen)


@server.tool()
async def greet() -> str:
    await anyio.sleep_forever()
    return "never"


if __name__ == "__main__":
    uvicorn.run(server.streamable_http_app(), port=int(sys.argv[1]), log_level="error")
