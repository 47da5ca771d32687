"""The data that the status page shows, and the gateway as the page reads it; `pages` renders them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mcproxy.admin.entry_form import Field, fields
from mcproxy.admin.measures.charts import charts, sparkline
from mcproxy.admin.measures.statistics import CallCounts, Minute
from mcproxy.call.calls import Handler
from mcproxy.call.clients import Listener
from mcproxy.call.identity import Principal
from mcproxy.call.upstreams import SERVING, UpstreamStatus
from mcproxy.catalog.naming import RefusedEntry
from mcproxy.catalog.views.view import Shown, View
from mcproxy.protocol.jsonrpc import decode_object
from mcproxy.protocol.methods import Kind
from mcproxy.settings import Settings
from mcproxy.telemetry.metrics import Metrics

NOUNS = {
    Kind.TOOLS: "tool",
    Kind.RESOURCES: "resource",
    Kind.TEMPLATES: "template",
    Kind.PROMPTS: "prompt",
    Kind.SKILLS: "skill",
}


class WaitingCall(Protocol):
    """A call that waits for an operator."""

    @property
    def id(self) -> str:
        """Opaque; names it in forms and links."""

    @property
    def principal(self) -> str:
        """The name of its caller."""

    @property
    def upstream(self) -> str:
        """The name of the upstream that would get it."""

    @property
    def name(self) -> str:
        """The tool, by the name that its caller knows."""

    @property
    def shown_arguments(self) -> str:
        """Its arguments as legible text, cut to a length for the page."""

    @property
    def expires(self) -> float:
        """A Unix time in seconds."""


class GatewayView(Protocol):
    """The gateway as the pages read it, now."""

    @property
    def settings(self) -> Settings:
        """Those in force."""

    @property
    def metrics(self) -> Metrics:
        """Their sums are what the pages have as figures."""

    @property
    def handler(self) -> Handler:
        """The whole pipeline: calls that are tried out pass it as any other."""

    def statuses(self) -> list[UpstreamStatus]:
        """The state of every enabled upstream."""

    def catalogue(self, endpoint: str = "") -> View:
        """All that an endpoint shows, whoever asks; the default is the endpoint of all upstreams."""

    def listeners(self) -> Sequence[Listener]:
        """The clients that are connected between calls."""

    def unapproved(self) -> Sequence[RefusedEntry]:
        """Definitions that await approval."""

    def replicas(self) -> Sequence[ReplicaRow]:
        """The replicas of the cluster, the one that answers first; none where there is no cluster."""

    def waiting_calls(self) -> Sequence[WaitingCall]:
        """Calls that wait for an operator's approval."""

    def decide(self, id: str, operator: Principal | None, *, approve: bool) -> str | None:
        """Decides such a call. Returns a sentence on why the decision does not count; None where it counts.

        `operator` is None for a visitor that came by the link of the call.
        """


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One replica of the cluster. `differs` says in what it differs from the one that answers."""

    label: str
    address: str
    version: str
    state: str
    differs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ReloadBanner:
    """What every page says of a reload that was refused: since when, and its problems, of which `further` are left
    out."""

    since: float
    problems: Sequence[str]
    further: int


@dataclass(frozen=True, slots=True)
class UpstreamCard:
    """One upstream in the fleet's table."""

    status: UpstreamStatus
    recent: CallCounts
    total: CallCounts
    offers: dict[str, int]
    minutes: Sequence[Minute]

    @property
    def sparkline(self) -> str:
        """The calls of the last hour as SVG, safe in a page."""
        return sparkline(self.minutes, self.status.name)

    @property
    def charts(self) -> str:
        """The last hour as pictures and a table, safe in a page."""
        return charts(self.minutes, self.status.name)

    @property
    def state(self) -> str:
        """The state in words: `backing off`."""
        return self.status.state.value.replace("_", " ")

    @property
    def is_ready(self) -> bool:
        """Whether calls are answered: an idle server is started by the next one."""
        return self.status.state in SERVING

    @property
    def version(self) -> str:
        """The protocol revision that the upstream speaks; empty where it is not known yet."""
        return self.status.identity.version if self.status.identity else ""


@dataclass(frozen=True, slots=True)
class CatalogueRow:
    """One tool, resource, template, prompt or skill of the catalogue."""

    kind: Kind
    shown: Shown

    @property
    def entry(self) -> dict[str, Any]:
        """All of it, decoded anew: a catalogue that is decoded whole takes ten times its size."""
        return decode_object(self.shown.entry)

    @property
    def noun(self) -> str:
        """Its kind in the singular, as in NOUNS."""
        return NOUNS[self.kind]

    @property
    def summary(self) -> str:
        """The first line of its description, else of its title: at most 300 characters, perhaps none."""
        entry = self.entry
        text = str(_description(entry) or entry.get("title") or "").strip()
        return text.splitlines()[0][:300] if text else ""

    def mentions(self, words: Iterable[str]) -> bool:
        """Whether its names, title and description together hold each of the words, which are in lower case."""
        entry = self.entry
        text = f"{self.shown.key} {self.shown.own} {entry.get('title', '')} {_description(entry)}"
        return all(word in text.lower() for word in words)


@dataclass(frozen=True, slots=True)
class CatalogueGroup:
    """The entries of one upstream that were found: `count` in all, of which the page shows `items`."""

    upstream: str
    count: int
    items: Sequence[CatalogueRow]
    has_page: bool
    """Whether it is a server of the configuration: the gateway has entries of its own."""


@dataclass(frozen=True, slots=True)
class Question:
    """A form that a server asks to be filled in, in the middle of a call."""

    key: str
    message: str
    schema: Mapping[str, Any]

    @property
    def fields(self) -> list[Field]:
        """The fields of the form, by its schema."""
        return fields(self.schema)


@dataclass(frozen=True, slots=True)
class TryResult:
    """The result of a call made from the page, or the questions that it waits for."""

    is_error: bool
    text: str
    messages: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    """`data:` URLs."""
    questions: tuple[Question, ...] = ()
    state: str | None = None
    """What the next request brings back, where the call goes on."""

    @property
    def goes_on(self) -> bool:
        """Whether the call waits for a further round of input."""
        return bool(self.questions) or self.state is not None

    @property
    def asked(self) -> str:
        """The schemas of the questions as JSON, by which the answers are converted."""
        return json.dumps({question.key: question.schema for question in self.questions})


def _description(entry: Mapping[str, object]) -> object:
    """That of a skill stands in its frontmatter."""
    frontmatter = entry.get("frontmatter")
    described = frontmatter if isinstance(frontmatter, dict) else entry
    return described.get("description", "")
