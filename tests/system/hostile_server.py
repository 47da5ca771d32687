"""A server over stdio whose every list and result is as large as a message may be, and made of the smallest entries.

It is quick otherwise: its answers are written as they stand here, without a parser or an SDK.
"""

from __future__ import annotations

import json
import sys

ITEMS = {
    "zeros": b"0",
    "arrays": b"[]",
    "objects": b"{}",
    "texts": b'"a"',
    "filled objects": b'{"a":0}',
    "names": b'{"name":"a"}',
}
LISTS = {
    "tools/list": ("tools", "zeros"),
    "prompts/list": ("prompts", "arrays"),
    "resources/list": ("resources", "filled objects"),
    "resources/templates/list": ("resourceTemplates", "texts"),
}


def many(item: bytes, size: int) -> bytes:
    return b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"


def tool(name: str, more: bytes = b"") -> bytes:
    return b'{"name":"%b","inputSchema":{"type":"object"}%b}' % (name.encode(), more)


def answer(method: str, params: dict[str, object], size: int) -> bytes:
    if method == "initialize":
        told = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
            "serverInfo": {"name": "hostile", "version": "1"},
        }
        if sys.argv[2:] == ["said"]:
            told = {**told, "capabilities": {"experimental": {"x": "x" * size}}}
        return b'"result":%b' % json.dumps(told).encode()
    if method == "tools/call":
        return called(str(params["name"]), size)
    member, items = LISTS.get(method, (None, None))
    if member is None or items is None:
        return b'"result":{}'
    if sys.argv[2:] == ["few"] and method == "tools/list":
        icons = b',"icons":%b' % many(b"{}", size)
        return b'"result":{"tools":[%b]}' % b",".join([*map(tool, CALLS), tool("icons", icons)])
    return b'"result":{"%b":%b}' % (member.encode(), many(ITEMS[items], size))


CALLS = {
    "elicitations": lambda size: (
        b'"error":{"code":-32042,"message":"no","data":{"elicitations":%b}}' % many(b"{}", size)
    ),
    "content": lambda size: b'"result":{"content":%b}' % many(b"{}", size),
    "structured": lambda size: b'"result":{"content":[],"structuredContent":{"a":%b}}' % many(b"[]", size),
    "meta": lambda size: b'"result":{"content":[],"_meta":{"a":%b}}' % many(b'{"a":0}', size),
}


def called(name: str, size: int) -> bytes:
    return CALLS[name](size) if name in CALLS else b'"result":{"content":[]}'


def main() -> None:
    size = int(sys.argv[1])
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "method" in request and "id" in request:
            body = answer(request["method"], request.get("params", {}), size)
            sys.stdout.buffer.write(b'{"jsonrpc":"2.0","id":%b,%b}\n' % (json.dumps(request["id"]).encode(), body))
            sys.stdout.buffer.flush()


main()
