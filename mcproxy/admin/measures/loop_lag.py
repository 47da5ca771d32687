"""Measure how late the event loop runs its timers, and how many tasks it has: a busy loop slows every call."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from mcproxy.telemetry.metrics import Metrics

INTERVAL: Final = 0.25
"""Seconds between two measurements."""

KEPT: Final = 60
"""Measurements of which the largest is published: those of 15 s, the usual scrape interval."""


async def measure_loop_lag(
    metrics: Metrics,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Publishes the largest lateness of the last KEPT measurements, and the number of tasks, until cancelled."""
    loop = asyncio.get_running_loop()
    metrics.tasks.set_function(lambda: len(asyncio.all_tasks(loop)))
    late: deque[float] = deque(maxlen=KEPT)
    while True:
        began = clock()
        await sleep(INTERVAL)
        late.append(max(0.0, clock() - began - INTERVAL))
        metrics.event_loop_lag.set(max(late))
