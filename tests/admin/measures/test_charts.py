"""The pictures of the last hour: what is drawn, what is said of it in words, and that all of it is well-formed."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from mcproxy.admin.measures.charts import LEFT, SLOT, WIDTH, charts, count_text, duration_text, sparkline
from mcproxy.admin.measures.statistics import MINUTES, Minute

HOSTILE = "<script>alert(1)</script>\"'&"


def elements(markup: str, tag: str, kind: str = "") -> list[ElementTree.Element]:
    """The elements of a tag and, where one is given, a class. Fails if the markup is not well-formed."""
    root = ElementTree.fromstring(f"<div>{markup}</div>")
    return [element for element in root.iter(tag) if not kind or element.get("class") == kind]


def labels(markup: str) -> list[str]:
    return [svg.get("aria-label", "") for svg in elements(markup, "svg") if svg.get("role") == "img"]


def coordinates(markup: str) -> list[float]:
    drawn = [element.get("d", "") for element in elements(markup, "path")]
    boxes = [rect.get(name, "") for rect in elements(markup, "rect") for name in ("x", "y", "width", "height")]
    return [float(number) for text in [*drawn, *boxes] for number in re.findall(r"-?[\d.]+", text)]


def test_an_hour_without_minutes_is_an_empty_chart_that_says_so() -> None:
    drawn = charts([], "a")
    assert elements(drawn, "rect") == []
    assert labels(drawn) == [
        "a: 0 calls in the last hour, at most 0 in a minute",
        "a: 0 failed in the last hour, at most 0 in a minute",
        "a: no durations in the last hour",
    ]
    assert "No calls and no reconnects." in drawn
    assert elements(sparkline([], "a"), "path", "calls") == []


def test_one_minute_is_at_the_right_end_and_its_durations_are_dots() -> None:
    drawn = charts([Minute(700, 8, 2, 0.01, 0.5)], "a")
    (calls,), (failures,) = elements(drawn, "rect", "calls"), elements(drawn, "rect", "failures")
    right = float(calls.get("x", "")) + float(calls.get("width", ""))
    assert WIDTH - SLOT < right <= WIDTH
    assert failures.get("x") == calls.get("x")
    (p50,) = elements(drawn, "path", "p50")
    assert re.fullmatch(r"M\S+ \S+h0", p50.get("d", ""))
    assert [cell.text for cell in elements(drawn, "td")] == ["0", "8", "2", "10 ms", "500 ms", "0"]


def test_a_line_breaks_where_minutes_are_missing_or_had_no_calls() -> None:
    minutes = [Minute(1, 1, 0, 0.1, 0.1), Minute(2, 1, 0, 0.1, 0.1), Minute(3), Minute(4, 1, 0, 0.1, 0.1)]
    (line,) = elements(charts(minutes, "a"), "path", "p50")
    assert re.sub(r"[\d. -]", "", line.get("d", "")) == "MhLMh"
    apart = [Minute(1, 1, 0, 0.1, 0.1), Minute(9, 1, 0, 0.1, 0.1)]
    (line,) = elements(charts(apart, "a"), "path", "p50")
    assert line.get("d", "").count("M") == 2
    first, last = (float(rect.get("x", "")) for rect in elements(charts(apart, "a"), "rect", "calls"))
    assert last - first == pytest.approx(8 * SLOT, abs=0.1)


@pytest.mark.parametrize("value", [1e-12, 0.0, 1e15, 1e300])
def test_a_huge_or_tiny_value_stays_within_the_picture(value: float) -> None:
    minutes = [Minute(number, value, value, value, value, value) for number in range(100, 100 + MINUTES)]
    for drawn in (charts(minutes, "a"), sparkline(minutes, "a")):
        assert all(-7 <= number <= WIDTH for number in coordinates(drawn))
        assert all(len(text) < 200 for text in labels(drawn))


def test_minutes_older_than_an_hour_are_drawn_at_the_left_end() -> None:
    drawn = charts([Minute(1, 5), Minute(500, 5)], "a")
    oldest, _newest = elements(drawn, "rect", "calls")
    assert LEFT <= float(oldest.get("x", "")) < LEFT + SLOT


def test_reconnects_are_marks_under_the_axis_of_each_picture() -> None:
    minutes = [Minute(1, reconnects=2), Minute(2), Minute(3, reconnects=1)]
    drawn = charts(minutes, "a")
    assert len(elements(drawn, "path", "mark")) == 3 * 2
    assert "3 reconnects" in labels(drawn)[0]
    assert "reconnected" in drawn
    assert "reconnected" not in charts([Minute(1)], "a")
    assert len(elements(sparkline(minutes, "a"), "path", "mark")) == 2


def test_a_failure_among_many_calls_is_still_seen() -> None:
    (bar,) = elements(charts([Minute(1, 100_000, 1)], "a"), "rect", "failures")
    (stroke,) = elements(sparkline([Minute(1, 100_000, 1)], "a"), "path", "failures")
    assert float(bar.get("height", "")) >= 1
    foot, top = map(float, stroke.get("d", "").split()[1].split("V"))
    assert foot - top >= 1


def test_a_small_picture_is_small_in_bytes_too() -> None:
    busy = [Minute(number, 50 + number % 7, number % 3, 0.1, 0.2, 0) for number in range(MINUTES)]
    assert len(sparkline(busy, "a")) < 2500, "two hundred of them are a page that is read every five seconds"


def test_the_slowest_is_above_the_fastest() -> None:
    drawn = charts([Minute(1, 9, 0, 0.002, 7.0)], "a")
    p50, p99 = (float(elements(drawn, "path", kind)[0].get("d", "").split()[1][:-2]) for kind in ("p50", "p99"))
    assert p99 < p50, "y grows downwards"
    assert "p50 at most 2 ms, p99 at most 7.0 s" in labels(drawn)[2]


def test_r42_a_hostile_name_is_escaped() -> None:
    for drawn in (charts([Minute(1, 1)], HOSTILE), sparkline([Minute(1, 1)], HOSTILE)):
        assert "<script" not in drawn
        assert all(label.startswith(HOSTILE) for label in labels(drawn))


def test_no_style_is_inline() -> None:
    minutes = [Minute(1, 1, 1, 0.1, 0.1, 1)]
    assert "style" not in charts(minutes, "a") + sparkline(minutes, "a")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (9999, "9999"), (12_500, "12.5k"), (3_000_000, "3M"), (2e10, "20G"), (1e15, "1e+15")],
)
def test_a_count_is_short(count: float, text: str) -> None:
    assert count_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.00025, "250 µs"),
        (0.25, "250 ms"),
        (90, "90.0 s"),
        (600, "10 min"),
        (10_800, "3 h"),
        (2e5, "2 d"),
    ],
)
def test_a_duration_is_in_the_unit_that_fits(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text
