"""The interface between the core and its features: what a feature may contribute, and what the core gives it.

Each feature lives in one folder below `mcproxy.features` and has one line in the list there. The core imports this
module, but never a feature.
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
    """The position of a stage on a call's way from the client to the server.

    Stages at the same place follow the order of the list of features.
    """

    CLIENT = 0
    """Outermost: sees the call as the client sent it, and its final outcome."""
    LINKS = 10
    """Makes sure that the caller's own links and view exist."""
    REWRITE = 20
    """May replace the call with another, which all later stages see."""
    OBSERVE = 30
    """Traces, logs, metrics and audit."""
    ERRORS = 40
    """Turns exceptions into outcomes."""
    ADMIT = 50
    """Refuses calls that exceed a limit or are ambiguous."""
    INPUT = 60
    """Bridges requests for input between the eras. Stages further in may ask the caller."""
    CHECK = 70
    """Refuses calls or changes their arguments."""
    APPROVE = 80
    """Waits for a person's decision about the call as it will be sent."""
    RESULT = 90
    """Changes results after the stages further in have let them pass."""
    JUDGE = 100
    """Inspects outcomes before any other stage on the client's side sees them."""
    ROUTE = 110
    """Finds the upstream, and translates between the caller's names and the upstream's."""
    CACHE = 120
    """On the server's side: may answer in place of the upstream."""
    VERIFY = 130
    """On the server's side: checks that the upstream still offers what was approved."""
    SEND = 140
    """On the server's side: innermost, sees exactly what is sent."""


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
    """`client`, or `server` for stages behind routing."""
    place: str
    feature: str
    about: str


class Core(msgspec.Struct, frozen=True, eq=False):
    """What the core gives to features. All but `settings` and `kept` stay the same objects across reloads."""

    settings: Settings
    catalogue: Catalogue
    fetcher: ListFetcher
    listeners: Listeners
    resolver: Resolver
    subject_of: SubjectResolver
    """Returns what a call is about, if its caller may use it."""
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
    """The folder for data that features keep between runs; None if nothing is kept."""
    kept: frozenset[str] = frozenset()
    """Names of the upstreams whose links survive the reload that creates the features."""


class Feature:
    """An optional capability. A method that is not overridden contributes nothing.

    A reload creates a new object from the new settings, and `adopt` moves into it what must survive. Calls that are
    already running finish in the stages of the old object.
    """

    name: ClassVar[str]
    section: ClassVar[type[Section] | None] = None
    """The class of its settings at `features.NAME`, for a feature from another package."""
    hears: ClassVar[frozenset[type]] = frozenset()
    """The types of upstream events, and of changes that upstreams announce, that `on_event` receives."""

    def __init__(self, core: Core) -> None:
        """Reads its settings from `core.settings`. Opens no connections."""

    def adopt(self, previous: Self) -> None:
        """Takes over what must survive a reload. Called before any other method. Must not block."""

    def stages(self) -> Iterable[Placed]:
        """Returns its stages on the client's side of routing."""
        return ()

    def upstream_stages(self) -> Iterable[PlacedUpstream]:
        """Returns its stages on the server's side of routing."""
        return ()

    def answers(self) -> Mapping[str, Handler]:
        """Returns handlers for the protocol methods that it answers itself, by method name."""
        return {}

    def entries(self) -> Mapping[Subject, Handler]:
        """Returns handlers for calls about entries that the gateway itself adds to lists, by the kind of entry."""
        return {}

    def withholds(self, caller: Caller, upstream: str, tool: str, result: Raw) -> bool:
        """Returns whether a task's result may reach the caller only through a call that passes all stages."""
        return False

    def judges(self, upstream: str, tool: str) -> bool:
        """Returns whether it must judge what a server sends about a call of the tool before the caller sees it."""
        return False

    def screen(self, event: UpstreamEvent) -> UpstreamEvent | None:
        """Returns the event that the core and all features receive instead, or None to drop it. Must not block."""
        return event

    def on_event(self, event: UpstreamEvent) -> None:
        """Reacts to an upstream event of a type in `hears`, once the catalogue reflects it. Must not block."""

    def join(self, listener: Listener) -> None:
        """As `Audience.join`."""

    def leave(self, listener: Listener) -> None:
        """As `Audience.leave`."""

    def resources(self) -> Iterable[Retirable]:
        """Returns what it holds open.

        After a reload the core closes what no feature holds any more; when the gateway stops, it closes everything.
        """
        return ()

    async def run(self) -> None:
        """Does its background work until cancelled: when the gateway stops, or when a reload replaces the feature."""


class Listed(msgspec.Struct, frozen=True):
    """One line in the list of features."""

    name: str
    target: str
    """`MODULE:CLASS` below `mcproxy.features`, imported only if the feature is on."""
    when: Callable[[Settings], bool]
    """Returns whether the settings turn it on."""

    def load(self) -> Callable[[Core], Feature]:
        """Imports and returns its class. Raises ImportError if its package, or an extra that it needs, is missing."""
        module, _, attribute = self.target.partition(":")
        found: Callable[[Core], Feature] = getattr(import_module(f"mcproxy.features.{module}"), attribute)
        return found


ROUTING: Final = PipelineRow("client", "ROUTE", "core", "looks up the name in the caller's view; sends or answers")
