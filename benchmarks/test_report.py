"""The report and its chart, of results that never were."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.chart import Panel, chart, drawn
from benchmarks.load import Load
from benchmarks.machine import Machine, this_machine
from benchmarks.proxies import DIRECT, MCPROXY, NGINX, NOTHING
from benchmarks.ratios import Ratio, Turn
from benchmarks.readings import Reading, Unit
from benchmarks.report import lines, report, shown
from benchmarks.results import Result, Row, keep, kept
from benchmarks.retrieval import RANKERS, Retrieved
from benchmarks.rounds import Effort
from benchmarks.usage import Memory
from benchmarks.workloads import Section

EFFORT = Effort(3, 0.5)
MACHINE = Machine("2026-11-21", "abc1234", "Chip <9>", 2, 2**33, "Linux 6", 0.25, {"Python": "3.11"})


def turns(answers: int, processor: float, wait: float = 0.01, failed: int = 0) -> list[Turn]:
    return [Turn(Load(answers, 1.0, wait, 2 * wait, failed, "503 busy"), processor, Memory(2**21, 2**20))] * 3


def row(section: Section = Section.CALLS, point: int = 0, processor: float = 1.0, failed: int = 0) -> Row:
    return Row(
        f"calls {point}",
        section,
        point,
        {
            MCPROXY: turns(100, processor, 0.04, failed),
            NOTHING: turns(200, 1.0, 0.02),
            NGINX: turns(1000, 0.3, 0.015),
            DIRECT: turns(5000, 0.0, 0.01),
        },
        {},
    )


def test_retrieval_is_in_the_report_where_collections_were_there() -> None:
    found = Retrieved("plugins", 7, "all", 4, {name: [0.5, 1.0] for name in RANKERS})
    text = report(Result(MACHINE, EFFORT, [], [], [found]))
    assert "| plugins | 7 | all | 4 | 0.500 |" in text
    assert "finds the right tool" not in written()


def written(*rows: Row, readings: tuple[Reading, ...] = ()) -> str:
    return report(Result(MACHINE, EFFORT, list(rows), list(readings)))


def test_a_row_says_throughput_processor_and_what_is_added() -> None:
    text = written(row())
    nothing = "0.50 (0.50–0.50) | 2.00 (2.00–2.00) | 3.00 (3.00–3.00) | 3.00 (3.00–3.00) | 1.00 (1.00–1.00)"
    nginx = "< 0.10 (0.10–0.10) | 33.33 (33.33–33.33) | 6.00 (6.00–6.00) | 6.00 (6.00–6.00) | 1.00 (1.00–1.00)"
    assert f"| calls 0 | {nothing} |" in text
    assert f"| calls 0 | {nginx} |" in text


def test_a_curve_is_in_units_of_its_first_point() -> None:
    result = Result(MACHINE, EFFORT, [row(Section.TOOLS, 1), row(Section.TOOLS, 300, processor=1.5)], [])
    assert [cost.median for _, cost in result.curve(Section.TOOLS)] == [1.0, 1.5]
    assert "| tools: 300 | 1.50 (1.50–1.50) | 1 |" in report(result)


def test_wrong_answers_and_absent_proxies_are_told() -> None:
    wrong = row(failed=2)
    lacking = Row("calls with peers", Section.PEERS, 0, {}, {"supergateway": "not\ninstalled"})
    text = written(wrong, lacking)
    assert "- calls 0: mcproxy: 6 answers were wrong or missing, such as: 503 busy" in text
    assert "- calls with peers: supergateway is left out: not installed" in text


def test_a_proxy_that_was_too_slow_for_an_answer_is_told_of() -> None:
    slow = Row("calls", Section.PEERS, 0, {MCPROXY: turns(100, 1.0), "fastmcp": turns(0, 1.0)}, {})
    assert "- calls: fastmcp: a turn ended before the first answer" in written(slow)


def test_a_report_without_omissions_does_not_speak_of_them() -> None:
    assert "Left out" not in written(row())


def test_readings_and_the_machine_are_in_the_report() -> None:
    text = written(readings=(Reading("memory of a session", 24.43, Unit.KIBIBYTES, "session"),))
    assert "| memory of a session | 24.4 KiB | session |" in text
    assert "- 2026-11-21, mcproxy at abc1234" in text
    assert "- 3 rounds, 0.5 s of load each turn" in text


def test_processor_times_are_told_in_calls_of_the_proxy_that_does_nothing() -> None:
    reading = Reading("one update", 2500.0, Unit.PROCESSOR_MICROSECONDS, "subscriber")
    assert "| one update | 0.50 calls through do-nothing | subscriber |" in written(row(), readings=(reading,))
    assert "| one update | 2.5e+03 us | subscriber |" in written(readings=(reading,))


def test_the_terminal_shows_the_same_comparison() -> None:
    assert any("rate 0.50 (0.50–0.50), cost 2.00 (2.00–2.00)" in line for line in lines(row()))


def test_where_nothing_can_be_said_nothing_is() -> None:
    assert shown(None) == "–"


def test_a_result_that_was_kept_is_the_same_again(tmp_path: Path) -> None:
    result = Result(MACHINE, EFFORT, [row()], [Reading("x", 1.0, Unit.MILLISECONDS)])
    keep(result, tmp_path / "some" / "result.json")
    assert kept(tmp_path / "some" / "result.json") == result


def test_the_chart_is_xml_whatever_the_names() -> None:
    root = ElementTree.fromstring(drawn([Panel("a < b & c", [("<x>", Ratio(1.0, 0.5, 2.0))])]))
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["a < b & c", "<x>", "1.00"]


def test_the_longest_bar_stays_within_the_chart() -> None:
    drawing = drawn([Panel("p", [("a", Ratio(2.0, 1.0, 8.0)), ("b", Ratio(1.0, 1.0, 1.0))])])
    root = ElementTree.fromstring(drawing)
    width = float(root.attrib["width"])
    ends = [float(line.attrib["x2"]) for line in root.iter("{http://www.w3.org/2000/svg}line")]
    assert max(ends) < width


def test_the_chart_has_a_panel_for_each_kind_that_was_measured() -> None:
    only_calls = chart(Result(MACHINE, EFFORT, [row()], []))
    assert only_calls.count('class="title"') == 1
    both = chart(Result(MACHINE, EFFORT, [row(), row(Section.TOOLS, 1)], []))
    assert both.count('class="title"') == 2


def test_this_machine_has_facts() -> None:
    machine = this_machine()
    assert machine.cores >= 1
    assert {"Python", "aiohttp", "fastmcp (PyPI)", "supergateway (npm)"} <= machine.versions.keys()
    assert re.fullmatch(r"3\.\d+\.\S+ \((shared libpython|libpython linked in)\)", machine.versions["Python"])
