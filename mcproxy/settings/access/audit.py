"""What can be said of the audit: a line for each call, in a file that only grows."""

from __future__ import annotations

from typing import Literal

from mcproxy.settings.section import Bytes, Glob, Positive, Seconds, Section


class AuditSettings(Section):
    """What is written down of each call: who, what, how it was decided and how it went. A line of JSON for each."""

    file: str | None = None
    """The file, of this gateway alone, relative to the configuration. Nothing is written where it is not given."""
    arguments: Literal["hash", "redacted", "none"] = "hash"
    """How much is told of arguments: a keyed hash, the same for the same; what is in them, but for secrets; nothing."""
    redact: tuple[Glob, ...] = ()
    """With `redacted`: globs of arguments' names whose values are left out, beside those that sound like secrets."""
    fail: Literal["open", "closed"] = "open"
    """What becomes of calls that cannot be written down. `open`: they are served, and their records counted as lost.

    `closed`: they are refused before anybody sees them, and a record waits until it can be written.
    """
    rotate: bool = True
    """Begin a new file when one has `max_bytes`. Else that is left to others: a file that is moved is made anew."""
    max_bytes: Bytes = 100 * 1024 * 1024
    """Of one file."""
    files: Positive = 10
    """Full files that are kept, `FILE.1` the latest."""
    max_queued: Positive = 10_000
    """Records that wait to be written. `closed` counts calls that run among them."""
    patience: Seconds = 5
    """With `fail: closed`: how long a call waits for room among them before it is refused."""
