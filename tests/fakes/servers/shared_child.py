"""A server of 2025-11-25 over stdio that tells which process it is, and notes each start: `shared_child.py FILE`.

Tools: `pid` answers with its process id, `log` says a line, `change` changes its resource, `grow` adds a tool.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

Message = dict[str, Any]

URI = "child:memo"

tools = ["pid", "log", "change", "grow"]
watched = False


def say(message: Message) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def notify(method: str, **params: Any) -> None:
    say({"method": f"notifications/{method}", "params": params})


def call(name: str) -> str:
    match name:
        case "log":
            notify("message", level="info", data="said by the child")
        case "change" if watched:
            notify("resources/updated", uri=URI)
        case "grow":
            tools.append(f"grown{len(tools)}")
            notify("tools/list_changed")
    return str(os.getpid())


def answer(method: str, params: Message) -> Message | None:
    global watched
    match method:
        case "initialize":
            capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}
            info = {"name": "child", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
        case "tools/list":
            return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in tools]}
        case "tools/call":
            return {"content": [{"type": "text", "text": call(params["name"])}]}
        case "resources/list":
            return {"resources": [{"uri": URI, "name": "memo"}]}
        case "resources/templates/list":
            return {"resourceTemplates": []}
        case "resources/subscribe" | "resources/unsubscribe":
            watched = method == "resources/subscribe"
            return {}
        case "ping" | "logging/setLevel":
            return {}
    return None


def main(file: Path) -> None:
    with file.open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        found = answer(request["method"], request.get("params", {}))
        error = {"code": -32601, "message": "Method not found"}
        say({"id": request["id"], **({"error": error} if found is None else {"result": found})})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
