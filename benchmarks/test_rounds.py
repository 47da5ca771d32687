"""The programs of the benchmark answer what they are asked, before any load, and end when they are told to."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.answers import MARK
from benchmarks.proxies import MCPROXY, NOTHING, PROXIES
from benchmarks.rounds import plan, proxy_running, scene, upstream
from benchmarks.running import Cores, NotStarted, running, split
from benchmarks.upstream import field
from benchmarks.workloads import Workload, call, listing, read
from mcproxy.protocol.eras import Era
from tests.ports import free_port
from tests.processes import survivors

ANYWHERE = Cores(frozenset(os.sched_getaffinity(0)), frozenset(os.sched_getaffinity(0)))
ASKS = {"call": call(), "progress": call(steps=2), "read": read("bench://fresh/1"), "list": listing(1)}


@pytest.mark.parametrize("era", list(Era))
@pytest.mark.parametrize("name", [MCPROXY, NOTHING])
def test_a_proxy_answers_all_that_it_will_be_asked(name: str, era: Era, tmp_path: Path) -> None:
    stage = Workload("all", call(), era=era, upstreams=2 if name == MCPROXY else 1)
    with ExitStack() as stack:
        port = stack.enter_context(upstream(1, tmp_path, ANYWHERE))
        at = scene(stage, tmp_path / name, port, ANYWHERE)
        pid = stack.enter_context(proxy_running(PROXIES[name], at, ANYWHERE))
        plans = {
            kind: plan(Workload(kind, ask, era=era, upstreams=stage.upstreams), PROXIES[name], at.port)
            for kind, ask in ASKS.items()
        }
    assert {planned.mark for planned in plans.values()} == {MARK}
    assert len(plans["call"].requests) == stage.upstreams
    assert survivors([pid], within=0) == []


def test_a_program_that_ends_at_once_is_quoted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    with (
        pytest.raises(NotStarted, match="no such thing"),
        running(command, ANYWHERE.proxy, free_port(), tmp_path / "log"),
    ):
        pass


def test_the_proxy_has_a_core_for_itself() -> None:
    assert split({0, 1, 2, 3}) == Cores(frozenset({3}), frozenset({0, 1, 2}))
    with pytest.raises(ValueError, match="two cores"):
        split({0})


def test_a_header_is_found_whatever_its_case_and_place() -> None:
    head = b"POST /mcp HTTP/1.1\r\nX-Content-Length: 9\r\nMCP-Session-ID: ab\r\nCONTENT-LENGTH:12"
    assert field(head, b"content-length") == b"12"
    assert field(head, b"mcp-session-id") == b"ab"
    assert field(head, b"accept") == b""
