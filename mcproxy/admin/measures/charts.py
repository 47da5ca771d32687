"""Draw the calls of the last hour as SVG, from minutes alone.

Needs no script, and no style but the page's classes. Each picture says what it shows in its `aria-label`, and a table
holds the same figures. All text from outside is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from mcproxy.admin.measures.statistics import MINUTES, Minute

WIDTH: Final = 320.0
LEFT: Final = 44.0
"""Where the plot begins; its labels are to the left of it."""
TOP: Final = 8.0
BOTTOM: Final = 72.0
HEIGHT: Final = 96.0
SLOT: Final = (WIDTH - LEFT) / MINUTES
"""Width of a minute."""
SHORTEST: Final = 1e-6
"""The shortest duration that is drawn, in seconds: a logarithmic axis has no zero."""
LONGEST: Final = 1e9
"""The longest one, which keeps the labels short."""
LOWEST_BAR: Final = 1.5
"""Height of the lowest bar: one failure among many calls is still seen."""
SPARK_HEIGHT: Final = 32.0
SPARK_SLOT: Final = 2.4


@dataclass(frozen=True, slots=True)
class Scale:
    """Places values on the vertical axis. `lines` are the values that have a line and a label."""

    place: Callable[[float], float]
    """The part of the height at which a value is, from 0 to 1."""
    lines: Sequence[float]


def charts(minutes: Sequence[Minute], subject: str) -> str:
    """Calls, failures and durations of `subject` as three pictures, and a table of them. `minutes` are in order."""
    calls, failures = [minute.calls for minute in minutes], [minute.failures for minute in minutes]
    reconnects = sum(minute.reconnects for minute in minutes)
    hint = '<p class="hint"><span class="marked">▲</span> reconnected</p>' if reconnects else ""
    return (
        '<div class="charts">'
        + _figure("Calls a minute", _bars(minutes, calls, "calls"), _counted(calls, "calls", reconnects), subject)
        + _figure("Failed a minute", _bars(minutes, failures, "failures"), _counted(failures, "failed"), subject)
        + _figure(
            'Duration, <span class="p50">p50</span> and <span class="p99">p99</span>',
            _durations(minutes),
            _slowest(minutes),
            subject,
        )
        + f"</div>{hint}{_table(minutes, subject)}"
    )


def sparkline(minutes: Sequence[Minute], subject: str) -> str:
    """The calls of `subject` in one small picture: failures at the foot of each bar, reconnects as marks below."""
    width, foot = SPARK_SLOT * MINUTES, SPARK_HEIGHT - 7
    top = max((minute.calls for minute in minutes), default=0) or 1
    placed = list(_placed(minutes, 0, SPARK_SLOT))
    calls = _strokes([(x, min(1, minute.calls / top) * foot) for x, minute in placed], foot, "calls")
    failures = _strokes([(x, min(1, minute.failures / top) * foot) for x, minute in placed], foot, "failures")
    label = _counted([minute.calls for minute in minutes], "calls", sum(minute.reconnects for minute in minutes))
    failed = count_text(sum(minute.failures for minute in minutes))
    axis = f'<path class="axis" d="M0 {_n(foot)}H{_n(width)}"/>'
    drawn = axis + calls + failures + "".join(_marks(minutes, 0, foot, SPARK_SLOT))
    return _svg("spark", width, SPARK_HEIGHT, f"{subject}: {label}, {failed} failed", drawn)


def duration_text(seconds: float | None) -> str:
    """A duration for people, in the unit that fits."""
    match seconds:
        case None:
            return "–"
        case _ if seconds < 0.001:
            return f"{seconds * 1e6:.0f} µs"
        case _ if seconds < 1:
            return f"{seconds * 1e3:.0f} ms"
        case _ if seconds < 120:
            return f"{seconds:.1f} s"
        case _ if seconds < 7200:
            return f"{seconds / 60:.0f} min"
        case _ if seconds < 172_800:
            return f"{seconds / 3600:.0f} h"
        case _:
            return f"{seconds / 86400:.0f} d"


def count_text(count: float) -> str:
    """A number in at most six characters: 950, 12.5k, 3M, 1e+15."""
    for limit, divisor, unit in ((10_000, 1, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M"), (1e12, 1e9, "G")):
        if count < limit:
            return f"{count / divisor:.{1 if unit else 0}f}".removesuffix(".0") + unit
    return f"{count:.0e}"


def _figure(caption: str, drawn: str, label: str, subject: str) -> str:
    picture = _svg("chart", WIDTH, HEIGHT, f"{subject}: {label}", drawn)
    return f"<figure><figcaption>{caption}</figcaption>{picture}</figure>"


def _svg(kind: str, width: float, height: float, label: str, drawn: str) -> str:
    box = f"0 0 {_n(width)} {_n(height)}"
    return f'<svg class="{kind}" viewBox="{box}" role="img" aria-label="{escape(label)}">{drawn}</svg>'


def _counted(values: Sequence[float], noun: str, reconnects: float = 0) -> str:
    most = count_text(max(values, default=0))
    text = f"{count_text(sum(values))} {noun} in the last hour, at most {most} in a minute"
    return f"{text}, {count_text(reconnects)} reconnect{'' if reconnects == 1 else 's'}" if reconnects else text


def _slowest(minutes: Sequence[Minute]) -> str:
    p50, p99 = (
        [value for value in values if value is not None]
        for values in ([minute.p50 for minute in minutes], [minute.p99 for minute in minutes])
    )
    if not p50 or not p99:
        return "no durations in the last hour"
    slow, slowest = (duration_text(min(max(values), LONGEST)) for values in (p50, p99))
    return f"durations in the last hour, p50 at most {slow}, p99 at most {slowest}"


def _bars(minutes: Sequence[Minute], values: Sequence[float], kind: str) -> str:
    top = _rounded_up(max(values, default=0))
    scale = Scale(lambda value: value / top, (0, top))
    bars = (
        _bar(x, BOTTOM, scale.place(value) * (BOTTOM - TOP), kind)
        for (x, _minute), value in zip(_placed(minutes, LEFT), values, strict=True)
    )
    return _axes(scale, count_text) + "".join(bars) + "".join(_marks(minutes, LEFT, BOTTOM))


def _bar(x: float, foot: float, height: float, kind: str) -> str:
    if height <= 0:
        return ""
    height = max(height, LOWEST_BAR)
    corner = f'x="{_n(x + SLOT * 0.1)}" y="{_n(foot - height)}"'
    return f'<rect class="{kind}" {corner} width="{_n(SLOT * 0.8)}" height="{_n(height)}"/>'


def _strokes(heights: Iterable[tuple[float, float]], foot: float, kind: str) -> str:
    """Bars as one path: a page of two hundred servers has thousands of them."""
    path = "".join(
        f"M{_n(x + SPARK_SLOT / 2)} {_n(foot)}V{_n(foot - max(height, LOWEST_BAR))}"
        for x, height in heights
        if height > 0
    )
    return f'<path class="{kind}" stroke-width="{_n(SPARK_SLOT * 0.8)}" d="{path}"/>' if path else ""


def _durations(minutes: Sequence[Minute]) -> str:
    """Lines on a logarithmic axis: the slowest calls take a thousand times as long as most."""
    found = [value for minute in minutes for value in (minute.p50, minute.p99) if value is not None]
    low = math.floor(math.log10(_bounded(min(found, default=0.001))))
    high = max(low + 1, math.ceil(math.log10(_bounded(max(found, default=1)))))
    scale = Scale(
        lambda value: (math.log10(_bounded(value)) - low) / (high - low),
        [10.0**power for power in range(low, high + 1)],
    )
    lines = (
        f'<path class="{kind}" d="{path}"/>'
        for kind, values in (("p99", [one.p99 for one in minutes]), ("p50", [one.p50 for one in minutes]))
        if (path := _line(minutes, values, scale))
    )
    return _axes(scale, duration_text) + "".join(lines) + "".join(_marks(minutes, LEFT, BOTTOM))


def _line(minutes: Sequence[Minute], values: Sequence[float | None], scale: Scale) -> str:
    """A path that breaks where a minute is missing or had no calls; a minute alone is a dot."""
    path, last = "", None
    for (x, minute), value in zip(_placed(minutes, LEFT), values, strict=True):
        if value is None:
            continue
        y = BOTTOM - scale.place(value) * (BOTTOM - TOP)
        joins = last == minute.number - 1
        path += f"{'L' if joins else 'M'}{_n(x + SLOT / 2)} {_n(y)}" + ("" if joins else "h0")
        last = minute.number
    return path


def _axes(scale: Scale, text: Callable[[float], str]) -> str:
    """The lines of the scale, of which the lowest and the highest have a label, and the hour below."""
    drawn = ""
    for value in scale.lines:
        y = BOTTOM - scale.place(value) * (BOTTOM - TOP)
        drawn += f'<path class="{"axis" if y == BOTTOM else "grid"}" d="M{_n(LEFT)} {_n(y)}H{_n(WIDTH)}"/>'
    for value in (scale.lines[0], scale.lines[-1]):
        y = BOTTOM - scale.place(value) * (BOTTOM - TOP)
        drawn += _text(LEFT - 5, y + 3.5, "end", text(value))
    return drawn + _text(LEFT, HEIGHT - 2, "start", f"{MINUTES} min ago") + _text(WIDTH, HEIGHT - 2, "end", "now")


def _text(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{escape(text)}</text>'


def _marks(minutes: Sequence[Minute], left: float, foot: float, slot: float = SLOT) -> Iterator[str]:
    """A triangle below the axis for each minute with a reconnect."""
    for x, minute in _placed(minutes, left, slot):
        if minute.reconnects:
            yield f'<path class="mark" d="M{_n(x + slot / 2)} {_n(foot + 1)}l3.5 6h-7z"/>'


def _placed(minutes: Sequence[Minute], left: float, slot: float = SLOT) -> Iterator[tuple[float, Minute]]:
    """Each minute, with where it begins; the last one is at the right end, older ones than MINUTES at the left."""
    for minute in minutes:
        age = min(MINUTES - 1, minutes[-1].number - minute.number)
        yield left + (MINUTES - 1 - age) * slot, minute


def _table(minutes: Sequence[Minute], subject: str) -> str:
    rows = "".join(
        _row(minute, minutes[-1].number) for minute in reversed(minutes) if minute.calls or minute.reconnects
    )
    heads = "".join(f'<th scope="col" class="n">{head}</th>' for head in _HEADS)
    body = (
        f"<table><caption>{escape(subject)}, newest first; minutes without calls and reconnects are left out</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    )
    return (
        '<details id="minutes"><summary>The last hour as a table</summary>'
        + (f'<div class="scroll" tabindex="0" role="region" aria-label="The last hour">{body}</div>' if rows else _NONE)
        + "</details>"
    )


_HEADS: Final = ("Minutes ago", "Calls", "Failed", "p50", "p99", "Reconnects")
_NONE: Final = "<p>No calls and no reconnects.</p>"


def _row(minute: Minute, now: int) -> str:
    cells: Iterable[str] = (
        str(now - minute.number),
        f"{minute.calls:.0f}",
        f"{minute.failures:.0f}",
        duration_text(minute.p50),
        duration_text(minute.p99),
        f"{minute.reconnects:.0f}",
    )
    shown = (f'<td class="n" data-label="{head}">{cell}</td>' for head, cell in zip(_HEADS, cells, strict=True))
    return f"<tr>{''.join(shown)}</tr>"


def _rounded_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 and so on."""
    if value <= 1:
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if value <= step * power * (1 + 1e-9))


def _bounded(seconds: float) -> float:
    return min(max(seconds, SHORTEST), LONGEST)


def _n(value: float) -> str:
    """A coordinate, to a tenth."""
    return f"{value:.1f}".removesuffix(".0")
