"""What the cache of reads is worth: `python -m benchmarks.cached_reads [--quick]` prints a Markdown table.

One gateway in front of one upstream. Reads that it keeps, reads that it may not keep, and reads of the upstream itself
take turns in the same run; what is compared are their ratios. Latencies are those that the load generator saw.
"""

from __future__ import annotations

import argparse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from benchmarks import asking, load
from benchmarks.answers import KEPT
from benchmarks.asking import NUMBER
from benchmarks.proxies import MCPROXY, PROXIES
from benchmarks.ratios import ratio
from benchmarks.rounds import available_cores, proxy_running, scene, upstream
from benchmarks.running import Cores, alone, split
from benchmarks.workloads import NAMES, Workload, read
from mcproxy.protocol.eras import Era

DIRECT: Final = "the upstream itself"
UNCACHED: Final = "the gateway, nothing kept"
CACHED: Final = "the gateway, one resource kept"
MANY_CACHED: Final = "the gateway, 1,000 resources kept"
FRESH: Final = f"bench://fresh/{NUMBER}"
CONNECTIONS: Final = 64
WARM_UP: Final = 2.0
"""Seconds of load before the first round; enough to keep everything."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Reads of one kind. `uris` are in the upstream's own names; the gateway puts `prefix` before them."""

    name: str
    uris: Sequence[str]
    through_gateway: bool = True


@dataclass(frozen=True, slots=True)
class Turn:
    loaded: load.Load
    answers: Mapping[str, float]
    """How often the gateway answered in each way: hit, miss, coalesced, stale."""

    @property
    def rate(self) -> float:
        """Reads per second."""
        return self.loaded.answers / self.loaded.seconds


SUBJECTS: Final = (
    Subject(DIRECT, [FRESH], through_gateway=False),
    Subject(UNCACHED, [FRESH]),
    Subject(CACHED, [f"{KEPT}page"]),
    Subject(MANY_CACHED, [f"{KEPT}page-{number}" for number in range(1000)]),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cached_reads", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    rounds, seconds = (3, 1.0) if parser.parse_args().quick else (7, 3.0)
    print("| | reads/s | of the upstream's | of those not kept | p50 ms | p99 ms | hits | failures |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for era in Era:
        for row in rows(era, measured(era, rounds, seconds)):
            print(row)


def measured(era: Era, rounds: int, seconds: float) -> dict[str, list[Turn]]:
    """The turns of each subject, one for each round. Raises load.BrokenLoad, running.NotStarted and TimeoutError."""
    cores = split(available_cores())
    turns: dict[str, list[Turn]] = {subject.name: [] for subject in SUBJECTS}
    with alone(), TemporaryDirectory() as folder, contenders(era, Path(folder), cores) as ports:
        plans = {subject.name: plan(subject, ports, era) for subject in SUBJECTS}
        for each in plans.values():
            load.run(each, WARM_UP, Path(folder), cores.others)
        for number in range(rounds):
            for subject in SUBJECTS if number % 2 == 0 else SUBJECTS[::-1]:
                turns[subject.name].append(turn(plans[subject.name], seconds, Path(folder), cores, ports.gateway))
    return turns


@dataclass(frozen=True, slots=True)
class Ports:
    upstream: int
    gateway: int


@contextmanager
def contenders(era: Era, folder: Path, cores: Cores) -> Iterator[Ports]:
    with upstream(1, folder, cores) as port:
        stage = scene(Workload("cached reads", read(FRESH), era=era), folder / MCPROXY, port, cores)
        with proxy_running(PROXIES[MCPROXY], stage, cores):
            yield Ports(port, stage.port)


def plan(subject: Subject, ports: Ports, era: Era) -> load.Plan:
    port = ports.gateway if subject.through_gateway else ports.upstream
    prefix = PROXIES[MCPROXY].uris(0) if subject.through_gateway else ""
    asks = [read(uri)("", prefix) for uri in subject.uris]
    session = asking.answered(port, asks[0], era)
    requests = [asking.post(ask, era, session).wire(port) for ask in asks]
    return load.Plan(port, requests, asks[0].mark, asks[0].at_least, CONNECTIONS)


def turn(plan: load.Plan, seconds: float, folder: Path, cores: Cores, gateway: int) -> Turn:
    before = answers(gateway)
    loaded = load.run(plan, seconds, folder, cores.others)
    after = answers(gateway)
    return Turn(loaded, {answer: after[answer] - before.get(answer, 0) for answer in after})


def answers(gateway: int) -> dict[str, float]:
    """How often the gateway answered a read in each way."""
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway}/metrics", timeout=10) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    counts: dict[str, float] = {}
    for sample in samples:
        if sample.name == "mcproxy_cache_reads_total":
            counts[sample.labels["answer"]] = counts.get(sample.labels["answer"], 0) + sample.value
    return counts


def rows(era: Era, turns: Mapping[str, Sequence[Turn]]) -> Iterator[str]:
    for name, own in turns.items():
        cells = [
            f"{name}, {NAMES[era]}",
            f"{median(each.rate for each in own):,.0f}",
            times(own, turns[DIRECT]),
            times(own, turns[UNCACHED]),
            f"{median(each.loaded.p50 for each in own) * 1000:.2f}",
            f"{median(each.loaded.p99 for each in own) * 1000:.2f}",
            hit_ratio(own),
            f"{sum(each.loaded.failures for each in own)}",
        ]
        yield f"| {' | '.join(cells)} |"


def times(own: Sequence[Turn], others: Sequence[Turn]) -> str:
    found = ratio([each.rate for each in own], [each.rate for each in others])
    return "-" if found is None else f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})"


def hit_ratio(own: Sequence[Turn]) -> str:
    hits = sum(each.answers.get("hit", 0) for each in own)
    total = sum(sum(each.answers.values()) for each in own)
    return f"{hits / total:.1%}" if total else "-"


if __name__ == "__main__":
    main()
