"""What calls take while Redis is slow, hangs or is gone: `python -m benchmarks.cluster_redis [CALLS]`.

Two replicas, which count a limit and a daily quota together; one handshake session, called at both in turns. Each state
of Redis comes between two stretches in which it answers, so that all are of the same minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from anyio.from_thread import BlockingPortal, start_blocking_portal

from benchmarks.cluster_hop import WARM_UP, Session, percentile, replicas
from tests.cluster.conftest import RedisProxy

CALLS: Final = 1000
"""In each state, in each round."""
ROUNDS: Final = 3
DELAY: Final = 0.2
"""Seconds that each piece of an answer of a slow Redis takes, and each of a question."""
GOAL: Final = 1.0
"""The most that p99 may grow by, in milliseconds."""
LIMITS: Final = {"rules": {"all": {"per": ["principal"], "rate": "100000/s", "burst": 100_000, "daily": 10_000_000}}}
ANSWERS: Final = "answers"


class States:
    """Puts Redis in one state after another."""

    def __init__(self, portal: BlockingPortal, proxy: RedisProxy) -> None:
        self._portal = portal
        self._proxy = proxy

    @contextmanager
    def slow(self) -> Iterator[None]:
        self._proxy.delay = DELAY
        yield
        self._proxy.delay = 0

    @contextmanager
    def hanging(self) -> Iterator[None]:
        self._portal.call(self._proxy.hold)
        yield
        self._portal.call(self._proxy.release)

    @contextmanager
    def gone(self) -> Iterator[None]:
        self._portal.call(self._proxy.refuse)
        yield
        self._portal.call(self._proxy.admit)


def measured(folder: Path, calls: int) -> dict[str, list[float]]:
    """Milliseconds of each call, by the state of Redis."""
    proxy = RedisProxy(0)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(proxy.serving()) as url:

        def through(port: int) -> str:
            proxy.target = port
            return url

        with replicas(folder, through, {"limits": LIMITS}) as ports:
            session = Session(ports)
            stretch(session, WARM_UP)
            states = States(portal, proxy)
            taken: dict[str, list[float]] = {ANSWERS: []}
            for _ in range(ROUNDS):
                for name, state in (("is slow", states.slow), ("hangs", states.hanging), ("is gone", states.gone)):
                    taken[ANSWERS] += stretch(session, calls // 3)
                    with state():
                        taken.setdefault(name, []).extend(stretch(session, calls))
            return taken


def stretch(session: Session, calls: int) -> list[float]:
    return [1000 * session.call(number % 2) for number in range(calls)]


def main(calls: int) -> None:
    with TemporaryDirectory() as folder:
        taken = measured(Path(folder), calls)
    usual = percentile(taken[ANSWERS], 0.99)
    print("| Redis | calls | p50, ms | p99, ms | longest, ms | p99 added | goal |")
    print("| :-- | --: | --: | --: | --: | --: | --: |")
    for name, values in taken.items():
        p50, p99, longest = (percentile(values, part) for part in (0.5, 0.99, 1))
        print(f"| {name} | {len(values)} | {p50:.2f} | {p99:.2f} | {longest:.1f} | {p99 - usual:+.2f} | {GOAL} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else CALLS)
