"""The twin of `mcproxy.service.reloading`: files as editors, mounts and Kubernetes change them."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
import structlog

from mcproxy.configuration.loading import Configuration, load_configuration
from mcproxy.service.reloading import Reloading, Stamps, is_settled
from mcproxy.settings import Settings
from mcproxy.settings.differences import Difference, diff
from mcproxy.telemetry.metrics import Metrics
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

LOOK = 0.02


@dataclass
class Watched:
    """A configuration that is watched, and what came of it."""

    path: Path
    metrics: Metrics
    settings: Settings
    reloading: Reloading | None = None
    told: list[str] = field(default_factory=list)
    readings: int = 0
    now: float = 7.0
    _news: anyio.Event = field(default_factory=anyio.Event)

    def write(self, text: str) -> None:
        self.path.write_text(text)

    def load(self) -> Configuration:
        return load_configuration(self.path, {})

    def apply(self, settings: Settings) -> Difference:
        difference = diff(self.settings, settings)
        self.settings = settings
        self._stir()
        return difference

    def tell(self, state: str) -> None:
        self.told.append(state.partition("\n")[0])
        if self.told[-1] == "READY=1":
            self.readings += 1
            self._stir()

    def _stir(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        with anyio.fail_after(GUARD):
            while not holds():
                await self._news.wait()

    @property
    def names(self) -> list[str]:
        return [spec.name for spec in self.settings.upstreams]

    def count(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


@asynccontextmanager
async def watched(path: Path) -> AsyncIterator[Watched]:
    configuration = load_configuration(path, {})
    it = Watched(path, Metrics(), configuration.settings)
    it.reloading = Reloading(
        configuration, it.load, it.apply, it.metrics, notify=it.tell, poll_interval=LOOK, clock=lambda: it.now
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(it.reloading.run)
        yield it
        tasks.cancel_scope.cancel()


def text(*names: str, **proxy: object) -> str:
    return json.dumps({"mcpServers": {name: {"command": "run"} for name in names}, "proxy": proxy})


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mcproxy.json"
    path.write_text(text("a"))
    return path


async def test_r49_a_file_that_is_written_over_is_read_again(config: Path) -> None:
    async with watched(config) as it:
        it.write(text("a", "b"))
        await it.until(lambda: it.names == ["a", "b"])


async def test_r49_a_file_that_an_editor_renames_into_place_is_read_again(config: Path) -> None:
    async with watched(config) as it:
        fresh = config.with_suffix(".new")
        fresh.write_text(text("b"))
        fresh.rename(config)
        await it.until(lambda: it.names == ["b"])


async def test_r49_the_links_that_kubernetes_swaps_are_followed(tmp_path: Path) -> None:
    for version, name in (("1", "a"), ("2", "b")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "mcproxy.json").write_text(text(name))
        os.utime(tmp_path / version / "mcproxy.json", (1, 1))
    (tmp_path / "..data").symlink_to("1")
    (tmp_path / "mcproxy.json").symlink_to("..data/mcproxy.json")
    async with watched(tmp_path / "mcproxy.json") as it:
        (tmp_path / "..data_tmp").symlink_to("2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        await it.until(lambda: it.names == ["b"])


async def test_r49_what_the_configuration_refers_to_is_of_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("sentinel-one")
    (tmp_path / "vars").write_text("A=1")
    config = tmp_path / "mcproxy.json"
    server = {"command": "run", "env": {"T": "${file:token}"}, "envFile": "vars"}
    config.write_text(json.dumps({"mcpServers": {"a": server}, "proxy": {}}))
    async with watched(config) as it:
        (tmp_path / "token").write_text("sentinel-two")
        await it.until(lambda: it.settings.upstreams[0].env["T"] == "sentinel-two")
        (tmp_path / "vars").write_text("A=22")
        await it.until(lambda: it.settings.upstreams[0].env["A"] == "22")


async def test_r49_an_invalid_file_changes_nothing_and_is_counted(config: Path) -> None:
    async with watched(config) as it:
        assert it.count("mcproxy_config_generation") == 1
        with structlog.testing.capture_logs() as logs:
            it.write('{"mcpServers": {"a": {"comand": "run"}}, "proxy": {}}')
            await it.until(lambda: it.readings == 1)
        assert any("comand" in entry.get("problem", "") for entry in logs)
        assert it.names == ["a"]
        assert it.count("mcproxy_config_reloads_total", result="invalid") == 1
        assert it.count("mcproxy_config_last_reload_successful") == 0
        it.write(text("c"))
        await it.until(lambda: it.names == ["c"])
        await it.until(lambda: it.readings == 2)
        assert it.count("mcproxy_config_last_reload_successful") == 1
        assert it.count("mcproxy_config_last_reload_success_timestamp_seconds") == 7
        assert it.count("mcproxy_config_generation") == 2


async def test_a_refused_reload_is_known_until_one_is_applied(config: Path) -> None:
    async with watched(config) as it:
        assert it.reloading is not None
        assert it.reloading.refused is None
        it.write('{"mcpServers": {"a": {"comand": "run"}}, "proxy": {}}')
        await it.until(lambda: it.readings == 1)
        refused = it.reloading.refused
        assert refused is not None
        assert refused.since == 7
        assert any("comand" in str(problem) and problem.place for problem in refused.problems)
        it.now = 8.0
        it.write('{"mcpServers": {"a": {"commnd": "run"}}, "proxy": {}}')
        await it.until(lambda: it.readings == 2)
        again = it.reloading.refused
        assert again is not None
        assert again.since == refused.since
        assert any("commnd" in str(problem) for problem in again.problems)
        it.write(text("a"))
        await it.until(lambda: it.readings == 3)
        assert it.reloading.refused is None


async def test_r49_a_file_that_was_missing_heals_the_configuration_when_it_comes(tmp_path: Path) -> None:
    config = tmp_path / "mcproxy.json"
    config.write_text(text("a"))
    async with watched(config) as it:
        wants = {"mcpServers": {"a": {"command": "run", "env": {"T": "${file:late}"}}}, "proxy": {}}
        config.write_text(json.dumps(wants))
        await it.until(lambda: it.readings == 1)
        (tmp_path / "late").write_text("here")
        await it.until(lambda: it.settings.upstreams[0].env.get("T") == "here")


async def test_r49_a_file_that_is_gone_changes_nothing(config: Path) -> None:
    async with watched(config) as it:
        it.path.rename(it.path.with_suffix(".old"))
        await it.until(lambda: it.readings == 1)
        assert it.names == ["a"]


def test_a_file_is_left_alone_while_it_is_written() -> None:
    old: Stamps = {"f": (1,)}
    half: Stamps = {"f": (2,)}
    assert not is_settled(old, half, read_at=old)
    assert not is_settled(half, {"f": (3,)}, read_at=old)
    assert is_settled(half, half, read_at=old)
    assert not is_settled(half, half, read_at=half)


async def test_of_a_reload_that_was_asked_for_quietly_nothing_is_logged_where_it_changes_nothing(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with watched(config) as it:
        assert it.reloading is not None
        it.reloading.ask(quietly=True)
        await it.until(lambda: it.readings == 1)
        it.reloading.ask()
        await it.until(lambda: it.readings == 2)
        it.reloading.ask(quietly=True)
        it.write(text("a", "b"))
        await it.until(lambda: it.names == ["a", "b"])
    said = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert said[0] == "configuration reloaded: nothing changed"
    assert "upstream added" in said[1:]
    assert "configuration reloaded: nothing changed" not in said[1:]


async def test_with_watching_off_a_wish_alone_counts(config: Path) -> None:
    async with watched(config) as it:
        assert it.reloading is not None
        it.reloading.ask()
        await it.until(lambda: it.readings == 1)
        assert it.told == ["RELOADING=1", "READY=1"]
        it.write(text("b", watch=False))
        it.reloading.ask()
        await it.until(lambda: it.readings == 2)
        assert not it.reloading.watching


async def test_r44_the_differences_are_told_without_their_values(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with watched(config) as it:
        server = {"command": "run", "env": {"TOKEN": "sentinel"}}
        proxy = {"port": 9, "log_format": "json"}
        it.write(json.dumps({"mcpServers": {"a": server, "b": server}, "proxy": proxy}))
        await it.until(lambda: it.readings == 1)
    said = capsys.readouterr().err
    assert "sentinel" not in said
    entries = {entry["event"]: entry for entry in map(json.loads, said.splitlines())}
    assert entries.keys() >= {"upstream added", "upstream changed", "configuration reloaded"}
    assert next(entry for event, entry in entries.items() if "restart" in event)["key"] == "proxy.port"
