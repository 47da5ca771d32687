"""`mcproxy check --connect` and `mcproxy list upstreams`: connects to every upstream and reports on each."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from mcproxy.app import App, running
from mcproxy.call.upstreams import Connected, LinkState, UpstreamEvent, UpstreamStatus
from mcproxy.catalog.naming import SEPARATOR
from mcproxy.catalog.views.view import View
from mcproxy.cli.access.lock import definition_findings
from mcproxy.cli.checking import check_result, missing_files, print_warnings, unmatched
from mcproxy.cli.output import number_of, print_err, print_json, print_table
from mcproxy.cli.runtime import ExitCode
from mcproxy.configuration.loading import Configuration
from mcproxy.configuration.problems import Problem
from mcproxy.protocol.methods import Kind
from mcproxy.settings.endpoints import key_of

COLUMNS: Final = ("upstream", "state", "transport", "version", "offers", "latency", "names")


@dataclass(frozen=True, slots=True)
class UpstreamReport:
    """The result of connecting to one upstream. `latency` is seconds from the start to the connection."""

    name: str
    prefix: str
    """Precedes the names of its tools and prompts, with two underscores; none if empty."""
    ok: bool
    transport: str
    version: str | None
    era: str | None
    latency: float | None
    tools: int
    resources: int
    templates: int
    prompts: int
    error: str | None
    renamed: dict[str, str]
    """Exposed names that are not `{prefix}__{name}`, by the upstream's own names."""
    refused: dict[str, str]
    """Entries that are hidden from callers, with the reason."""
    skills: int = 0
    asks: bool = False
    """Whether it asked for input (sampling, elicitation, roots) on the connection that all callers share."""
    oddities: tuple[str, ...] = ()
    """Its accepted deviations from the specifications, each completing "the server ..."."""
    way: str = ""
    """How its URL was reached: directly, or through which proxy; and the authorities that are trusted for it."""
    findings: tuple[str, ...] = ()
    """What a person should look at in its definitions, each with where and why."""


def reports(
    statuses: Iterable[UpstreamStatus], view: View, latencies: Mapping[str, float], prefixes: Mapping[str, str]
) -> list[UpstreamReport]:
    """One report per upstream, from its state and from its entries in the catalogue."""
    statuses = [*statuses]
    ready = {status.name for status in statuses if status.state is LinkState.READY}
    # Of another there may be a tool of the gateway's own, by which one logs in.
    counts = Counter(
        (shown.upstream, kind) for kind, list_ in view.lists.items() for shown in list_ if shown.upstream in ready
    )
    return [
        UpstreamReport(
            name=status.name,
            prefix=prefixes.get(status.name, ""),
            ok=status.state is LinkState.READY,
            transport=status.transport,
            version=status.identity.version if status.identity else None,
            era=status.identity.era.value if status.identity else None,
            latency=latencies.get(status.name),
            tools=counts[status.name, Kind.TOOLS],
            resources=counts[status.name, Kind.RESOURCES],
            templates=counts[status.name, Kind.TEMPLATES],
            prompts=counts[status.name, Kind.PROMPTS],
            error=status.error,
            renamed={entry.name: entry.exposed for entry in view.renamed if entry.upstream == status.name},
            refused={entry.name: entry.why for entry in view.refused if entry.upstream == status.name},
            skills=counts[status.name, Kind.SKILLS],
            asks=status.asks,
            oddities=status.oddities,
            way=status.way,
        )
        for status in statuses
    ]


def report_row(report: UpstreamReport) -> tuple[str, ...]:
    """The cells of one upstream in the table of reports."""
    offers = {
        "tool": report.tools,
        "resource": report.resources + report.templates,
        "prompt": report.prompts,
        "skill": report.skills,
    }
    return (
        report.name,
        "ready" if report.ok else "failed",
        report.transport,
        report.version or "",
        ", ".join(number_of(number, noun) for noun, number in offers.items() if number)
        or ("nothing" if report.ok else ""),
        f"{report.latency:.2f} s" if report.latency is not None else "",
        f"{report.prefix}{SEPARATOR}*" if report.prefix else "*",
    )


def remarks(report: UpstreamReport) -> list[str]:
    """What does not fit in a row: the error, renamed entries and hidden ones."""
    return [
        *([f"{report.name}: {report.error or 'not connected'}"] if not report.ok else []),
        *(
            [f"{report.name}: reached {report.way}" if report.ok else f"{report.name}: tried {report.way}"]
            if report.way
            else []
        ),
        *(
            [f"{report.name}: its names begin with {report.prefix}{SEPARATOR}; `prefix` chooses another beginning"]
            if report.prefix and report.prefix != report.name
            else []
        ),
        *(
            [
                f"{report.name}: it asks for input, and is refused where several principals share its connection; "
                "`connection: principal` gives each its own"
            ]
            if report.asks
            else []
        ),
        *(f"{report.name}: the server {oddity}" for oddity in report.oddities),
        *(f"look at this: {finding}" for finding in report.findings),
        *(f"{report.name}: {name} is exposed as {exposed}" for name, exposed in report.renamed.items()),
        *(f"{report.name}: {name or 'an entry'} is hidden: {why}" for name, why in report.refused.items()),
    ]


async def list_upstreams(configuration: Configuration, *, as_json: bool) -> ExitCode:
    """Connects to every upstream, and prints a report on each."""
    tried = await try_upstreams(configuration)
    print_warnings(tried.warnings)
    if as_json:
        print_json([dataclasses.asdict(report) for report in tried.reports])
    else:
        print_reports(tried.reports)
    return ExitCode.OK


async def check_connected(configuration: Configuration, *, strict: bool, as_json: bool) -> ExitCode:
    """Connects to every upstream, and prints what `checking.check` prints, with a report on each.

    An upstream that is not connected is a failure; with `strict`, a tool that the configuration names and no upstream
    has makes it invalid. A missing command is told by the report on its upstream, and not by a warning too.
    """
    warnings = [*configuration.warnings, *missing_files(configuration)]
    if not as_json:
        print_warnings(warnings)
    tried = await try_upstreams(configuration)
    warnings += tried.warnings
    valid = not (strict and warnings)
    if as_json:
        found = [dataclasses.asdict(report) for report in tried.reports]
        print_json(check_result(configuration, warnings, found, valid=valid))
    else:
        print_warnings(tried.warnings)
        print_reports(tried.reports)
    if not tried.connected:
        return ExitCode.FAILED
    return ExitCode.OK if valid else ExitCode.INPUT


def print_reports(found: Iterable[UpstreamReport]) -> None:
    """Prints a table of upstreams to stdout, and what does not fit into it to stderr."""
    found = list(found)
    print_table(COLUMNS, [report_row(report) for report in found])
    for remark in (remark for report in found for remark in remarks(report)):
        print_err(remark)


@dataclass(frozen=True, slots=True)
class Tried:
    """What connecting to every upstream showed."""

    reports: tuple[UpstreamReport, ...]
    warnings: tuple[Problem, ...]
    """What the configuration says of tools that do not exist."""

    @property
    def connected(self) -> bool:
        """True if every upstream is."""
        return all(report.ok for report in self.reports)


async def try_upstreams(configuration: Configuration) -> Tried:
    """Connects to every upstream, also where its lists are recorded."""
    start = time.monotonic()
    latencies: dict[str, float] = {}
    settings = configuration.settings

    def note(event: UpstreamEvent) -> None:
        if isinstance(event, Connected):
            latencies.setdefault(event.upstream, time.monotonic() - start)

    upstreams = tuple(spec.model_copy(update={"start": "always"}) for spec in settings.upstreams)
    async with running(settings.model_copy(update={"upstreams": upstreams}), on_event=note) as app:
        await app.settled()
        prefixes = {spec.name: spec.prefix for spec in settings.upstreams}
        found = reports(app.statuses(), app.catalogue(), latencies, prefixes)
        scanned = await definition_findings(settings, app, app.offered())
        warnings = tuple(unmatched(configuration, *_tools(app)))
    told = {report.name: tuple(str(one) for one in scanned if one.upstream == report.name) for report in found}
    return Tried(tuple(dataclasses.replace(report, findings=told[report.name]) for report in found), warnings)


def _tools(app: App) -> tuple[dict[str, Collection[str]], dict[str, Collection[str]]]:
    """The tools of each upstream whose list is known, and those that callers see at each endpoint if all are known."""
    offered = app.offered()
    own = {
        name: [str(msgspec.json.decode(entry)["name"]) for entry in approved.manifest.lists.get(Kind.TOOLS, ())]
        for name, approved in offered.items()
        if approved is not None and approved.manifest is not None
    }
    exposed: dict[str, Collection[str]] = {}
    for endpoint in app.settings.endpoints:
        view = app.catalogue(key_of(endpoint))
        if all(space.upstream in own for space in view.layout.spaces):
            shown = (*view.lists[Kind.TOOLS], *view.unlisted)
            exposed[endpoint] = [each.key for each in shown if each.upstream in own]
    return dict(own), exposed
