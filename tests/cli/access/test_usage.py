"""`mcproxy usage`: the audit log of a gateway that ran, by whatever columns are asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcproxy.cli.access.usage import usage
from mcproxy.cli.runtime import ExitCode
from mcproxy.settings import Settings
from tests.access.audit.test_usage import line

LOCK = {
    "lockfile": 1,
    "upstreams": {"git": {"tools": {"log": {"sha256": "0" * 64}, "push": {"sha256": "0" * 64}}}},
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "audit.jsonl").write_bytes(line() * 2 + line(principal="eve", outcome="denied"))
    (tmp_path / "mcproxy.lock").write_text(json.dumps(LOCK))
    access = {"audit": {"file": str(tmp_path / "audit.jsonl")}, "pins": {"file": str(tmp_path / "mcproxy.lock")}}
    return Settings.model_validate({"access": access})


def asked(settings: Settings, by: str = "principal,tool", since: str | None = None, file: str | None = None) -> int:
    return usage(settings, by=by, since=since, file=file, as_json=False)


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


def test_json_has_everything(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert usage(settings, by="upstream", since=None, file=None, as_json=True) == ExitCode.OK
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
