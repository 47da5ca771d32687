"""`mcproxy usage`: the audit log of a gateway that ran, by whatever columns are asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcproxy.cli.access.usage import locked_tools, usage
from mcproxy.cli.runtime import ExitCode
from mcproxy.settings import Settings
from tests.access.audit.test_usage import line
from tests.fakes.upstream import settings_of

LOCK = {
    "lockfile": 1,
    "upstreams": {"git": {"tools": {"log": {"sha256": "0" * 64}, "push": {"sha256": "0" * 64}}}},
}


NOWHERE = Path("/nonexistent")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "audit.jsonl").write_bytes(line() * 2 + line(principal="eve", outcome="denied"))
    (tmp_path / "mcproxy.lock").write_text(json.dumps(LOCK))
    access = {"audit": {"file": str(tmp_path / "audit.jsonl")}, "pins": {"file": str(tmp_path / "mcproxy.lock")}}
    return settings_of({"git": {}}, access)


def asked(settings: Settings, by: str = "principal,tool", since: str | None = None, file: str | None = None) -> int:
    return usage(settings, NOWHERE, by=by, since=since, file=file, as_json=False)


def idle(settings: Settings, folder: Path = NOWHERE) -> list[tuple[str, str]]:
    """The tools that could have been called."""
    return [(upstream, name) for upstream, name, _ in locked_tools(settings, folder)]


def test_rows_come_as_tabs_with_a_total(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(settings) == ExitCode.OK
    assert capsys.readouterr().out.splitlines() == [
        "ann\tgit/log\t2\t0\t0\t20\t200\t55",
        "eve\tgit/log\t1\t0\t1\t10\t100\t28",
        "total\t\t3\t0\t1\t30\t300\t83",
    ]


def test_tools_of_the_lock_file_that_were_never_called_are_named(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(settings)
    assert "git/push" in capsys.readouterr().err


def test_a_lock_file_beside_the_configuration_is_read_though_nothing_is_pinned(tmp_path: Path) -> None:
    (tmp_path / "mcproxy.lock").write_text(json.dumps(LOCK))
    assert idle(settings_of({"git": {}}), tmp_path) == [("git", "log"), ("git", "push")]


@pytest.mark.parametrize(
    ("upstreams", "left"),
    [
        ({"git": {"tools": {"exclude": ["pu*"]}}}, [("git", "log")]),
        ({"git": {"tools": {"include": ["push"]}}}, [("git", "push")]),
        ({"git": {"enabled": False}}, []),
        ({"wiki": {}}, []),
    ],
)
def test_tools_that_no_list_has_cost_nothing(
    tmp_path: Path, upstreams: dict[str, dict[str, object]], left: list[tuple[str, str]]
) -> None:
    (tmp_path / "mcproxy.lock").write_text(json.dumps(LOCK))
    assert idle(settings_of(upstreams), tmp_path) == left


def test_json_has_everything(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert usage(settings, NOWHERE, by="upstream", since=None, file=None, as_json=True) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == [{"upstream": "git", **found["total"]}]
    assert found["total"]["bytes_out"] == 300
    assert found["never_called"] == [{"upstream": "git", "tool": "push", "bytes": None}]


@pytest.mark.parametrize(
    ("by", "since", "said"),
    [
        ("colour", None, "--by takes principal"),
        ("", None, "not nothing"),
        ("tool", "soon", "--since should be a number"),
    ],
)
def test_what_is_asked_wrongly_is_said(
    settings: Settings, capsys: pytest.CaptureFixture[str], by: str, since: str | None, said: str
) -> None:
    assert asked(settings, by, since) == ExitCode.INPUT
    assert said in capsys.readouterr().err


def test_without_an_audit_log_it_says_how_to_have_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(Settings()) == ExitCode.INPUT
    assert "access.audit.file" in capsys.readouterr().err


def test_a_log_without_a_call_in_that_time_is_nothing_found(settings: Settings, tmp_path: Path) -> None:
    assert asked(settings, file=str(tmp_path / "none")) == ExitCode.NOT_FOUND
