"""A file of the sessions that had subscriptions: a restarted gateway refuses them, so that clients subscribe anew.

A session is opened again from its id alone, which holds no subscriptions. A session that had some is refused instead
(404), so that its client initializes and subscribes anew. Without the file, every session from before this process is
refused. Holds no URI, and only a digest of each session.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from mcproxy.call.clients import Listener

MAX_SESSIONS: Final = 100_000
"""Sessions that are read from the file; the oldest are left out."""

log = structlog.get_logger()


class SubscriberJournal:
    """`path` is None where nothing is kept between runs.

    `digests` makes of a session's key what is written, the first, and what earlier runs may have written for it.
    """

    def __init__(self, path: Path | None, digests: Callable[[str], Sequence[str]]) -> None:
        self._path = path
        self._digests = digests
        self._earlier: frozenset[str] = frozenset()
        """Digests of sessions that subscribed before this process began."""
        self._unknown_before = 0.0
        """The Unix time in seconds before which it is unknown whether sessions subscribed."""

    def load(self, issued_after: float, now: float) -> None:
        """Reads the file, and rewrites it without sessions whose ids are too old. Unix times in seconds."""
        self._load(issued_after)
        if self._path is None:
            self._unknown_before = now

    def _load(self, issued_after: float) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lines = self._path.read_text().splitlines() if self._path.exists() else []
            kept = [line for line in lines if _issued(line) > issued_after][-MAX_SESSIONS:]
            self._earlier = frozenset(line.partition(" ")[2] for line in kept)
            if len(kept) < len(lines):
                fresh = self._path.with_suffix(".new")
                fresh.write_text("".join(f"{line}\n" for line in kept))
                fresh.replace(self._path)
        except (OSError, UnicodeDecodeError) as error:
            self._give_up(error)

    def add(self, key: str, issued: int) -> None:
        """Notes that a session subscribed. `issued` is when its id was issued: a Unix time in seconds."""
        if self._path is None:
            return
        try:
            # Opened each time: another gateway of the same user may have rewritten the file.
            with open(self._path, "a", opener=_for_this_user_alone) as file:
                file.write(f"{issued} {self._digests(key)[0]}\n")
        except OSError as error:
            self._give_up(error)

    def end(self, key: str) -> None:
        """Writes nothing: only this process remembers that a session ended."""

    def reopened(self, key: str, listener: Listener) -> None:
        """Writes nothing: only sessions without subscriptions are opened again."""

    def is_lost(self, key: str, issued: int) -> bool:
        # Issue times are whole seconds: a session from the second in which this process began may be its own.
        if issued < int(self._unknown_before):
            return True
        return bool(self._earlier) and not self._earlier.isdisjoint(self._digests(key))

    def _give_up(self, error: Exception) -> None:
        log.warning("subscriptions will be lost with a restart", path=str(self._path), why=str(error))
        self._path = None


def _for_this_user_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _issued(line: str) -> float:
    """The Unix time at which the id in a line was issued; 0 for a damaged line."""
    number, _, digest = line.partition(" ")
    return float(number) if number.isascii() and number.isdigit() and digest else 0
