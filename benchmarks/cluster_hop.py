"""What a hop between replicas adds to a call: `python -m benchmarks.cluster_hop [CALLS]` prints a Markdown table.

Two replicas, a Redis, one upstream. Calls of 100 bytes in one handshake session go to its home and to the other
replica, in turns and one at a time, over connections that are kept; compared are latencies of the same minute.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Final

from benchmarks.running import running
from tests.ports import free_port

CALLS: Final = 4000
"""At each of the two replicas."""
WARM_UP: Final = 500
NOTHING: Final[Mapping[str, object]] = MappingProxyType({})
GOALS: Final = {"p50": 0.3, "p99": 1.0}
"""The most that a hop may add, in milliseconds."""
_HEADERS: Final = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2025-11-25",
}


class Session:
    """A handshake session, opened at the first replica."""

    def __init__(self, ports: list[int]) -> None:
        self.connections = [http.client.HTTPConnection("127.0.0.1", port) for port in ports]
        self.headers = dict(_HEADERS)
        info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        self.headers["Mcp-Session-Id"] = self._post(0, "initialize", info).headers["Mcp-Session-Id"]

    def call(self, at: int) -> float:
        """Seconds that a call took at a replica."""
        began = time.perf_counter()
        self._post(at, "tools/call", {"name": "up__echo", "arguments": {"text": "x" * 40}})
        return time.perf_counter() - began

    def _post(self, at: int, method: str, params: object) -> http.client.HTTPResponse:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        self.connections[at].request("POST", "/mcp", body, self.headers)
        response = self.connections[at].getresponse()
        answer = response.read()
        assert response.status == 200, answer
        assert b'"result"' in answer, answer
        return response


def directly(port: int) -> str:
    """The URL of a Redis at a port."""
    return f"redis://127.0.0.1:{port}/0"


@contextmanager
def replicas(
    folder: Path, url_of: Callable[[int], str] = directly, access: Mapping[str, object] = NOTHING
) -> Iterator[list[int]]:
    """The ports of two replicas that know each other, which reach the Redis at a port by `url_of`."""
    cores = frozenset(os.sched_getaffinity(0))
    redis, upstream = free_port(), free_port()
    with ExitStack() as stack:
        server = ["redis-server", "--port", f"{redis}", "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        stack.enter_context(running(server, cores, redis, folder / "redis.log"))
        command = [sys.executable, "-m", "benchmarks.upstream", f"{upstream}"]
        stack.enter_context(running(command, cores, upstream, folder / "upstream.log"))
        ports, url = [free_port(), free_port()], url_of(redis)
        for port in ports:
            file = folder / f"{port}.json"
            settings = {
                "mcpServers": {"up": {"url": f"http://127.0.0.1:{upstream}/mcp"}},
                "proxy": {"port": port, "secret": "the same on every replica"},
                "access": dict(access),
                "cluster": {"redis": url, "listen": "127.0.0.1:0", "member_ttl": "1s"},
            }
            file.write_text(json.dumps(settings))
            gateway = [sys.executable, "-m", "mcproxy", "serve", "--config", str(file)]
            stack.enter_context(running(gateway, cores, port, folder / f"{port}.log"))
        time.sleep(2)  # they find each other, and connect to the upstream
        yield ports


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[int(part * (len(values) - 1))]


def main(calls: int) -> None:
    with TemporaryDirectory() as folder, replicas(Path(folder)) as ports:
        session = Session(ports)
        for _ in range(WARM_UP):
            session.call(0), session.call(1)
        taken = [[], []] if calls else [[0.0], [0.0]]
        for _ in range(calls):
            for at, seconds in enumerate(taken):
                seconds.append(session.call(at))
    milliseconds = [[1000 * second for second in seconds] for seconds in taken]
    print("| | at its home | through another replica | added | goal |\n|---|---|---|---|---|")
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        home, other = (percentile(values, part) for values in milliseconds)
        print(f"| {name}, ms | {home:.2f} | {other:.2f} | {other - home:.2f} | {GOALS[name]} |")
    print(
        f"\n{calls} calls each, in turns; medians {median(milliseconds[0]):.2f} and {median(milliseconds[1]):.2f} ms."
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else CALLS)
