"""The twin of `mcproxy.admin.measures.audit_usage`."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from mcproxy.access.audit.usage import SLICE, UsageReport
from mcproxy.admin.measures.audit_usage import FRESH, MAX_ROWS, NoUsage, UsageReader

pytestmark = pytest.mark.anyio

NOON = 1795348800.0


class Clock:
    now = NOON + 60

    def __call__(self) -> float:
        return self.now


def line(**members: object) -> str:
    plain = {
        "time": "2026-11-22T12:00:00.000+00:00",
        "outcome": "ok",
        "principal": "ann",
        "bytes_in": 3,
        "bytes_out": 4,
    }
    return json.dumps({**plain, **members}) + "\n"


def hold(log: Path, text: str) -> None:
    log.write_text(text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "audit.jsonl"
    file.write_text(line() + line(principal="eve"))
    return file


async def summed(reader: UsageReader, by: str = "principal", window: str = "1d") -> UsageReport:
    found = await reader.read((by,), window)
    assert isinstance(found, UsageReport)
    return found


async def test_the_log_that_is_configured_now_is_summed_up(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(line(bytes_in=9))
    files = [str(log), str(other)]
    reader = UsageReader(lambda: files[0], Clock())
    assert (await summed(reader)).total.bytes_in == 6
    files.pop(0)
    assert (await summed(reader)).total.bytes_in == 9


async def test_a_reading_is_shown_again_for_a_while_and_for_the_same_question_alone(log: Path) -> None:
    clock = Clock()
    reader = UsageReader(lambda: str(log), clock)
    first = await summed(reader)
    hold(log, line())
    assert await summed(reader) is first
    assert (await summed(reader, by="outcome")).total.calls == 1
    hold(log, "")
    clock.now += FRESH
    assert (await summed(reader, by="outcome")).total.calls == 0


async def test_operators_who_look_together_share_one_reading(log: Path) -> None:
    reader, found = UsageReader(lambda: str(log), Clock()), list[UsageReport]()

    async def look() -> None:
        found.append(await summed(reader))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(look)
    assert len({id(each) for each in found}) == 1


async def test_a_window_leaves_out_what_is_older(log: Path) -> None:
    hold(log, line() + line(time="2026-11-20T12:00:00.000+00:00") + line(time="2020-01-01T00:00:00.000+00:00"))
    reader = UsageReader(lambda: str(log), Clock())
    counts = {window: (await summed(reader, window=window)).total.calls for window in ("1d", "7d", "30d", "all")}
    assert counts == {"1d": 1, "7d": 2, "30d": 2, "all": 3}


async def test_callers_who_choose_names_cannot_make_it_grow(log: Path) -> None:
    hold(log, "".join(line(principal=str(number)) for number in range(MAX_ROWS + 5)))
    found = await summed(UsageReader(lambda: str(log), Clock()))
    assert len(found.rows) == MAX_ROWS + 1
    assert found.total.calls == MAX_ROWS + 5


async def test_a_log_that_takes_too_long_gives_a_reason_and_no_figures(log: Path) -> None:
    hold(log, line() * SLICE)
    found = await UsageReader(lambda: str(log), Clock(), time_limit=0).read(("principal",), "all")
    assert found == NoUsage("The audit log cannot be summed up in 0 s: run mcproxy usage.")


async def test_without_a_log_it_says_what_to_set_and_one_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    found = await UsageReader(lambda: None).read(("principal",), "all")
    assert found == NoUsage("There is no audit log: set access.audit.file.")
    assert (await summed(UsageReader(lambda: str(tmp_path / "none.jsonl")))).total.calls == 0


async def test_an_operator_who_leaves_ends_the_reading(log: Path) -> None:
    hold(log, line() * SLICE * 50)
    reader = UsageReader(lambda: str(log), Clock())
    with anyio.CancelScope() as scope:
        scope.cancel()
        await reader.read(("principal",), "all")
    assert (await summed(reader, window="all")).total.calls == SLICE * 50
