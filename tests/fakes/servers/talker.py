"""A server of 2025-11-25 over stdio that says as much as it is asked to. Standard library alone."""

from __future__ import annotations

import json
import sys
from typing import Any

Message = dict[str, Any]

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("say", "change")]


def say(message: Message) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")


def answer(request: Message, **result: Any) -> None:
    say({"id": request["id"], "result": result})


def greet(request: Message) -> None:
    capabilities = {"tools": {}, "resources": {"subscribe": True}}
    info = {"name": "talker", "version": "1"}
    answer(request, protocolVersion="2025-11-25", capabilities=capabilities, serverInfo=info)


def call(request: Message) -> None:
    match request["params"]:
        case {"name": "say", "arguments": {"bytes": size}}:
            answer(request, content=[{"type": "text", "text": "x" * size}])
        case {"name": "change", "arguments": {"uris": uris, "times": times, "bytes": size}}:
            for number in range(times):
                for uri in uris:
                    meta = {"number": number, "said": "x" * size}
                    say({"method": "notifications/resources/updated", "params": {"uri": uri, "_meta": meta}})
            answer(request, content=[])


for line in sys.stdin:
    message = json.loads(line)
    match message["method"]:
        case "initialize":
            greet(message)
        case "tools/call":
            call(message)
        case "tools/list":
            answer(message, tools=TOOLS)
        case "resources/list":
            answer(message, resources=[])
        case "resources/templates/list":
            answer(message, resourceTemplates=[])
        case "resources/subscribe" | "resources/unsubscribe":
            answer(message)
    sys.stdout.flush()
