"""A server of the handshake era over stdio that says which process it is. Standard library alone, and soon there."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("who", "slow", "hidden")]


def result(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            identity = {"name": "pid", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": identity}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            if params["name"] == "slow":
                time.sleep(0.03)
            return {"content": [], "structuredContent": {"pid": os.getpid()}}
    return None


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            said = result(message["method"], message.get("params", {}))
            answer = {"error": {"code": -32601, "message": "no such method"}} if said is None else {"result": said}
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
