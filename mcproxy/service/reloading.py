"""The configuration, read again when somebody asks or one of its files changes, and applied where it is valid (R49).

Looks at the files every so often and not for notifications: what editors, mounts and Kubernetes do to them is all seen
alike, on every file system. A file that is still being written is left alone until two looks find the same.
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
from mcproxy.configuration.problems import ConfigurationError
from mcproxy.service import systemd
from mcproxy.settings import Settings
from mcproxy.settings.differences import Difference
from mcproxy.telemetry import logs
from mcproxy.telemetry.metrics import Metrics

log = structlog.get_logger()

LOOK_EVERY: Final = 1.0
"""Seconds between looks at the files."""

Stamps = dict[str, tuple[int, ...] | None]
"""What tells a file from what it was before, by its path; None where there is none."""


class Reloading:
    """`load` reads the configuration, in a thread. `apply` puts it in force, at once, and says what that changed."""

    def __init__(
        self,
        configuration: Configuration,
        load: Callable[[], Configuration],
        apply: Callable[[Settings], Difference],
        metrics: Metrics,
        *,
        tell: systemd.Notify = systemd.not_notified,
        look_every: float = LOOK_EVERY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._configuration = configuration
        self._files = frozenset(map(str, configuration.files))
        self._load = load
        self._apply = apply
        self._metrics = metrics
        self._tell = tell
        self._look_every = look_every
        self._clock = clock
        self._asked = anyio.Event()
        self._read_at = stamps(self._files)
        metrics.config_generation.set(1)
        self._succeeded()

    @property
    def secrets(self) -> frozenset[str]:
        """Those of the configuration in force."""
        return self._configuration.secrets

    @property
    def watching(self) -> bool:
        return self._configuration.settings.proxy.watch

    def ask(self) -> None:
        """Has the configuration read again, whether it changed or not."""
        self._asked.set()

    async def run(self) -> None:
        """Reloads until cancelled."""
        seen = self._read_at
        while True:
            with anyio.move_on_after(self._look_every):
                await self._asked.wait()
            before, seen = seen, await anyio.to_thread.run_sync(stamps, self._files)
            settled = is_settled(before, seen, read_at=self._read_at)
            if self._asked.is_set() or (settled and self.watching):
                self._asked = anyio.Event()
                self._tell(systemd.reloading())
                seen = self._read_at = await self._reload(seen)
                self._tell(systemd.READY)

    async def _reload(self, before: Stamps) -> Stamps:
        """Reads the files, which were so before, and returns how they were when read."""
        try:
            configuration = await anyio.to_thread.run_sync(self._load)
        except ConfigurationError as error:
            self._files |= set(map(str, error.files))
            self._refused(error)
        else:
            self._files = frozenset(map(str, configuration.files))
            self._put_in_force(configuration)
        # One that changed since `before` counts as changed, and is read again.
        after = await anyio.to_thread.run_sync(stamps, self._files)
        return {path: before.get(path, stamp) for path, stamp in after.items()}

    def _put_in_force(self, configuration: Configuration) -> None:
        proxy = configuration.settings.proxy
        # What ends only now still knows the secrets of before.
        logs.configure(proxy.log_format, proxy.log_level, configuration.secrets | self._configuration.secrets)
        self._configuration = configuration
        self._applied(self._apply(configuration.settings))

    def _refused(self, error: ConfigurationError) -> None:
        self._metrics.config_reloads.labels("invalid").inc()
        self._metrics.config_last_reload_successful.set(0)
        for problem in error.problems:
            log.error("the configuration is invalid and changes nothing", problem=str(problem))

    def _applied(self, difference: Difference) -> None:
        self._metrics.config_reloads.labels("applied").inc()
        if difference.applies:
            self._metrics.config_generation.inc()
        self._succeeded()
        tell(difference)

    def _succeeded(self) -> None:
        self._metrics.config_last_reload_successful.set(1)
        self._metrics.config_last_reload_success.set(self._clock())


def is_settled(before: Stamps, now: Stamps, *, read_at: Stamps) -> bool:
    """Whether files are others than they were when read, and nobody is at it any more."""
    return now == before and now != read_at


def stamps(files: Iterable[str]) -> Stamps:
    """Where a file lies counts too: a link may lead elsewhere by now, to one that is as old and as large."""
    return {path: _stamp(path) for path in sorted(files)}


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def tell(difference: Difference) -> None:
    """One line for each difference, in the names of keys."""
    for name in difference.added:
        log.info("upstream added", upstream=name)
    for name in difference.removed:
        log.info("upstream removed", upstream=name)
    for change in difference.changed:
        log.info("upstream changed", upstream=change.name, keys=change.keys, connects_anew=change.reconnects)
    if difference.reordered:
        log.info("upstreams reordered")
    for key in difference.proxy:
        log.info("setting changed", key=f"proxy.{key}")
    for key in difference.access:
        log.info("setting changed", key=f"access.{key}")
    for name in difference.endpoints:
        log.info("endpoint changed", endpoint=name)
    for key in difference.restart:
        log.warning("setting changed, but needs a restart: its old value stays in force", key=key)
    log.info("configuration reloaded" if difference else "configuration read again: nothing changed")
