"""How late the event loop is, and how much it has to do: what an operator looks at when everybody waits and nothing
seems to be wrong.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from mcproxy.telemetry.metrics import Metrics

INTERVAL: Final = 0.25
"""Seconds between two beats."""

KEPT: Final = 60
"""Beats of which the latest counts: 15 s, so that the usual scrape misses none."""


async def measure_loop_lag(
    metrics: Metrics,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Publishes by how much the latest of the last KEPT beats was late, and the number of tasks, until cancelled."""
    loop = asyncio.get_running_loop()
    metrics.tasks.set_function(lambda: len(asyncio.all_tasks(loop)))
    late: deque[float] = deque(maxlen=KEPT)
    while True:
        began = clock()
        await sleep(INTERVAL)
        late.append(max(0.0, clock() - began - INTERVAL))
        metrics.event_loop_lag.set(max(late))
