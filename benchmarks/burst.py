"""What a burst of changes costs: `python -m benchmarks.burst [CLIENTS]` prints what became of it.

The official SDK's clients, half of each era, watch one resource of a real server that changes it a thousand times, is
killed in the middle, and goes on when it is back. `tests.system.test_subscriptions` holds that nobody misses the end.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from benchmarks.usage import memory
from mcproxy.protocol.eras import Era
from tests.fakes.clients.crowd import crowd
from tests.system.running import configuration, gateway
from tests.system.test_subscriptions import NUMBER, count, counter, measured


async def burst(folder: Path, clients: int, era: str) -> list[str]:
    """`era` is the upstream's. The cells of one row."""
    async with gateway(folder, configuration({"counter": counter(folder, era)})) as running:
        alone = memory(running.process.pid).proportional
        async with crowd(running.server("counter"), NUMBER, [Era.HANDSHAKE, Era.STATELESS] * (clients // 2)) as it:
            each = (memory(running.process.pid).proportional - alone) / clients
            await count(running, "count_and_die", until=500)
            died = time.monotonic()
            await it.all_have(501)
            back = time.monotonic() - died
            await count(running, "count", until=1000)
            ended = time.monotonic()
            await it.all_have(1000)
            last = time.monotonic() - ended
            came = await measured(running, "mcproxy_upstream_notifications_total", kind="updated")
            signalled = await measured(running, "mcproxy_notifications_total", kind="updated")
        told = sum(member.told for member in it.members)
        reads = sum(len(member.values) for member in it.members)
    figures = (came, signalled, told, 1 - told / signalled, reads)
    shown = "{:,.0f} | {:,.0f} | {:,.0f} | {:.1%} | {:,.0f}".format(*figures)
    return [era, shown, f"{back:.2f} s", f"{last:.2f} s", f"{each / 1024:.0f} KiB"]


async def main() -> None:
    clients = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print("| upstream | came | signalled | told | coalesced | reads | kill to all | last to all | a client |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for era in ("legacy", "modern"):
        with TemporaryDirectory() as folder:
            print("|", " | ".join(await burst(Path(folder), clients, era)), "|", flush=True)


if __name__ == "__main__":
    anyio.run(main)
