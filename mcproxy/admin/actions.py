"""Operators' actions on a running gateway: restart or retry an upstream, forget its login, change the log level.

Each is logged and audited, whether it comes from a button on the status page or from a command. Authenticates no one.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

import structlog

from mcproxy.access.audit.operator_records import OperatorRecord, RecordAction
from mcproxy.configuration.references import suggestion
from mcproxy.telemetry import logs

log = structlog.get_logger()

LEVELS: Final = ("debug", "info", "warning", "error", "critical")


class Restartable(Protocol):
    """One upstream that runs."""

    def restart(self) -> None:
        """Ends its connections, a child with them, and connects anew. Calls in flight fail."""

    def retry(self) -> None:
        """Starts an attempt to connect now, if it waits for the next one."""

    async def forget_login(self) -> None:
        """Revokes the gateway's own grant at its authorization server, and forgets it."""


class NoSuchUpstream(Exception):
    """No upstream of this name runs. The text says that it is disabled, which one may be meant, or which ones run."""

    def __init__(self, name: str, running: Collection[str], disabled: Collection[str] = ()) -> None:
        if name in disabled:
            super().__init__(f"server {name!r} is disabled: `mcproxy enable {shlex.quote(name)}` starts it")
            return
        hint = suggestion(name, running) or f"; there are {', '.join(running) or 'none'}"
        super().__init__(f"no server {name!r} runs here{hint}")


class Actions:
    """What operators may do. `upstreams` returns those that run, by name; `disabled`, the names of those that may not.

    `record` writes each action down; `clock` gives its time.
    """

    def __init__(
        self,
        upstreams: Callable[[], Mapping[str, Restartable]],
        record: RecordAction,
        clock: Callable[[], float] = time.time,
        *,
        disabled: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._upstreams = upstreams
        self._disabled = disabled
        self._record = record
        self._clock = clock

    def restart(self, name: str, by: str) -> None:
        """Raises NoSuchUpstream."""
        self._found(name).restart()
        self._note(by, "restart", name)

    def retry(self, name: str, by: str) -> None:
        """Raises NoSuchUpstream."""
        self._found(name).retry()
        self._note(by, "retry", name)

    async def forget_login(self, name: str, by: str) -> None:
        """Raises NoSuchUpstream. A grant that the authorization server cannot be told of is forgotten even so."""
        upstream = self._found(name)
        self._note(by, "forget login", name)
        await upstream.forget_login()

    def set_log_level(self, level: str, by: str) -> None:
        """Raises ValueError for an unknown level."""
        if level not in LEVELS:
            raise ValueError(f"{level!r} is no level: it should be one of {', '.join(LEVELS)}")
        logs.set_level(level)
        self._note(by, "log level", level)

    def missing(self, name: str) -> NoSuchUpstream:
        """The error that says why no upstream of this name runs."""
        return NoSuchUpstream(name, self._upstreams(), self._disabled())

    def _found(self, name: str) -> Restartable:
        upstreams = self._upstreams()
        if name not in upstreams:
            raise self.missing(name)
        return upstreams[name]

    def _note(self, by: str, action: str, subject: str) -> None:
        log.warning("operator action", action=action, subject=subject, by=by)
        self._record(OperatorRecord(self._clock(), by, action, subject))
