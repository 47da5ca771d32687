"""Settings of the audit log (`access.audit`): a line of JSON for each call, appended to a file."""

from typing import Literal

from mcproxy.settings.section import Bytes, Glob, Positive, Seconds, Section


class AuditSettings(Section):
    """The audit log (`access.audit`)."""

    file: str | None = None
    """The file, relative to the configuration; no other process may write it. If not given, nothing is recorded."""
    arguments: Literal["hash", "redacted", "none"] = "hash"
    """How arguments are recorded: `hash`, a keyed hash, equal for equal arguments; `redacted`, without secrets; `none`.
    """
    redact: tuple[Glob, ...] = ()
    """With `redacted`: globs of arguments whose values are left out, beside those with names of secrets."""
    fail: Literal["open", "closed"] = "open"
    """What happens to calls while the file cannot be written. `open`: they run, and lost records are counted.

    `closed`: new calls are refused, and records wait until they can be written.
    """
    rotate: bool = True
    """Begin a new file at `max_bytes`. If false, rotation is left to another program: a moved file is created anew."""
    max_bytes: Bytes = 100 * 1024 * 1024
    """Bytes of one file."""
    files: Positive = 10
    """Full files that are kept; `FILE.1` is the latest."""
    max_queued: Positive = 10_000
    """Records that wait to be written. With `closed`, running calls count too."""
    patience: Seconds = 5
    """With `fail: closed`: time that a call waits for room in the queue before it is refused."""
