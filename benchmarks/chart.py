"""The report at a glance: bars with their spread, as an SVG that follows the reader's light or dark scheme."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from benchmarks.proxies import MCPROXY, NOTHING
from benchmarks.ratios import Ratio
from benchmarks.results import Result
from benchmarks.workloads import CURVES, Section

WIDTH: Final = 900
LABELS: Final = 340
"""Where the bars begin."""
VALUES: Final = 60
"""Kept free for the numbers behind them."""
ROW: Final = 22
BAR: Final = 12
HEAD: Final = 56

STYLE: Final = """\
svg { font: 13px system-ui, sans-serif; --text: #1f2328; --quiet: #656d76; --bar: #2f6fde; --page: #ffffff }
@media (prefers-color-scheme: dark) {
  svg { --text: #e6edf3; --quiet: #8d96a0; --bar: #5b9bff; --page: #0d1117 }
}
rect.page { fill: var(--page) } rect.bar { fill: var(--bar) } text { fill: var(--text) }
text.title { font-weight: 600; font-size: 15px } text.quiet { fill: var(--quiet) }
line.one { stroke: var(--quiet); stroke-dasharray: 3 3 } line.spread { stroke: var(--text) }"""


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    bars: Sequence[tuple[str, Ratio]]

    @property
    def height(self) -> int:
        return HEAD + ROW * len(self.bars)


def chart(result: Result) -> str:
    return drawn([panel for panel in _panels(result) if panel.bars])


def drawn(panels: Sequence[Panel]) -> str:
    height = sum(panel.height for panel in panels) + ROW
    body: list[str] = []
    top = 0
    for panel in panels:
        body += _panel(panel, top)
        top += panel.height
    size = f'width="{WIDTH}" height="{height}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size}>'
    page = f'<rect class="page" {size}/>'
    return "\n".join([opening, f"<style>\n{STYLE}\n</style>", page, *body, "</svg>"]) + "\n"


def _panels(result: Result) -> Iterator[Panel]:
    costs = [(row.name, cost) for row in result.of(Section.CALLS) if (cost := row.costs(NOTHING)) is not None]
    yield Panel("Processor time of a call, in calls through a proxy that does nothing", costs)
    peers = [
        (f"{name}, {row.name}", cost)
        for row in result.of(Section.PEERS)
        for name in row.turns
        if name != MCPROXY and (cost := row.costs(name)) is not None
    ]
    yield Panel("Processor time of a call, in calls through other MCP proxies", peers)
    growth = [(f"{curve.value}: {row.point:,}", cost) for curve in CURVES for row, cost in result.curve(curve)]
    yield Panel("Processor time of a call, as there is more of something", growth)


def _panel(panel: Panel, top: int) -> Iterator[str]:
    scale = (WIDTH - LABELS - VALUES) / max(1.0, *(ratio.high for _, ratio in panel.bars))
    one, bottom = LABELS + scale, top + panel.height
    yield f'<text class="title" x="16" y="{top + 32}">{escape(panel.title)}</text>'
    for number, (label, ratio) in enumerate(panel.bars):
        yield from _bar(label, ratio, scale, top + HEAD + ROW * number)
    yield f'<line class="one" x1="{one:.1f}" x2="{one:.1f}" y1="{top + HEAD - 10}" y2="{bottom - 6}"/>'


def _bar(label: str, ratio: Ratio, scale: float, top: float) -> Iterator[str]:
    middle = top + BAR / 2
    ends = f'x1="{LABELS + ratio.low * scale:.1f}" x2="{LABELS + ratio.high * scale:.1f}"'
    yield f'<text x="{LABELS - 10}" y="{top + BAR - 1}" text-anchor="end">{escape(label)}</text>'
    yield f'<rect class="bar" x="{LABELS}" y="{top}" width="{ratio.median * scale:.1f}" height="{BAR}" rx="2"/>'
    yield f'<line class="spread" {ends} y1="{middle}" y2="{middle}"/>'
    beyond = LABELS + ratio.high * scale + 8
    yield f'<text class="quiet" x="{beyond:.1f}" y="{top + BAR - 1}">{ratio.median:.2f}</text>'
