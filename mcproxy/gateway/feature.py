"""The seam between the core and its features: what a feature may contribute, and what the core gives it.

A feature lives in one folder below `mcproxy.features` and stands on one line of the list there. The core knows this
module and no feature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Final, Self

import msgspec
from msgspec import Raw

from mcproxy.access.audit.audit_log import AuditLog
from mcproxy.call.calls import Call, Handler, Stage
from mcproxy.call.clients import Listener
from mcproxy.call.identity import Caller
from mcproxy.call.upstreams import Upstream, UpstreamEvent
from mcproxy.concurrency.clock import Clock, Sleep
from mcproxy.concurrency.retirement import Retirable
from mcproxy.gateway.listings.fetcher import ListFetcher
from mcproxy.gateway.listings.listeners import Listeners
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.gateway.resolving.call_subjects import SubjectResolver
from mcproxy.gateway.resolving.targets import Resolver
from mcproxy.gateway.resolving.task_ids import TaskIds
from mcproxy.protocol.methods import Subject
from mcproxy.sealing import Sealer
from mcproxy.settings import Settings
from mcproxy.settings.section import Section
from mcproxy.telemetry.metrics import Metrics


class Place(IntEnum):
    """Where a stage stands on a call's way, from the client to the server.

    Two stages of one place stand in the order of the list of features.
    """

    CLIENT = 0
    """Outermost: sees the call as the client sent it, and its final outcome."""
    LINKS = 10
    """Makes sure that the caller's own links and view exist."""
    REWRITE = 20
    """May replace the call by another, which all later stages see."""
    OBSERVE = 30
    """Traces, logs, metrics and audit."""
    ERRORS = 40
    """Turns exceptions into outcomes."""
    ADMIT = 50
    """Refuses calls for which there is no room."""
    INPUT = 60
    """Bridges requests for input between the eras; what is further in may ask the caller."""
    CHECK = 70
    """Refuses calls or changes their arguments."""
    APPROVE = 80
    """Waits for a person's decision about the call as it will be sent."""
    RESULT = 90
    """Changes results that the stages further in have let pass."""
    JUDGE = 100
    """Inspects outcomes before anything else sees them."""
    ROUTE = 110
    """Finds the upstream, and translates between the caller's names and the upstream's."""
    CACHE = 120
    """On the server's side: answers in place of the upstream."""
    VERIFY = 130
    """On the server's side: checks that the upstream is what was approved."""
    SEND = 140
    """On the server's side: innermost, sees what is sent."""


class Placed(msgspec.Struct, frozen=True):
    """A stage on the client's side of routing. `about` says in a few words what it does."""

    place: Place
    about: str
    stage: Stage


UpstreamStage = Callable[[Upstream], Upstream]
"""Wraps an upstream: a stage on the server's side of routing."""


class PlacedUpstream(msgspec.Struct, frozen=True):
    """A stage on the server's side of routing."""

    place: Place
    about: str
    stage: UpstreamStage


class PipelineRow(msgspec.Struct, frozen=True):
    """One line of the printed pipeline."""

    side: str
    """`client`, or `server` for what stands behind routing."""
    place: str
    feature: str
    about: str


class Core(msgspec.Struct, frozen=True, eq=False):
    """What the core gives to features. Each object but `settings` stays the same across reloads."""

    settings: Settings
    catalogue: Catalogue
    fetcher: ListFetcher
    listeners: Listeners
    resolver: Resolver
    subject_of: SubjectResolver
    """What a call is about, as far as its caller may use it."""
    task_ids: TaskIds
    sealer: Sealer
    metrics: Metrics
    audit: AuditLog
    resumes: Callable[[Call], bool]
    """Whether a call is a retry that resumes a parked call."""
    sleep: Sleep
    now: Clock
    """Monotonic seconds."""
    state: Path | None = None
    """The folder for what features keep between runs; None if nothing is kept."""
    kept: frozenset[str] = frozenset()
    """Names of the upstreams whose links go on over the reload that makes the features."""


class Feature:
    """A capability that the core can do without. Each method contributes nothing unless overridden.

    A reload makes a new object from the new settings. `adopt` moves into it what must survive. Calls that run end in
    the stages of the old one.
    """

    name: ClassVar[str]
    section: ClassVar[type[Section] | None] = None
    """The shape of its settings at `features.NAME`, for a feature of another package."""
    hears: ClassVar[frozenset[type]] = frozenset()
    """The types of upstream events, and of the changes that upstreams announce, for `on_event`."""

    def __init__(self, core: Core) -> None:
        """Reads its settings from `core.settings`. Connects nowhere."""

    def adopt(self, previous: Self) -> None:
        """Takes over what must survive a reload. Never blocks. Called before any other method."""

    def stages(self) -> Iterable[Placed]:
        """Its stages on the client's side of routing."""
        return ()

    def upstream_stages(self) -> Iterable[PlacedUpstream]:
        """Its stages on the server's side of routing."""
        return ()

    def answers(self) -> Mapping[str, Handler]:
        """The methods that it answers itself, by name."""
        return {}

    def entries(self) -> Mapping[Subject, Handler]:
        """Answers about entries that the gateway itself adds to lists, by what they are."""
        return {}

    def withholds(self, caller: Caller, upstream: str, tool: str, result: Raw) -> bool:
        """Whether a task's result may reach the caller only through a call that passes all stages."""
        return False

    def judges(self, upstream: str, tool: str) -> bool:
        """Whether it must judge what a server writes about a call of a tool before the caller sees it."""
        return False

    def screen(self, event: UpstreamEvent) -> UpstreamEvent | None:
        """What the core and all features hear of an event; None if nothing. Never blocks."""
        return event

    def on_event(self, event: UpstreamEvent) -> None:
        """Reacts to an upstream event of a type in `hears`, after the catalogue took it in. Never blocks."""

    def join(self, listener: Listener) -> None:
        """As `Audience.join`."""

    def leave(self, listener: Listener) -> None:
        """As `Audience.leave`."""

    def resources(self) -> Iterable[Retirable]:
        """What it holds open. The core closes what no feature holds any more after a reload, and all at the end."""
        return ()

    async def run(self) -> None:
        """Its long-running work, until cancelled: at the end, or when a reload replaced it."""


class Listed(msgspec.Struct, frozen=True):
    """A line of the list of features."""

    name: str
    target: str
    """`MODULE:CLASS` below `mcproxy.features`, imported only if the feature is on."""
    when: Callable[[Settings], bool]
    """Whether the settings ask for it."""

    def load(self) -> Callable[[Core], Feature]:
        """What makes the feature. Raises ImportError if its package, or an extra that it needs, is missing."""
        module, _, attribute = self.target.partition(":")
        found: Callable[[Core], Feature] = getattr(import_module(f"mcproxy.features.{module}"), attribute)
        return found


ROUTING: Final = PipelineRow("client", "ROUTE", "core", "looks up the name in the caller's view; sends or answers")
