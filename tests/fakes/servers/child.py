"""A server of the handshake era over stdio, each of whose tools has one odd manner. Standard library alone.

Runs as `python child.py [MANNER...]`: `deaf-to-eof` ignores the end of its input and SIGTERM, `asks-for-roots` asks
once initialised, `old` speaks 2024-11-05, `alien` speaks a version that nobody knows,
`slow-lists` never answers a list, `mute` no `initialize`, `dies-at-once` says a word on stderr,
`banner` says on stdout that it starts, `dies-the-second-time` starts once in the folder that it runs in.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MANNERS = frozenset(sys.argv[1:])
Message = dict[str, Any]

waiting: dict[str, Message] = {}
heard: list[Message] = []
outbox: list[str] = []
holding: list[bool] = []


def say(message: Message) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}))


def write(line: str) -> None:
    outbox.append(line)
    if not holding:
        flush()


def flush() -> None:
    sys.stdout.write("".join(f"{line}\n" for line in outbox))
    sys.stdout.flush()
    outbox.clear()


@contextmanager
def at_once() -> Iterator[None]:
    """What is said inside reaches the reader in one piece."""
    holding.append(True)
    yield
    holding.pop()
    flush()


def answer(request: Message, value: Any) -> None:
    result = {"content": [{"type": "text", "text": "done"}], "structuredContent": {"value": value}}
    say({"id": request["id"], "result": result})


def on_initialize(request: Message) -> None:
    if "picky" in MANNERS and any(request["params"]["capabilities"][name] for name in ("sampling", "elicitation")):
        say({"id": request["id"], "error": {"code": -32603, "message": 'Unrecognized field "tools"'}})
        return
    version = "2024-11-05" if "old" in MANNERS else "1999-01-01" if "alien" in MANNERS else "2025-11-25"
    capabilities = {"tools": {"listChanged": True}, "logging": {}}
    info = {"name": "child", "version": "1"}
    result = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info, "instructions": "be kind"}
    say({"id": request["id"], "result": result})


def on_call(request: Message) -> None:
    params = request["params"]
    arguments = params.get("arguments", {})
    token = params.get("_meta", {}).get("progressToken")
    match params["name"]:
        case "echo":
            answer(request, arguments)
        case "raw":
            flush()
            sys.stdout.buffer.write(bytes.fromhex(arguments["hex"]).replace(b"ID", str(request["id"]).encode()) + b"\n")
            sys.stdout.buffer.flush()
        case "meta":
            answer(request, params.get("_meta"))
        case "heard":
            answer(request, heard)
        case "environment":
            answer(
                request, {"environ": dict(os.environ), "pid": os.getpid(), "reaper": os.getppid(), "cwd": os.getcwd()}
            )
        case "fail":
            message = " ".join(["odd", *(os.environ[name] for name in arguments.values())])
            data = {"kept": [1], **({"said": message} if arguments else {})}
            say({"id": request["id"], "error": {"code": -32042, "message": message, "data": data}})
        case "hang":
            pass
        case "crash":
            sys.stderr.write("last words of the child\n")
            sys.stderr.flush()
            os._exit(3)
        case "junk":
            write("[INFO] not a message")
            write('{"jsonrpc": "2.0"')
            write("")
            answer(request, "still here")
        case "big":
            answer(request, "x" * arguments["bytes"])
        case "malformed":
            write(json.dumps({"jsonrpc": "2.0", "id": request["id"]}))
        case "progress":
            for step in (1, 2):
                say({"method": "notifications/progress", "params": {"progressToken": token, "progress": step}})
            say({"method": "notifications/message", "params": {"level": "info", "data": "half way"}})
            answer(request, "done")
        case "ask":
            waiting[arguments["key"]] = request
            say({"id": arguments["key"], "method": arguments["method"], "params": arguments.get("params", {})})
        case "ask twice more":
            for key in ("first", "second", "third"):
                say({"id": key, "method": arguments["method"]})
        case "ask afterwards":
            with at_once():
                answer(request, "first")
                say({"id": "later", "method": arguments["method"]})
        case "await answer":
            answers = [message for message in heard if message.get("id") == arguments["id"]]
            if answers:
                answer(request, answers[0])
            else:
                waiting[arguments["id"]] = request
        case "ask and withdraw":
            say({"id": "w", "method": "elicitation/create", "params": {}})
            waiting["withdraw"] = request
        case "withdraw":
            say({"method": "notifications/cancelled", "params": {"requestId": "w"}})
            answer(waiting.pop("withdraw"), "withdrawn")
            answer(request, "ok")
        case "announce afterwards":
            with at_once():
                answer(request, "first")
                say({"method": arguments["method"], "params": arguments.get("params", {})})
        case "announce":
            say({"method": arguments["method"], "params": arguments.get("params", {})})
            answer(request, "announced")
        case "grandchild":
            sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True)
            answer(request, sleeper.pid)
        case "kin":
            answer(request, subprocess.Popen(["sleep", "600"]).pid)
        case "close output":
            os.close(1)
            time.sleep(600)
        case "babble":
            answer(request, "blah")
            while True:
                write("blah\n" * 10_000)
        case "stop reading":
            answer(request, "bye")
            time.sleep(600)


def on_message(message: Message) -> None:
    heard.append(message)
    match message:
        case {"method": "initialize"} if "mute" in MANNERS:
            pass
        case {"method": "initialize"}:
            on_initialize(message)
        case {"method": "notifications/initialized"} if "asks-for-roots" in MANNERS:
            say({"id": "roots", "method": "roots/list"})
        case {"method": "tools/call"}:
            on_call(message)
        case {"method": "tools/list"} if "slow-lists" not in MANNERS:
            say({"id": message["id"], "result": {"tools": []}})
        case {"id": str(key)} if key in waiting:
            answer(waiting.pop(key), message)


def main() -> None:
    if "deaf-to-eof" in MANNERS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "banner" in MANNERS:
        print("Starting up, version 1", flush=True)
        print("Listening", flush=True)
    if "dies-at-once" in MANNERS:
        sys.exit("stillborn")
    if "dies-the-second-time" in MANNERS:
        if os.path.exists("started"):
            sys.exit("another reason")
        with open("started", "w"):
            pass
    for line in sys.stdin:
        on_message(json.loads(line))
    if "deaf-to-eof" in MANNERS:
        while True:
            time.sleep(600)


if __name__ == "__main__":
    main()
