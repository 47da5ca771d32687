"""Logs: their form, and what is taken out of them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.web import RequestPayloadError

from mcproxy.telemetry import logs

SENTINEL = 'sentinel "quoted"\nand broken over lines'


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.parametrize("form", ["console", "json"])
def test_r44_a_secret_is_taken_out_wherever_it_stands(form: str) -> None:
    stream = io.StringIO()
    logs.configure("json" if form == "json" else "console", "info", [SENTINEL, "short"], stream)
    log = structlog.get_logger()
    log.info(f"event {SENTINEL}", text=f"a{SENTINEL}b", deep={"list": [SENTINEL], SENTINEL: 1}, error=OSError(SENTINEL))
    log.error("it failed", exc_info=ValueError(SENTINEL))
    logging.getLogger("aiohttp.server").error("request with %s", SENTINEL)
    assert "sentinel" not in stream.getvalue()
    assert stream.getvalue().count(logs.REDACTED) >= 6


def test_what_clients_send_amiss_is_no_news_and_what_breaks_here_is() -> None:
    stream = io.StringIO()
    logs.configure("json", "info", [], stream)
    log = logging.getLogger("aiohttp.server")
    log.error("Error handling request", exc_info=BadHttpMessage("no valid HTTP"))
    log.error("Unhandled exception", exc_info=RequestPayloadError("no valid gzip"))
    assert stream.getvalue() == ""
    log.error("Error handling request", exc_info=ValueError("a bug"))
    assert "a bug" in stream.getvalue()


def test_a_line_that_is_not_taken_is_lost_and_breaks_nothing() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(text)

    logs.configure("json", "info", [], Closed())
    structlog.get_logger().info("told")


def test_the_longest_secret_goes_first() -> None:
    process = logs.redacting(["Bearer abcdef", "abcdef"])
    assert process(None, "info", {"event": "Bearer abcdef, abcdef"}) == {"event": "[redacted], [redacted]"}


def test_values_that_are_words_stay() -> None:
    process = logs.redacting(["true", "", "debug"])
    assert process(None, "info", {"event": "true debug", "n": 1}) == {"event": "true debug", "n": 1}


def test_json_is_a_line_with_a_time_and_a_level() -> None:
    stream = io.StringIO()
    logs.configure("auto", "warning", [], stream)
    structlog.get_logger().info("not told")
    structlog.get_logger().warning("told", upstream="git", count=3)
    (line,) = stream.getvalue().splitlines()
    event = json.loads(line)
    assert event.pop("timestamp")
    assert event == {"event": "told", "level": "warning", "upstream": "git", "count": 3}


def test_the_level_changes_while_all_else_stays(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json", "warning", ["sentinel"])
    log = structlog.get_logger()
    log.info("unheard")
    logs.set_level("debug")
    assert logs.is_verbose()
    log.debug("heard", token="sentinel")
    logs.set_level("warning")
    assert not logs.is_verbose()
    log.debug("unheard")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "heard"
    assert "sentinel" not in line


def test_a_line_says_what_it_is_about_and_its_own_facts_count() -> None:
    stream = io.StringIO()
    logs.configure("json", "info", ["sentinel"], stream)
    token = logs.about.set(lambda: {"request": "sentinel-1", "upstream": "another"})
    structlog.get_logger().info("told", upstream="git")
    logs.about.reset(token)
    structlog.get_logger().info("told of nothing")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["request"], first["upstream"]) == (f"{logs.REDACTED}-1", "git")
    assert "request" not in second


def test_who_is_asked_what_lines_are_about_is_asked_only_where_one_is_written() -> None:
    logs.configure("json", "warning", [], io.StringIO())
    asked: list[bool] = []

    def facts() -> dict[str, object]:
        asked.append(True)
        return {}

    token = logs.about.set(facts)
    structlog.get_logger().info("not told")
    assert asked == []
    structlog.get_logger().warning("told")
    logs.about.reset(token)
    assert asked == [True]


def test_a_text_that_is_too_long_is_cut_and_a_secret_at_the_cut_is_not_told_in_part() -> None:
    process = logs.redacting(["sentinel-secret"])
    line = process(None, "", {"event": "a" * (logs.MAX_TEXT - 5) + "sentinel-secret" + "b" * 1_000_000})
    assert isinstance(line, dict)
    text = str(line["event"])
    assert "sent" not in text
    assert len(text) < logs.MAX_TEXT + 50
    assert text.endswith("more characters)")
