"""What a host's session costs its model, with every tool listed and with search: bytes and estimated tokens.

`python -m benchmarks.tokens CLONE...` prints a table for `docs/how-to/many-tools.md`. The tools are those of the real
MCP servers in LiveMCPBench (`collections.SOURCES`), behind one gateway; a task of the session is one of its queries.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import anyio

from benchmarks.collections import SOURCES
from mcproxy.access.audit.usage import TOKEN
from mcproxy.call.calls import Complete
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import size_of
from mcproxy.protocol.methods import Kind
from tests.fakes.upstream import FakeUpstream, House, decoded, house

TASKS: Final = 10
ENDPOINT: Final = {"agent": {"discovery": "search"}}
_LIVE: Final = next(source for source in SOURCES if source.name == "LiveMCPBench")


def definitions(clones: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """The tools of each server, as it lists them."""
    clone = next(clone for clone in clones if (clone / "HEAD").exists() and _LIVE.read([clone]) is not None)
    show = ["git", "-C", str(clone), "show", f"{_LIVE.commit}:tools/LiveMCPTool/tools.json"]
    entries = json.loads(subprocess.run(show, capture_output=True, check=True).stdout)
    return {f"s{number}": found for number, entry in enumerate(entries) if (found := _tools(entry))}


def _tools(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [tool for offered in entry["tools"].values() for tool in offered["tools"]]


async def measured(servers: Mapping[str, Sequence[object]], tasks: Sequence[str]) -> list[tuple[str, int]]:
    """Bytes that the model reads, by what they are for."""
    upstreams = []
    for name, tools in servers.items():
        upstream = FakeUpstream(name)
        upstream.lists[Kind.TOOLS] = tools
        upstreams.append(upstream)
    async with house(*upstreams, endpoints=ENDPOINT) as gateway:
        await gateway.ready()
        listed, searched = await size(gateway, "", "tools/list"), await size(gateway, "/agent", "tools/list")
        found = described = 0
        for task in tasks:
            answer = await gateway.call(
                "tools/call", endpoint="/agent", version=LATEST, name="find_tools", arguments={"query": task}
            )
            assert isinstance(answer, Complete)
            found += size_of(answer.result)
            best = str(decoded(answer)["content"]).partition("'text': '")[2].partition("(")[0]
            described += await size(gateway, "/agent", "tools/call", name="describe_tools", arguments={"names": [best]})
        return [("every tool listed", listed), ("five tools listed", searched),
                (f"{len(tasks)} searches", found), (f"{len(tasks)} descriptions", described)]  # fmt: skip


async def size(gateway: House, endpoint: str, method: str, **params: object) -> int:
    answer = await gateway.call(method, endpoint=endpoint, version=LATEST, **params)  # type: ignore[arg-type]  # params of the call
    assert isinstance(answer, Complete)
    return size_of(answer.result)


def table(rows: Sequence[tuple[str, int]], tools: int, servers: int) -> list[str]:
    (_, before), *after = rows
    total = sum(size for _, size in after)
    return [
        f"| {tools} tools of {servers} servers | bytes | tokens (bytes / {TOKEN}) |",
        "|---|---:|---:|",
        f"| without search: every tool listed | {before:,} | {before // TOKEN:,} |",
        f"| with search: five tools listed | {after[0][1]:,} | {after[0][1] // TOKEN:,} |",
        *(f"| with search: {what} | {size:,} | {size // TOKEN:,} |" for what, size in after[1:]),
        f"| with search: the whole session | {total:,} | {total // TOKEN:,} |",
    ]


if __name__ == "__main__":
    clones = [Path(argument) for argument in sys.argv[1:]]
    offered = definitions(clones)
    collection = _LIVE.read(clones)
    assert collection is not None
    tasks = [query.text for query in collection.queries[:TASKS]]
    rows = anyio.run(measured, offered, tasks)
    print("\n".join(table(rows, sum(map(len, offered.values())), len(offered))))
