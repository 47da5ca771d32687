"""Arranges what each page of the status page shows (of `page_values`), and renders its HTML. Sends nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from mcproxy import __version__
from mcproxy.access.audit.usage import COLUMNS, UsageReport, never_called
from mcproxy.admin.entry_form import Field, fields, prompt_fields, template_fields
from mcproxy.admin.masking import masked_settings
from mcproxy.admin.measures.audit_usage import NoUsage
from mcproxy.admin.measures.charts import charts, duration_text
from mcproxy.admin.measures.graph import ClientNode, ServerNode, graph
from mcproxy.admin.measures.statistics import FLEET, CallCounts, CallStatistics
from mcproxy.admin.page_values import (
    NOUNS,
    CatalogueGroup,
    CatalogueRow,
    GatewayView,
    ReloadBanner,
    TryResult,
    UpstreamCard,
    WaitingCall,
)
from mcproxy.call.identity import Caller
from mcproxy.configuration.problems import RefusedReload
from mcproxy.protocol.jsonrpc import decode_object
from mcproxy.protocol.methods import Kind
from mcproxy.telemetry.logs import masking, shortened

MAX_FOUND = 500
"""Entries of the catalogue on one page; a search finds further ones."""

MAX_PROBLEMS = 20
"""Problems of a refused configuration in the banner."""

MAX_ARGUMENTS = 200_000
"""Characters of the arguments of waiting calls on one page; where they are reached, later calls are named alone."""

MAX_USAGE_ROWS = 100
"""Rows of usage on one page, and tools that were not called."""

WINDOW_TEXTS = {"1d": "a day ago", "7d": "7 days ago", "30d": "30 days ago", "all": "the log begins"}
"""The times that usage is shown for, in words; the keys of WINDOWS."""


@dataclass(slots=True)
class Pages:
    """Each method renders one page. `token` is put into forms, against cross-site requests."""

    gateway: GatewayView
    figures: CallStatistics
    secrets: Callable[[], Collection[str]]
    """Secrets of the configuration in force, masked on every page."""
    refused_reload: Callable[[], RefusedReload | None]
    """The reload that was refused; None where the latest was applied."""
    token: str
    _templates: Environment = field(init=False)

    def __post_init__(self) -> None:
        loader = PackageLoader("mcproxy.admin")
        self._templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
        self._templates.filters |= {
            "seconds": duration_text,
            "bytes": _bytes,
            "share": _share,
            "client": _client,
            "moment": _moment,
        }
        self._templates.filters |= {"segment": _segment, "grouped": _grouped}

    def fleet(self) -> str:
        """The page of all upstreams, those that are not ready first."""
        cards = sorted(self._cards(), key=lambda card: card.is_ready)
        ready, replicas = sum(card.is_ready for card in cards), self.gateway.replicas()
        drawn = charts(self.figures.minutes()[FLEET], "All servers")
        return self._page("fleet", cards=cards, ready=ready, now=self._now(), replicas=replicas, charts=drawn)

    def upstream(self, name: str) -> str | None:
        """The page of one upstream; None if it does not exist."""
        card = next((card for card in self._cards() if card.status.name == name), None)
        if card is None:
            return None
        view, metrics = self.gateway.catalogue(), self.gateway.metrics
        return self._page(
            "upstream",
            token=self.token,
            card=card,
            items=[item for item in self._items() if item.shown.upstream == name],
            renamed=[one for one in view.renamed if one.upstream == name],
            refused=[one for one in view.refused if one.upstream == name],
            outcomes=self.figures.by(metrics.requests, "outcome", upstream=name),
            cache=self._cache(name),
            subscriptions=self.figures.by(metrics.subscriptions, "side", upstream=name),
        )

    def catalogue(self, query: str, kind: str) -> str:
        """The entries with every word of `query`; `kind` is a value of NOUNS, or empty for entries of any."""
        words = query.lower().split()
        found = [item for item in self._items() if (not kind or item.noun == kind) and item.mentions(words)]
        view = self.gateway.catalogue()
        return self._page(
            "catalogue",
            query=query,
            kind=kind,
            nouns=list(NOUNS.values()),
            groups=self._grouped(found),
            count=len(found),
            limit=MAX_FOUND,
            renamed=view.renamed,
            refused=view.refused,
        )

    def entry(
        self, noun: str, key: str, *, filled: dict[str, str] | None = None, answer: TryResult | None = None
    ) -> str | None:
        """The page of one entry, with the form to try it; None if it does not exist."""
        item = self.find(noun, key)
        if item is None:
            return None
        return self._page(
            "entry",
            item=item,
            has_page=any(status.name == item.shown.upstream for status in self.gateway.statuses()),
            fields=self._fields(item),
            can_be_tried=item.kind is not Kind.SKILLS,
            filled=filled or {},
            answer=answer,
            definition=json.dumps(item.entry, indent=2, ensure_ascii=False),
            token=self.token,
        )

    def live(self) -> str:
        """The page that follows calls and events; the feed itself is a stream of its own."""
        return self._page("live")

    def sessions(self) -> str:
        """The clients that are connected now, and what they hold: sessions, streams, subscriptions, parked calls."""
        metrics = self.gateway.metrics
        callers = [listener.caller for listener in self.gateway.listeners()]
        return self._page(
            "sessions",
            callers=callers,
            graph=self._graph(callers),
            sessions=self.figures.by(metrics.sessions, "transport"),
            streams=self.figures.by(metrics.streams, "transport"),
            subscriptions=self.figures.by(metrics.subscriptions, "upstream", side="clients"),
            parked=self.figures.gauge(metrics.parked),
        )

    def configuration(self) -> str:
        """The configuration in force with its secrets masked, and the definitions that await approval."""
        return self._page(
            "configuration",
            text=masked_settings(self.gateway.settings, self.secrets()),
            unapproved=self.gateway.unapproved(),
        )

    def approvals(self, said: str | None = None) -> str:
        """The calls that wait for an operator; `said` is what came of the decision that was just made."""
        waiting = self.gateway.waiting_calls()
        shown = list(_first_calls(waiting))
        return self._page("approvals", waiting=shown, further=waiting[len(shown) :], token=self.token, said=said)

    def approval(self, id: str, said: str | None = None) -> str:
        """The page of one such call, for a visitor with its link.

        Its form needs no token, since the link is one, and it shows nothing of the configuration.
        """
        call = next((call for call in self.gateway.waiting_calls() if call.id == id), None)
        return self._page("approval", banner=None, call=call, token=None, said=said)

    def usage(self, found: UsageReport | NoUsage, by: Sequence[str], window: str) -> str:
        """Sums of the audit log, the rows with the most calls, and the tools that were not called."""
        shown = self._no_usage(found) if isinstance(found, NoUsage) else self._usage(found)
        return self._page("usage", columns=list(COLUMNS), by=by, windows=WINDOW_TEXTS, since=window, **shown)

    def _no_usage(self, found: NoUsage) -> dict[str, object]:
        return {"why": found.why}

    def _usage(self, found: UsageReport) -> dict[str, object]:
        tools = self.gateway.catalogue().lists[Kind.TOOLS]
        idle = never_called(found, ((shown.upstream, shown.own, len(shown.entry)) for shown in tools))
        return {
            "why": None,
            "total": found.total,
            "rows": found.most_used()[:MAX_USAGE_ROWS],
            "count": len(found.rows),
            "unreadable": found.unreadable,
            "idle": idle[:MAX_USAGE_ROWS],
            "idle_count": len(idle),
            "idle_bytes": sum(size for _, _, size in idle),
        }

    def missing(self) -> str:
        """The page for what does not exist."""
        return self._page("missing")

    def find(self, noun: str, key: str) -> CatalogueRow | None:
        """The entry of that noun with that name or URI, as clients see it; None if it does not exist."""
        return next((item for item in self._items() if item.noun == noun and item.shown.key == key), None)

    def _page(self, template: str, **values: object) -> str:
        return self._templates.get_template(f"{template}.html").render(
            page=template,
            name=self.gateway.settings.proxy.name,
            version=__version__,
            **{"banner": self._banner(), **values},
        )

    def _banner(self) -> ReloadBanner | None:
        refused = self.refused_reload()
        if refused is None:
            return None
        mask = masking(self.secrets())
        shown = tuple(shortened(mask(str(problem))) for problem in refused.problems[:MAX_PROBLEMS])
        return ReloadBanner(refused.since, shown, len(refused.problems) - len(shown))

    def _now(self) -> dict[str, float]:
        metrics = self.gateway.metrics
        return {
            "in_flight": self.figures.gauge(metrics.in_flight),
            "sessions": self.figures.gauge(metrics.sessions),
            "lag": self.figures.gauge(metrics.event_loop_lag),
        }

    def _graph(self, callers: Iterable[Caller]) -> str:
        """The clients, by name, and the servers of the moment as a picture."""
        clients = Counter(_client(caller.info) for caller in callers)
        servers = [
            ServerNode(card.status.name, card.state, card.is_ready, int(card.recent.calls)) for card in self._cards()
        ]
        return graph([ClientNode(name, count) for name, count in clients.items()], servers)

    def _cards(self) -> list[UpstreamCard]:
        recent, total, view = self.figures.recent(), self.figures.total(), self.gateway.catalogue()
        minutes = self.figures.minutes()
        offers: dict[str, dict[str, int]] = {}
        for kind, entries in view.lists.items():
            for shown in entries:
                counts = offers.setdefault(shown.upstream, {})
                counts[NOUNS[kind]] = counts.get(NOUNS[kind], 0) + 1
        return [
            UpstreamCard(
                status,
                recent.get(status.name, CallCounts()),
                total.get(status.name, CallCounts()),
                offers.get(status.name, {}),
                minutes.get(status.name, ()),
            )
            for status in self.gateway.statuses()
        ]

    def _cache(self, name: str) -> dict[str, float]:
        metrics = self.gateway.metrics
        return {
            **self.figures.by(metrics.cache_reads, "answer", upstream=name),
            "entries": self.figures.gauge(metrics.cache_entries, upstream=name),
            "bytes": self.figures.gauge(metrics.cache_bytes, upstream=name),
        }

    def _items(self) -> list[CatalogueRow]:
        view = self.gateway.catalogue()
        return [CatalogueRow(kind, shown) for kind in Kind for shown in view.lists[kind]]

    def _grouped(self, found: Iterable[CatalogueRow]) -> list[CatalogueGroup]:
        """By upstream, in the order of the configuration; MAX_FOUND entries are shown."""
        servers = [status.name for status in self.gateway.statuses()]
        by_upstream: dict[str, list[CatalogueRow]] = {name: [] for name in servers}
        for item in found:
            by_upstream.setdefault(item.shown.upstream, []).append(item)
        groups, left = list[CatalogueGroup](), MAX_FOUND
        for name, items in by_upstream.items():
            if items:
                groups.append(CatalogueGroup(name, len(items), items[:left], name in servers))
                left -= len(groups[-1].items)
        return groups

    def _fields(self, item: CatalogueRow) -> list[Field]:
        match item.kind:
            case Kind.PROMPTS:
                return prompt_fields(item.entry.get("arguments"))
            case Kind.TEMPLATES:
                return template_fields(item.shown.key)
            case _:
                schema = item.entry.get("inputSchema")
                return fields(schema) if isinstance(schema, dict) else []


def decided(failed: str | None) -> str:
    """What a person is told of a decision; `failed` is why it does not count."""
    return "Decided." if failed is None else f"Not decided: {failed}."


def _first_calls(waiting: Iterable[WaitingCall]) -> Iterator[WaitingCall]:
    """The calls whose arguments one page has room for."""
    room = MAX_ARGUMENTS
    for call in waiting:
        yield call
        room -= len(call.shown_arguments)
        if room <= 0:
            return


def _client(info: bytes | None) -> str:
    """Name and version of a client, from its `clientInfo`."""
    found = decode_object(info) if info else {}
    return f"{found.get('name', '')} {found.get('version', '')}".strip()[:100] or "–"


def _segment(text: str) -> str:
    """A name as one segment of a path: it may hold a slash."""
    return quote(text, safe="")


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(sep=" ", timespec="seconds")


def _grouped(value: int) -> str:
    """A whole number in groups of three digits, between narrow spaces that no line breaks at."""
    return f"{value:,}".replace(",", "\u202f")


def _bytes(value: float) -> str:
    return (
        f"{value:.0f} B" if value < 1024 else f"{value / 1024:.0f} KiB" if value < 2**20 else f"{value / 2**20:.1f} MiB"
    )


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"
