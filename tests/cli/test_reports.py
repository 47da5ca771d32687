"""What `mcproxy check --connect` prints of each upstream."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mcproxy.cli.reports import UpstreamReport, connect, remarks, report_row
from mcproxy.cli.runtime import ExitCode
from mcproxy.configuration.loading import read
from tests.fakes.authorization import authorization

pytestmark = pytest.mark.anyio

READY = UpstreamReport(
    "git", "git", True, "stdio", "2025-11-25", "handshake", 0.5, 3, 1, 1, 0, None, {"a b": "git__a_b"}, {"": "no"}
)
DOWN = UpstreamReport("web", "", False, "http", None, None, None, 0, 0, 0, 0, "refused", {}, {})


def test_an_upstream_is_a_row_and_its_oddities_are_remarks() -> None:
    offers = "3 tools, 2 resources, 0 prompts"
    assert report_row(READY) == ("git", "ready", "stdio", "2025-11-25 (handshake)", offers, "0.50 s", "git__*")
    assert remarks(READY) == ["git: a b is exposed as git__a_b", "git: an entry is hidden: no"]
    assert report_row(DOWN)[1:4] == ("failed", "http", "")
    assert remarks(DOWN) == ["web: refused"]


def test_r87_a_prefix_that_is_not_the_name_is_told() -> None:
    report = replace(READY, name="my_server", prefix="my-server", renamed={}, refused={})
    assert report_row(report)[-1] == "my-server__*"
    assert remarks(report) == ["my_server: its names begin with my-server__; `prefix` chooses another beginning"]


def test_a_server_that_asks_on_a_shared_connection_is_told_with_the_setting() -> None:
    said = remarks(replace(READY, asks=True, renamed={}, refused={}))
    assert len(said) == 1
    assert "`connection: principal`" in said[0]


async def test_r85_a_server_that_wants_oauth_is_reported_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with authorization() as server:
        config = tmp_path / "mcproxy.json"
        config.write_text(json.dumps({"mcpServers": {"my web": {"url": server.url, "type": "http"}}}))
        assert await connect(read(config).settings, as_json=False, strict=True) is ExitCode.FAILED
    said = capsys.readouterr().err
    assert "this server wants OAuth: add `oauth: {}` to it, then run `mcproxy login 'my web'`" in said
