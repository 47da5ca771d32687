"""The account of a chaos run: every call by its marker, its outcome, and what broke an invariant."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

MAX_FINDINGS: Final = 200
"""Findings that are kept as sentences; all are counted."""


class Invariant(Enum):
    """What must hold, whatever happens to upstreams and connections."""

    ANSWERED = "each call is answered, with a result or an error"
    PROMPT = "no call waits longer than the longest time-out"
    ONCE = "no tool runs twice for one call"
    DELIVERED = "answers, reports, log messages and questions reach the caller that they are for"
    UNDISTURBED = "calls of an upstream to which nothing happens succeed"
    REVOKED = "a revoked key opens nothing, and its streams end"
    RECOVERED = "each upstream answers again once nothing happens to it"
    TOLD = "changes of resources and lists reach each client that watches them"
    RELEASED = "open files, tasks and processes are given back"
    MEMORY = "memory does not grow"
    LOG = "nothing in the log is an error of the gateway's own"


@dataclass(eq=False, slots=True)
class MarkedCall:
    marker: str
    principal: str
    client: str
    upstream: str
    tool: str
    began: float


@dataclass
class Ledger:
    clock: Callable[[], float]
    counts: Counter[str] = field(default_factory=Counter)
    broken: Counter[Invariant] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    running: dict[str, MarkedCall] = field(default_factory=dict)
    succeeded: set[str] = field(default_factory=set)
    """Markers of calls that returned a result, since the journals were last read."""
    revoked: dict[str, float] = field(default_factory=dict)
    """Since when the key of a principal is revoked."""
    _serial: Counter[str] = field(default_factory=Counter)
    _over: dict[str, float] = field(default_factory=lambda: defaultdict(lambda: -math.inf))
    """When an upstream's or a principal's last disturbance was over; infinite while it lasts."""
    _executed: Counter[str] = field(default_factory=Counter)
    _offsets: dict[Path, int] = field(default_factory=lambda: defaultdict(int))

    def found(self, invariant: Invariant, sentence: str) -> None:
        self.broken[invariant] += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(f"[{self.clock():.1f}] {invariant.name}: {sentence}")

    def disturb(self, *targets: str) -> None:
        for target in targets:
            self._over[target] = math.inf

    def settle(self, *targets: str, seconds: float) -> None:
        for target in targets:
            self._over[target] = self.clock() + seconds

    def is_disturbed(self, target: str, since: float | None = None) -> bool:
        """Whether something happens to it, or has since a time."""
        return self._over[target] >= (self.clock() if since is None else since)

    def begin(self, principal: str, client: str, upstream: str, tool: str) -> MarkedCall:
        self._serial[client] += 1
        marker = f"{client}.{self._serial[client]}"
        call = self.running[marker] = MarkedCall(marker, principal, client, upstream, tool, self.clock())
        self.counts["calls"] += 1
        return call

    def end(self, call: MarkedCall, outcome: str) -> None:
        """`outcome` is a plural by which such ends are counted."""
        del self.running[call.marker]
        self.counts[outcome] += 1

    def succeed(self, call: MarkedCall, text: str, expected: str) -> None:
        self.end(call, "results")
        since = self.revoked.get(call.principal)
        if since is not None and call.began > since:
            self.found(Invariant.REVOKED, f"{call} succeeded though the key was revoked at {since:.1f}")
        if text != expected:
            self.found(Invariant.DELIVERED, f"{call} got {text[:200]!r}")
        if call.tool != "read":
            self.succeeded.add(call.marker)

    def fail(self, call: MarkedCall, error: str) -> None:
        self.end(call, "errors")
        if not self.is_disturbed(call.upstream, call.began) and not self.is_disturbed(call.principal, call.began):
            self.found(Invariant.UNDISTURBED, f"{call} failed: {error[:300]}")

    def read_journals(self, journals: Iterable[Path]) -> None:
        """To be called when no call runs: what succeeded must have been executed, and all that was only once."""
        for journal in journals:
            if not journal.exists():
                continue
            with journal.open() as lines:
                lines.seek(self._offsets[journal])
                for line in lines:
                    kind, _, marker = line.rstrip("\n").partition(" ")
                    if kind == "call":
                        self._executed[marker] += 1
                self._offsets[journal] = lines.tell()
        for marker, times in self._executed.items():
            if times > 1:
                self.found(Invariant.ONCE, f"{marker} ran {times} times")
        self.counts["tools run"] += len(self._executed)
        for marker in self.succeeded - self._executed.keys():
            self.found(Invariant.DELIVERED, f"{marker} has a result, and never ran")
        self.succeeded.clear()
        self._executed.clear()
