"""What peers write must not pass for a line of ours."""

from __future__ import annotations

import io
import json
from typing import Literal

import pytest
import structlog

from mcproxy.telemetry import logs

FORGED = "a\n2026-01-01T00:00:00Z [info     ] stopping\r\x1b[2K\x1b]0;title\x07\x85\u2028{}"


@pytest.fixture(params=["console", "json"])
def lines(request: pytest.FixtureRequest) -> io.StringIO:
    form: Literal["console", "json"] = request.param
    stream = io.StringIO()
    logs.configure(form, "info", [], stream)
    return stream


def test_what_a_peer_wrote_begins_no_line_of_the_log(lines: io.StringIO) -> None:
    structlog.get_logger().warning("a tool is refused", tool=FORGED, among=[FORGED], by={FORGED: FORGED})
    written = lines.getvalue()
    assert written.count("\n") == 1
    assert not any(sign in written for sign in "\r\x1b\x07")


def test_a_line_of_json_is_read_back_as_it_was_meant() -> None:
    stream = io.StringIO()
    logs.configure("json", "info", [], stream)
    structlog.get_logger().warning("a tool is refused", tool=FORGED)
    assert json.loads(stream.getvalue())["tool"] == FORGED
