"""Reload the configuration on request or when one of its files changes, and apply it if it is valid (R49).

Polls the files instead of using notifications: every way in which editors, mounts and Kubernetes replace files looks
the same, on every file system. A file that is still being written is left alone until two polls find it the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import structlog

from mcproxy.configuration.loading import Configuration
from mcproxy.configuration.problems import ConfigurationError, RefusedReload
from mcproxy.service import systemd
from mcproxy.settings import Settings
from mcproxy.settings.differences import Difference
from mcproxy.telemetry import logs
from mcproxy.telemetry.metrics import Metrics

log = structlog.get_logger()

POLL_INTERVAL: Final = 1.0
"""Seconds between polls of the files."""

Stamps = dict[str, tuple[int, ...] | None]
"""Device, inode, size and modification time of each file, by path; None for a missing file."""


class Reloading:
    """`load` reads the configuration, in a thread. `apply` puts it in force at once and returns the difference."""

    def __init__(
        self,
        configuration: Configuration,
        load: Callable[[], Configuration],
        apply: Callable[[Settings], Difference],
        metrics: Metrics,
        *,
        notify: systemd.Notify = systemd.not_notified,
        poll_interval: float = POLL_INTERVAL,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._configuration = configuration
        self._files = frozenset(map(str, configuration.files))
        self._load = load
        self._apply = apply
        self._metrics = metrics
        self._notify = notify
        self._poll_interval = poll_interval
        self._clock = clock
        self._asked = anyio.Event()
        self._is_quiet = False
        """Whether all who asked did so quietly."""
        self._read_at = stamps(self._files)
        self.refused: RefusedReload | None = None
        """The last reload, if it was refused; None after one that was applied."""
        metrics.config_generation.set(1)
        self._succeeded()

    @property
    def secrets(self) -> frozenset[str]:
        """The secrets of the configuration in force."""
        return self._configuration.secrets

    @property
    def path(self) -> Path:
        """The configuration's file."""
        return self._configuration.path

    @property
    def watching(self) -> bool:
        """Whether the files are watched; requested reloads happen in any case."""
        return self._configuration.settings.proxy.watch

    def ask(self, *, quietly: bool = False) -> None:
        """Requests a reload, whether files changed or not. `quietly`: nothing is logged if it changes nothing."""
        self._is_quiet = quietly and (self._is_quiet or not self._asked.is_set())
        self._asked.set()

    async def run(self) -> None:
        """Reloads until cancelled."""
        seen = self._read_at
        while True:
            with anyio.move_on_after(self._poll_interval):
                await self._asked.wait()
            before, seen = seen, await anyio.to_thread.run_sync(stamps, self._files)
            settled = is_settled(before, seen, read_at=self._read_at)
            if self._asked.is_set() or (settled and self.watching):
                is_quiet, self._asked = self._asked.is_set() and self._is_quiet, anyio.Event()
                self._notify(systemd.reloading())
                seen = self._read_at = await self._reload(seen, is_quiet)
                self._notify(systemd.READY)

    async def _reload(self, before: Stamps, is_quiet: bool) -> Stamps:
        """Reloads, and returns the stamps of the files that were read; `before` are those of the last poll."""
        try:
            configuration = await anyio.to_thread.run_sync(self._load)
        except ConfigurationError as error:
            self._files |= set(map(str, error.files))
            self._refused(error)
        else:
            self._files = frozenset(map(str, configuration.files))
            self._put_in_force(configuration, is_quiet)
        # A file that changed since `before` counts as changed, and is read again.
        after = await anyio.to_thread.run_sync(stamps, self._files)
        return {path: before.get(path, stamp) for path, stamp in after.items()}

    def _put_in_force(self, configuration: Configuration, is_quiet: bool) -> None:
        proxy = configuration.settings.proxy
        # Links that are ending still hold the old secrets.
        logs.configure(proxy.log_format, proxy.log_level, configuration.secrets | self._configuration.secrets)
        self._configuration = configuration
        log_warnings(configuration)
        self._applied(self._apply(configuration.settings), is_quiet)

    def _refused(self, error: ConfigurationError) -> None:
        self._metrics.config_reloads.labels("invalid").inc()
        self._metrics.config_last_reload_successful.set(0)
        for problem in error.problems:
            log.error("the configuration is invalid and was not applied", problem=str(problem))
        since = self._clock() if self.refused is None else self.refused.since
        self.refused = RefusedReload(since, tuple(error.problems))

    def _applied(self, difference: Difference, is_quiet: bool) -> None:
        self._metrics.config_reloads.labels("applied").inc()
        if difference.applies:
            self._metrics.config_generation.inc()
        self._succeeded()
        if difference or not is_quiet:
            log_difference(difference)

    def _succeeded(self) -> None:
        self.refused = None
        self._metrics.config_last_reload_successful.set(1)
        self._metrics.config_last_reload_success.set(self._clock())


def is_settled(before: Stamps, now: Stamps, *, read_at: Stamps) -> bool:
    """Whether files differ from when they were read, and have stopped changing."""
    return now == before and now != read_at


def stamps(files: Iterable[str]) -> Stamps:
    """The stamps of the files. Include device and inode: a link may point to another file of the same age and size."""
    return {path: _stamp(path) for path in sorted(files)}


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def log_warnings(configuration: Configuration) -> None:
    """Logs settings that are valid and probably a mistake."""
    for warning in configuration.warnings:
        log.warning("the configuration is valid, and probably has a mistake", problem=str(warning))


def log_difference(difference: Difference) -> None:
    """Logs one line for each difference, by key."""
    for name in difference.added:
        log.info("upstream added", upstream=name)
    for name in difference.removed:
        log.info("upstream removed", upstream=name)
    for change in difference.changed:
        log.info("upstream changed", upstream=change.name, keys=change.keys, reconnects=change.reconnects)
    if difference.reordered:
        log.info("upstreams reordered")
    for key in difference.proxy:
        log.info("setting changed", key=f"proxy.{key}")
    for key in difference.access:
        log.info("setting changed", key=f"access.{key}")
    for name in difference.endpoints:
        log.info("endpoint changed", endpoint=name)
    for name in difference.features:
        log.info("feature changed", feature=name)
    for key in difference.restart:
        log.warning("setting changed, but needs a restart: the old value stays in force", key=key)
    log.info("configuration reloaded" if difference else "configuration reloaded: nothing changed")
