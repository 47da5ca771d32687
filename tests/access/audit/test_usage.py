"""What the audit log adds up to: every line in one row, to the byte, however the log is rotated."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.access.audit.usage import (
    COLUMNS,
    MAX_ROWS,
    REMAINDER,
    SLICE,
    UsageReport,
    audit_files,
    never_called,
    read_usage,
)

NOON = "2026-11-22T12:00:00.000+00:00"
AT_NOON = 1795348800.0


def line(**members: object) -> bytes:
    plain: dict[str, object] = {"time": NOON, "outcome": "ok", "bytes_in": 10, "bytes_out": 100, "principal": "ann"}
    named = {"method": "tools/call", "upstream": "git", "subject": "log"}
    return json.dumps({**plain, **named, **members}).encode() + b"\n"


def report(*lines: bytes, by: str = "principal,tool", since: float | None = None) -> UsageReport:
    made = UsageReport(by.split(","), since)
    for each in lines:
        made.add(each)
    return made


def test_calls_are_summed_by_columns() -> None:
    found = report(line(), line(bytes_out=1), line(principal="eve"), line(method="tools/list", subject="x"))
    assert {key: (row.calls, row.bytes_in, row.bytes_out) for key, row in found.rows.items()} == {
        ("ann", "git/log"): (2, 20, 101),
        ("eve", "git/log"): (1, 10, 100),
        ("ann", "-"): (1, 10, 100),
    }
    assert found.most_used()[0][0] == ("ann", "git/log")
    assert found.total.tokens == -(-(40 + 301) // 4)


@pytest.mark.parametrize(
    ("outcome", "errors", "denials"),
    [
        ("ok", 0, 0),
        ("input_required", 0, 0),
        ("denied", 0, 1),
        ("approval_denied", 0, 1),
        ("approval_expired", 1, 0),
        ("tool_error", 1, 0),
        ("timeout", 1, 0),
    ],
)
def test_what_was_denied_is_told_from_what_failed(outcome: str, errors: int, denials: int) -> None:
    total = report(line(outcome=outcome)).total
    assert (total.calls, total.errors, total.denials) == (1, errors, denials)


def test_earlier_lines_and_other_events_do_not_count() -> None:
    found = report(line(), line(time="2026-11-22T11:59:59.999+00:00"), line(event="login"), since=AT_NOON)
    assert found.total.calls == 1


def test_lines_that_cannot_be_read_are_counted() -> None:
    found = report(b"{", b"[]\n", b'{"bytes_in": 5}\n', line())
    assert (found.unreadable, found.total.calls) == (3, 1)


def test_further_rows_share_one() -> None:
    found = UsageReport(["principal"], rows=dict.fromkeys(((str(number),) for number in range(MAX_ROWS)), None))  # type: ignore[arg-type]  # nobody adds to them
    found.add(line(principal="one more"))
    assert found.rows[REMAINDER,].calls == 1


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "audit.jsonl"
    file.write_bytes(line() * 2)
    (tmp_path / "audit.jsonl.1").write_bytes(line(bytes_out=7))
    (tmp_path / "audit.jsonl.2.gz").write_bytes(gzip.compress(line(principal="eve", bytes_out=5) * 3))
    for other in ("audit.jsonlike", "audit.jsonl.bak", "audit.jsonl.old.gz", "audit.jsonl.1.copy", "audit.jsonl-2"):
        (tmp_path / other).write_bytes(line())
    return file


def test_rotated_and_compressed_files_count_and_others_do_not(log: Path) -> None:
    assert [path.name for path in audit_files(log)] == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2.gz"]
    total = read_usage(log, ["principal"]).total
    assert (total.calls, total.bytes_out) == (6, 200 + 7 + 15)


@pytest.mark.parametrize(
    "end", [".1", ".12", ".3.gz", "-20261122", "-20261122.gz", "-2026112212", "-20261122-1795348800"]
)
def test_names_that_the_gateway_and_logrotate_give_are_of_rotated_files(tmp_path: Path, end: str) -> None:
    rotated = tmp_path / f"audit.jsonl{end}"
    rotated.touch()
    assert audit_files(tmp_path / "audit.jsonl") == [rotated]


def test_a_tasks_result_counts_for_the_tool_whose_call_became_it() -> None:
    found = report(line(), line(method="tasks/result", subject="task-7", tool="log", bytes_out=5000), by="tool")
    assert {key: (row.calls, row.bytes_out) for key, row in found.rows.items()} == {("git/log",): (2, 5100)}
    assert report(line(method="tasks/get", subject="task-7"), by="tool").rows.keys() == {("-",)}


def test_a_file_that_ended_earlier_is_not_read(log: Path) -> None:
    os.utime(log.with_name("audit.jsonl.1"), (0, 0))
    assert [path.name for path in audit_files(log, 1.0)] == ["audit.jsonl", "audit.jsonl.2.gz"]


def test_a_compressed_file_that_is_cut_short_says_so(log: Path) -> None:
    file = log.with_name("audit.jsonl.2.gz")
    file.write_bytes(file.read_bytes()[:-6])
    assert read_usage(log, ["principal"]).unreadable == 1


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read_usage(tmp_path / "none.jsonl", ["principal"]).total.calls == 0


def rotate(log: Path) -> None:
    """As logrotate does: each file gets the next number, and the gateway begins a new one."""
    for number in range(9, 0, -1):
        before = log.with_name(f"{log.name}.{number}")
        if before.exists():
            before.rename(log.with_name(f"{log.name}.{number + 1}"))
    log.rename(log.with_name(f"{log.name}.1"))
    log.write_bytes(line(bytes_out=1000))


def test_a_rotation_while_it_is_read_counts_nothing_twice_and_loses_nothing(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    log.write_bytes(line(bytes_out=1) * (SLICE + 1))
    log.with_name("audit.jsonl.1").write_bytes(line(bytes_out=10) * (SLICE + 1))
    log.with_name("audit.jsonl.2").write_bytes(line(bytes_out=100))
    total = read_usage(log, ["principal"], after_slice=lambda: rotate(log)).total
    assert (total.calls, total.bytes_out) == (2 * (SLICE + 1) + 1, 11 * (SLICE + 1) + 100)


def test_a_rotation_while_its_files_are_opened_counts_nothing_twice_and_loses_nothing(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    log.write_bytes(line(bytes_out=1))
    log.with_name("audit.jsonl.1").write_bytes(line(bytes_out=10))
    rotations = [3, 2, 1]

    def listed(file: Path, since: float | None) -> list[Path]:
        found = audit_files(file, since)
        if rotations:
            rotations.pop()
            rotate(log)
        return found

    total = read_usage(log, ["principal"], listed=listed).total
    assert (total.calls, total.bytes_out) == (5, 3011)


def test_a_log_whose_files_never_stay_is_not_guessed_at(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    log.write_bytes(line())
    with pytest.raises(OSError, match="again and again"):
        read_usage(log, ["principal"], listed=lambda file, since: [file.with_name("gone")])


def test_a_file_that_is_being_compressed_counts_once(log: Path) -> None:
    log.with_name("audit.jsonl.1.gz").write_bytes(gzip.compress(line(bytes_out=7))[:-9])
    found = read_usage(log, ["principal"])
    assert (found.total.calls, found.total.bytes_out, found.unreadable) == (6, 222, 0)


def test_a_line_that_is_being_written_does_not_count_yet(log: Path) -> None:
    whole = read_usage(log, ["principal"]).total
    log.write_bytes(log.read_bytes() + line()[:-20])
    found = read_usage(log, ["principal"])
    assert (found.total, found.unreadable) == (whole, 0)


texts = st.text(max_size=5)
audit_lines = st.fixed_dictionaries(
    {"time": st.just(NOON), "bytes_in": st.integers(0, 10**9), "bytes_out": st.integers(0, 10**9)},
    optional={
        **dict.fromkeys(("principal", "client", "endpoint", "upstream", "subject"), texts),
        "outcome": st.sampled_from(["ok", "denied", "approval_denied", "tool_error", "cancelled"]),
        "method": st.sampled_from(["tools/call", "tools/list", "resources/read", "tasks/result"]),
        "tool": texts,
    },
)


@given(st.lists(audit_lines, max_size=20), st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3))
def test_the_rows_add_up_to_the_raw_log_to_the_byte(lines: list[dict[str, Any]], by: list[str]) -> None:
    found = report(*(json.dumps(each).encode() for each in lines), by=",".join(by))
    rows = found.rows.values()
    assert sum(row.calls for row in rows) == found.total.calls == len(lines)
    for name in ("bytes_in", "bytes_out"):
        assert sum(getattr(row, name) for row in rows) == sum(each[name] for each in lines)
    denied = {"denied", "approval_denied"}
    assert sum(row.denials for row in rows) == sum(each.get("outcome") in denied for each in lines)


def test_tools_that_were_never_called_come_with_what_they_cost() -> None:
    offered = [("git", "log", 500), ("git", "push", 20), ("wiki", "log", 30)]
    assert never_called(report(line()), offered) == [("wiki", "log", 30), ("git", "push", 20)]
