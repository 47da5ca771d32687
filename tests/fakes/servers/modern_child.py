"""A server of the stateless era over stdio, some of whose ways are odd. Standard library alone.

Runs as `python modern_child.py [MANNER...]`: `mute` says nothing to `server/discover`, `slow` answers it only after
it was asked for `initialize` and refuses that, `brittle` dies of it (where `slow`: only then), `legacy` calls it
unknown; what is `mute`, `brittle` or `legacy` speaks 2025-11-25. `tardy` announces no changes, and refuses `initialize`
only when it is asked for something else; `tardier` so refuses only the second `initialize`. `both` speaks the era that
it is first asked in, `deaf` never answers `initialize`. `chatty` logs a line of JSON first.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MANNERS = frozenset(sys.argv[1:])
Message = dict[str, Any]
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"

heard: list[Message] = []
held: list[Message] = []
refused_later: list[Message] = []
listening: list[Any] = []


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def refuse(request: Message, code: int, text: str) -> None:
    say(id=request["id"], error={"code": code, "message": text})


def answer(request: Message, value: Any) -> None:
    say(id=request["id"], result={"resultType": "complete", "content": [], "structuredContent": {"value": value}})


def on_discover(request: Message) -> None:
    if "chatty" in MANNERS:
        sys.stdout.write('{"level": "info", "msg": "up"}\n')
    if "brittle" in MANNERS:
        if "slow" in MANNERS:
            next(sys.stdin)
        os._exit(1)
    if "legacy" in MANNERS:
        refuse(request, -32602, "Invalid request parameters")
    elif "slow" in MANNERS and not awake():
        held.append(request)
    elif "mute" not in MANNERS:
        discovered(request)


def awake() -> bool:
    return times_initialized() > 0


def times_initialized() -> int:
    return sum(message["method"] == "initialize" for message in heard)


def discovered(request: Message) -> None:
    announces = not MANNERS & {"tardy", "tardier"}
    capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True}} if announces else {}
    say(id=request["id"], result={"supportedVersions": ["2026-07-28"], "capabilities": capabilities})


def on_initialize(request: Message) -> None:
    if "deaf" in MANNERS:
        return
    if "both" not in MANNERS and not MANNERS & {"mute", "brittle", "legacy"}:
        if "tardy" in MANNERS or ("tardier" in MANNERS and times_initialized() > 1):
            refused_later.append(request)
        else:
            refuse(request, -32601, "Method not found")
        while held:
            discovered(held.pop())
        return
    info = {"name": "child", "version": "1"}
    say(id=request["id"], result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info})


def on_listen(request: Message) -> None:
    listening.append(request["id"])
    announce("notifications/subscriptions/acknowledged", notifications=request["params"]["notifications"])


def announce(method: str, **params: Any) -> None:
    say(method=method, params={**params, "_meta": {SUBSCRIPTION: listening[-1]}})


def on_call(request: Message) -> None:
    params = request["params"]
    arguments = params.get("arguments", {})
    match params["name"]:
        case "echo":
            answer(request, arguments)
        case "heard":
            answer(request, heard)
        case "pid":
            answer(request, os.getpid())
        case "hang":
            pass
        case "crash":
            sys.stderr.write("last words\n")
            sys.stderr.flush()
            os._exit(3)
        case "log":
            say(method="notifications/message", params={"level": "info", "data": "a line"})
            answer(request, "logged")
        case "progress":
            token = params["_meta"]["progressToken"]
            say(method="notifications/progress", params={"progressToken": token, "progress": 1})
            answer(request, "done")
        case "ask":
            say(id="mine", method="roots/list")
            answer(request, "asked")
        case "announce":
            announce(arguments["method"], **arguments.get("params", {}))
            answer(request, "announced")
        case "stop listening":
            say(method="notifications/cancelled", params={"requestId": listening[-1]})
            answer(request, "stopped")


def on_list(request: Message) -> None:
    say(id=request["id"], result={"tools": []})


ON = {
    "server/discover": on_discover,
    "initialize": on_initialize,
    "subscriptions/listen": on_listen,
    "tools/call": on_call,
    "tools/list": on_list,
}

for line in sys.stdin:
    message = json.loads(line)
    heard.append(message)
    while refused_later and message["method"] != "initialize":
        refuse(refused_later.pop(), -32022, "this connection speaks 2026-07-28")
    if message["method"] in ON:
        ON[message["method"]](message)
