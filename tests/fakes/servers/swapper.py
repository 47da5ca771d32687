"""A server over stdio whose tools are what a file says: `swap` changes it for another file, and tells of that.

Run as `python -m tests.fakes.servers.swapper FILE OTHER`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(file: Path, other: Path) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        match request.get("method"):
            case "initialize":
                capabilities = {"tools": {"listChanged": True}}
                info = {"name": "swapper", "version": "1"}
                version = request["params"]["protocolVersion"]
                answer(request, {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info})
            case "tools/list":
                answer(request, {"tools": json.loads(file.read_text())})
            case "tools/call":
                if request["params"]["name"] == "swap":
                    file, other = other, file
                    send({"method": "notifications/tools/list_changed"})
                answer(request, {"content": []})
            case _:
                if "id" in request:
                    send({"id": request["id"], "error": {"code": -32601, "message": "not here"}})


def answer(request: dict[str, object], result: object) -> None:
    send({"id": request["id"], "result": result})


def send(message: dict[str, object]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
