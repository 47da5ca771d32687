"""A server of the handshake era that logs nothing until it is told a level; the tool `die` ends it."""

from __future__ import annotations

import json
import sys
from typing import Any


def say(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def main() -> None:
    level: str | None = None
    for line in sys.stdin:
        message = json.loads(line)
        result: dict[str, Any] = {}
        match message["method"]:
            case "initialize":
                capabilities: dict[str, Any] = {"tools": {}, "logging": {}}
                info = {"name": "logger", "version": "1"}
                result = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
            case "logging/setLevel":
                level = message["params"]["level"]
            case "tools/list":
                result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("work", "die")]}
            case "tools/call":
                if message["params"]["name"] == "die":
                    return
                if level is not None:
                    say(method="notifications/message", params={"level": level, "data": "at work"})
                result = {"content": []}
        if "id" in message:
            say(id=message["id"], result=result)


if __name__ == "__main__":
    main()
