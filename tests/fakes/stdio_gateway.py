"""A program that serves a fake gateway over its standard input and output, and prints where it should not."""

from __future__ import annotations

import anyio

from mcproxy.call.calls import Call, Outcome
from mcproxy.downstream.front.stdio import serve_stdio
from tests.fakes.gateway import FakeGateway, asking, edge_of, list_tools

FORM = {"type": "object", "properties": {}}


async def list_loudly(call: Call) -> Outcome:
    print("not a message", flush=True)
    return await list_tools(call)


async def main() -> None:
    gateway = FakeGateway()
    gateway.answers["tools/list"] = list_loudly
    gateway.answers["tools/call"] = asking("elicitation/create", {"message": "?", "requestedSchema": FORM})
    async with edge_of(gateway) as context:
        await serve_stdio(context)


if __name__ == "__main__":
    anyio.run(main)
