"""What is asked of the proxies, and by whom: one row for each line of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from benchmarks.answers import KEPT, MARK, PAGE_BYTES
from benchmarks.asking import NUMBER, Ask
from benchmarks.proxies import DIRECT, MCPROXY, NGINX, NOTHING, Proxy
from benchmarks.variants import GUARDED, PLAIN, POLICIES, RULES
from mcproxy.protocol.eras import Era

HTTP: Final = (MCPROXY, NOTHING, NGINX, DIRECT)
PEERS: Final = ("fastmcp", "mcp-proxy (PyPI)", "mcp-proxy (npm)", "supergateway")
NAMES: Final[Mapping[Era, str]] = {Era.HANDSHAKE: "handshake", Era.STATELESS: "stateless"}

TRACE: Final = {"traceparent": f"00-{NUMBER:0>32}-{NUMBER:0>16}-01"}
"""Another in each request, as of a client that is traced."""

Asking = Callable[[str, str], Ask]
"""Of what comes before a tool's name, and before a URI."""


class Section(Enum):
    """Where a row belongs in the report."""

    CALLS = "calls"
    PEERS = "peers"
    UPSTREAMS = "upstreams"
    TOOLS = "tools"
    SESSIONS = "sessions"
    POLICIES = "policies"


CURVES: Final = (Section.UPSTREAMS, Section.TOOLS, Section.SESSIONS, Section.POLICIES)


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    ask: Asking
    connections: int = 64
    era: Era = Era.HANDSHAKE
    sessions: int = 1
    """Handshake sessions that the requests take in turn."""
    upstreams: int = 1
    tools: int = 1
    stdio: bool = False
    variant: str = PLAIN
    crowd: int = 0
    """Sessions that only listen meanwhile."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Further header fields of each request; NUMBER may stand in them."""
    proxies: Sequence[str] = HTTP
    section: Section = Section.CALLS
    point: int = 0
    """Of a curve: how many there are of what grows."""


def call(size: int = 100, steps: int = 0) -> Asking:
    arguments = {"size": size, **({"steps": steps} if steps else {})}
    meta: dict[str, Any] = {"_meta": {"progressToken": NUMBER}} if steps else {}
    return lambda names, _: Ask("tools/call", {"name": f"{names}echo", "arguments": arguments, **meta}, MARK, size)


def read(uri: str) -> Asking:
    return lambda _, uris: Ask("resources/read", {"uri": f"{uris}{uri}"}, MARK, PAGE_BYTES)


def listing(tools: int) -> Asking:
    return lambda *_: Ask("tools/list", {}, MARK, 100 * tools)


def ask_of(workload: Workload, proxy: Proxy | None, number: int) -> Ask:
    """What is asked of a proxy, or of the upstream itself, about its upstream of that number."""
    return workload.ask(proxy.names(number), proxy.uris(number)) if proxy else workload.ask("", "")


def _both(name: str, ask: Asking, **more: Any) -> tuple[Workload, ...]:
    return tuple(Workload(f"{name}, {NAMES[era]}", ask, era=era, **more) for era in Era)


def _point(section: Section, number: int, **more: Any) -> Workload:
    name = f"growth, {section.value}: {number:,}"
    return Workload(name, call(), section=section, point=number, proxies=(MCPROXY, NOTHING), **more)


WORKLOADS: Final[Sequence[Workload]] = (
    *(
        workload
        for connections in (1, 16, 64, 256)
        for workload in _both(f"tools-call 100 B c={connections}", call(), connections=connections)
    ),
    Workload("tools-call 100 B c=64, a session each", call(), sessions=64),
    *_both("tools-call 100 B c=64, a trace each", call(), fields=TRACE),
    *_both("tools-call 64 KiB c=64", call(64 * 1024)),
    *_both("tools-call 1 MiB c=16", call(1024 * 1024), connections=16),
    *_both("tools-call 5 progress events c=64", call(steps=5)),
    *_both("read 4 KiB cold c=64", read(f"bench://fresh/{NUMBER}")),
    *_both("read 4 KiB cached c=64", read(f"{KEPT}page")),
    *_both("tools-list 300 tools c=64", listing(300), tools=300),
    Workload("tools-call 100 B c=64, guarded", call(), variant=GUARDED),
    Workload(
        "http upstream c=4",
        call(),
        connections=4,
        proxies=(MCPROXY, "fastmcp", "vmcp (ToolHive)"),
        section=Section.PEERS,
    ),
    Workload(
        "stdio upstream c=16",
        call(),
        connections=16,
        stdio=True,
        proxies=(MCPROXY, *PEERS),
        section=Section.PEERS,
    ),
    *(_point(Section.UPSTREAMS, number, upstreams=number) for number in (1, 10, 50)),
    *(_point(Section.TOOLS, number, tools=number) for number in (1, 300, 3000)),
    *(_point(Section.SESSIONS, number, crowd=number) for number in (10, 1000, 10_000)),
    *(_point(Section.POLICIES, number, variant=f"{POLICIES}-{number}") for number in RULES),
)

SPREAD: Final[Sequence[Workload]] = (
    Workload("tools-call 100 B c=64, 1,000 sessions", call(), sessions=1000),
    *_both("tools-call 100 B c=64, 50 upstreams", call(), upstreams=50),
)
"""Calls whose steps are counted, and not timed: of what a call costs more there, the rest is the processor's cache."""

TARGETS: Final = (
    "100 B c=1,",
    "100 B c=64",
    "1 MiB",
    "read 4 KiB",
    "http upstream",
    "growth, upstreams: 1",
    "growth, upstreams: 50",
    "growth, sessions: 10",
)
"""Parts of the names of workloads that have a target (`docs/performance.md`)."""
