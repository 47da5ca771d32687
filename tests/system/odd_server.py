"""A server over stdio that says whatever the protocol allows and no SDK would: unknown fields and blocks, odd cursors.

It speaks JSON as it stands here, with no SDK in between, asks its client back, and keeps count of what it was told.
What it may not do is depend on time or chance: two runs of one script must give the same answers.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio.abc import TaskGroup

Json = dict[str, Any]

ODD: Json = {"x-odd": {"deep": [1, 2.5, None, {"ü": "\u2028"}], "big": 12345678901234567890}}
ICONS = [{"src": "data:image/png;base64,AA==", "mimeType": "image/png", "sizes": ["48x48"], "theme": "dark"}]
ANNOTATIONS: Json = {"audience": ["user", "assistant"], "priority": 0.25, "lastModified": "2025-01-12T15:00:58Z"}
STRING: Json = {"type": "string"}


class Refused(Exception):
    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, **({} if data is None else {"data": data})}


def schema(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, **ODD}


def text(value: str, **more: object) -> Json:
    return {"type": "text", "text": value, **more}


TOOLS: list[Json] = [
    {
        "name": "echo",
        "title": "Echo ✓",
        "description": "Says what it was told.",
        "icons": ICONS,
        "inputSchema": {**schema(text=STRING), "$schema": "https://json-schema.org/draft/2020-12/schema"},
        "outputSchema": {"type": "object", "properties": {"said": {"type": "object"}}, "required": ["said"]},
        "annotations": {"title": "Echo", "readOnlyHint": True, "openWorldHint": False, **ODD},
        "execution": {"taskSupport": "forbidden"},
        "_meta": {"example.com/key": {"kept": True}},
        **ODD,
    },
    {"name": "links", "inputSchema": schema(), "_meta": {"ui": {"resourceUri": "ui://odd/view"}}},
    *(
        {"name": name, "inputSchema": schema()}
        for name in ("blocks", "fail", "refuse", "need_url", "sample", "form", "visit", "roots", "report", "log", "pay")
    ),
    *({"name": name, "inputSchema": schema()} for name in ("wait", "given_up", "linger", "watched", "grow", "large")),
    *({"name": name, "inputSchema": schema()} for name in ("die", "meet", "paid")),
    {"name": "touch", "inputSchema": schema(uri=STRING)},
]
RESOURCES: list[Json] = [
    {
        "uri": "odd:memo",
        "name": "memo",
        "title": "A memo",
        "size": 5,
        "icons": ICONS,
        "annotations": ANNOTATIONS,
        **ODD,
    },
    {"uri": "file:///odd/blob.bin", "name": "blob", "mimeType": "application/octet-stream", "_meta": ODD},
    {"uri": "ui://odd/view", "name": "view", "mimeType": "text/html;profile=mcp-app"},
]
CONTENTS: dict[str, Json] = {
    "odd:memo": {"uri": "odd:memo", "mimeType": "text/plain", "text": "hello", "_meta": {"k": 1}, **ODD},
    "file:///odd/blob.bin": {"uri": "file:///odd/blob.bin", "mimeType": "application/octet-stream", "blob": "AAEC"},
    "ui://odd/view": {"uri": "ui://odd/view", "mimeType": "text/html;profile=mcp-app", "text": "<p>"},
}
TEMPLATES: list[Json] = [
    {"uriTemplate": f"odd://{{+path}}/{number}{{?query,page}}", "name": f"template {number}", **ODD}
    for number in range(5)
]
PROMPTS: list[Json] = [
    {
        "name": "greet",
        "title": "Greet",
        "arguments": [{"name": "who", "title": "Who", "description": "Whom", "required": True, **ODD}],
        "icons": ICONS,
        **ODD,
    }
]
PAGES = {None: (0, ""), "": (2, "\u2028 odd"), "\u2028 odd": (4, None)}
"""By cursor: where the page starts, and the next cursor. The empty string is one."""


class Server:
    """One connection: what is in flight, what was asked, what was noted."""

    def __init__(self, send: Callable[[Json], Awaitable[None]], tasks: TaskGroup) -> None:
        self._send = send
        self._tasks = tasks
        self._running: dict[object, anyio.CancelScope] = {}
        self._answers: dict[str, tuple[anyio.Event, list[Json]]] = {}
        self._asked = 0
        self._given_up = anyio.Event()
        self._waited = self._cancelled = 0
        self._begun = self._paid = 0
        self._watched: list[str] = []
        self._waiting_to_meet: list[anyio.Event] = []
        self._tools = list(TOOLS)

    async def take(self, message: Json) -> None:
        match message:
            case {"id": id, "method": str()}:
                self._tasks.start_soon(self._answer, id, message)
            case {"method": "notifications/cancelled", "params": {"requestId": id}} if id in self._running:
                self._running[id].cancel()
                self._cancelled += 1
                self._given_up.set()
            case {"id": id} if id in self._answers:
                event, box = self._answers[id]
                box.append(message)
                event.set()

    async def _answer(self, id: object, request: Json) -> None:
        with anyio.CancelScope() as scope:
            self._running[id] = scope
            try:
                answer: Json = {"result": await self._result(request["method"], request.get("params", {}))}
            except Refused as refusal:
                answer = {"error": refusal.error}
            await self._send({"jsonrpc": "2.0", "id": id, **answer})
        del self._running[id]

    async def _result(self, method: str, params: Json) -> Json:
        match method:
            case "initialize":
                return _initialized(params)
            case "ping" | "logging/setLevel":
                return {}
            case "tools/list":
                return {"tools": self._tools, "_meta": {"page": 1}, **ODD}
            case "resources/list":
                return {"resources": RESOURCES}
            case "resources/templates/list":
                start, following = PAGES[params.get("cursor")]
                page: Json = {"resourceTemplates": TEMPLATES[start : start + 2]}
                return page if following is None else {**page, "nextCursor": following}
            case "prompts/list":
                return {"prompts": PROMPTS}
            case "resources/read":
                return _contents(params["uri"])
            case "resources/subscribe":
                self._watched.append(params["uri"])
                return {}
            case "resources/unsubscribe":
                self._watched.append("-" + params["uri"])
                return {}
            case "prompts/get":
                return _greeting(params)
            case "completion/complete":
                return _completion(params)
            case "tools/call":
                return await self._call(params["name"], params.get("arguments") or {}, params.get("_meta") or {})
        raise Refused(-32601, f"no method {method}")

    async def _call(self, name: str, arguments: Json, meta: Json) -> Json:
        match name:
            case "sample" | "form" | "visit" | "roots":
                return {"content": [text(json.dumps(await self._ask(*QUESTIONS[name]), sort_keys=True))]}
            case "report":
                for done in (1, 2.5, 3):
                    await self._report(meta, {"progress": done, "total": 3, "message": f"{done} of 3"})
                # Some clients lose reports that they read together with the answer: a question keeps them apart.
                await self._ask(*QUESTIONS["roots"])
            case "log":
                for level in ("info", "warning", "emergency"):
                    line = {"level": level, "logger": "odd", "data": {"says": level, **ODD}}
                    await self._say("notifications/message", line)
            case "wait":
                self._waited += 1
                await self._report(meta, {"progress": 0})
                await anyio.sleep_forever()
            case "pay":
                self._begun += 1
                answer = await self._ask(*QUESTIONS["form"])
                self._paid += 1
                return {"content": [text(json.dumps(answer))]}
            case "paid":
                return {"content": [text(json.dumps({"begun": self._begun, "paid": self._paid}))]}
            case "given_up":
                await self._given_up.wait()
                return {"content": [text(f"given_up: {self._cancelled} of {self._waited}")]}
            case "watched":
                return {"content": [text(json.dumps(self._watched))]}
            case "touch":
                await self._say("notifications/resources/updated", {"uri": arguments["uri"], **ODD})
            case "grow":
                self._tools.append({"name": f"grown{len(self._tools)}", "inputSchema": schema()})
                await self._say("notifications/tools/list_changed")
            case "linger":
                await self._report(meta, {"progress": 0})
                await anyio.sleep(0.5)
            case "meet":
                return {"content": [text(await self._meet(arguments, meta))]}
            case "die":
                print("the last words", file=sys.stderr, flush=True)
                os._exit(7)
            case _:
                return _content(name, arguments)
        return {"content": [text(f"{name}: done")]}

    async def _meet(self, arguments: Json, meta: Json) -> str:
        """Waits for a second caller, reports, asks where told to, and tells each caller who it is."""
        who, here = arguments["who"], anyio.Event()
        await self._report(meta, {"progress": 1, "message": who})
        self._waiting_to_meet.append(here)
        if len(self._waiting_to_meet) == 2:
            for event in self._waiting_to_meet:
                event.set()
            self._waiting_to_meet.clear()
        await here.wait()
        await self._report(meta, {"progress": 2, "message": who})
        answer = await self._ask(*QUESTIONS[arguments["ask"]]) if "ask" in arguments else None
        return json.dumps({"who": who, "answer": answer})

    async def _report(self, meta: Json, progress: Json) -> None:
        if "progressToken" in meta:
            await self._say("notifications/progress", {"progressToken": meta["progressToken"], **progress})

    async def _say(self, method: str, params: Json | None = None) -> None:
        await self._send({"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})})

    async def _ask(self, method: str, params: Json) -> Json:
        self._asked += 1
        id, event, box = f"question {self._asked}", anyio.Event(), list[Json]()
        self._answers[id] = event, box
        await self._send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        await event.wait()
        return {key: box[0][key] for key in ("result", "error") if key in box[0]}


QUESTIONS: dict[str, tuple[str, Json]] = {
    "sample": (
        "sampling/createMessage",
        {
            "messages": [{"role": "user", "content": {**text("how are you?"), "annotations": ANNOTATIONS}}],
            "modelPreferences": {"hints": [{"name": "small"}], "speedPriority": 0.5},
            "systemPrompt": "Be brief.",
            "maxTokens": 7,
            "metadata": ODD,
        },
    ),
    "form": (
        "elicitation/create",
        {
            "mode": "form",
            "message": "Who are you?",
            "requestedSchema": {
                "type": "object",
                "properties": {"name": {"type": "string", "title": "Name"}, "age": {"type": "integer", "minimum": 0}},
                "required": ["name"],
            },
        },
    ),
    "visit": (
        "elicitation/create",
        {"mode": "url", "message": "Sign in", "url": "https://example.com/sign-in?a=1#b", "elicitationId": "e1"},
    ),
    "roots": ("roots/list", {}),
}


def _initialized(params: Json) -> Json:
    return {
        "protocolVersion": params["protocolVersion"],
        "capabilities": {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "prompts": {"listChanged": True},
            "logging": {},
            "completions": {},
            "experimental": {"example.com/odd": ODD},
        },
        "serverInfo": {"name": "odd", "title": "Odd", "version": "1", "icons": ICONS, **ODD},
        "instructions": "Expect *anything*.",
    }


def _contents(uri: str) -> Json:
    if uri not in CONTENTS:
        raise Refused(-32002, "Resource not found", {"uri": uri})
    return {"contents": [CONTENTS[uri]], "_meta": ODD, **ODD}


def _greeting(params: Json) -> Json:
    if params["name"] != "greet":
        raise Refused(-32602, f"no prompt {params['name']!r}", ODD)
    embedded = {"type": "resource", "resource": CONTENTS["odd:memo"], "annotations": ANNOTATIONS, **ODD}
    hello = text(f"hello {params['arguments']['who']}", annotations=ANNOTATIONS, _meta=ODD)
    messages = [{"role": "user", "content": hello}, {"role": "assistant", "content": embedded, **ODD}]
    return {"description": "A greeting", "messages": messages, **ODD}


def _completion(params: Json) -> Json:
    known = params.get("context", {}).get("arguments", {})
    values = [f"{params['ref'].get('name') or params['ref']['uri']}", params["argument"]["value"], *sorted(known)]
    return {"completion": {"values": values, "total": 300, "hasMore": True, **ODD}, **ODD}


def _content(name: str, arguments: Json) -> Json:
    match name:
        case "echo":
            said = {"said": arguments}
            return {"content": [text(json.dumps(said))], "structuredContent": said, "_meta": {"trace": "t"}, **ODD}
        case "links":
            link = {"type": "resource_link", "uri": "file:///odd/blob.bin", "name": "blob", "icons": ICONS, **ODD}
            return {"content": [link, {"type": "resource", "resource": CONTENTS["odd:memo"]}]}
        case "blocks":
            blocks = [{"type": "embedding", "vector": [0.1, 1e-9]}, {"type": "binary", "data": "AA=="}, ODD]
            return {"content": blocks, "structuredContent": {"n": 12345678901234567890}}
        case "fail":
            return {"content": [text("it did not work", annotations=ANNOTATIONS)], "isError": True}
        case "refuse":
            raise Refused(-31999, "no, and this is why", ODD)
        case "need_url":
            raise Refused(-32042, "sign in first", {"elicitations": [QUESTIONS["visit"][1]], **ODD})
        case "large":
            return {"content": [text("é" * arguments.get("length", 400_000))]}
    raise Refused(-32602, f"no tool {name!r}")


async def main() -> None:
    stdin, lock = anyio.wrap_file(sys.stdin.buffer), anyio.Lock()

    async def send(message: Json) -> None:
        async with lock:
            await anyio.to_thread.run_sync(_write, json.dumps(message, ensure_ascii=False).encode() + b"\n")

    async with anyio.create_task_group() as tasks:
        server = Server(send, tasks)
        async for line in stdin:
            await server.take(json.loads(line))
        tasks.cancel_scope.cancel()


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    anyio.run(main)
