"""Headers printed by a command of the operator's (`headers_command`), for setups with a token helper of their own.

The command runs before the first request and again after a 401: once however many requests wait, and not repeatedly
while the server refuses its output. Its output is never logged, and is kept in memory alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Final

import anyio
import msgspec
import structlog

from mcproxy.concurrency.spawn import Spawn
from mcproxy.settings import UpstreamSettings
from mcproxy.upstream.child.command import CommandFailed, environment, output
from mcproxy.upstream.link import Rejected, Unreachable

log = structlog.get_logger()

TIMEOUT: Final = 10.0
"""Seconds that the command may take."""
MAX_OUTPUT: Final = 16 * 1024
"""Bytes that it may print."""
COOLDOWN: Final = 30.0
"""Seconds in which it is not run again, after its headers were refused or it failed."""

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""The syntax of a field name (RFC 9110, section 5.1)."""
_VALUE: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
"""What a field may hold: no control characters but tabs (RFC 9110, section 5.5). To compile what is left is slow."""
_RESERVED: Final = re.compile(r"host|connection|content-.*|transfer-encoding|mcp-.*|accept.*|te|trailer|upgrade", re.I)
"""Names of fields that the gateway writes itself, or that concern a single connection."""


class PrintedHeaders(msgspec.Struct, frozen=True):
    """Implements `context.LinkCredential`."""

    headers: dict[str, str]

    def __repr__(self) -> str:
        return f"PrintedHeaders({', '.join(self.headers)})"

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple({word for value in self.headers.values() for word in (value, *value.split())})


class HeadersCommand:
    """Implements `context.CredentialSource`. `spawn` owns the runs, which outlive the requests that wait for them."""

    def __init__(
        self,
        spec: UpstreamSettings,
        spawn: Spawn,
        *,
        clock: Callable[[], float],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._spec = spec
        self._spawn = spawn
        self._clock = clock
        self._environ = environ
        self._printed: PrintedHeaders | None = None
        self._failure: str | None = None
        """The reason why the last run failed; None if it did not."""
        self._done: anyio.Event | None = None
        """Set when the current run is over."""
        self._cools_until: float | None = None
        """The time until which it is not run again, after a failure or a refusal of its last output; else None."""
        self.generation = 0
        self.on_trial = False

    def present(self) -> PrintedHeaders | None:
        return self._printed

    async def credential(self) -> PrintedHeaders:
        """The headers that the command printed; runs it if they are unknown. Raises Rejected."""
        if self._printed is None and not self._is_cooling:
            await self._run_once()
        if self._printed is None:
            raise Rejected(self._failure or "headers_command: the gateway is ending")
        return self._printed

    async def challenged(self, status: int, header: str | None, generation: int) -> bool:
        """After a 401, returns True if the command has printed other headers since. Raises Rejected if it failed."""
        if status != 401:
            return False
        if generation != self.generation:
            return True
        if self.on_trial and self._cools_until is None:
            self._cool()
        if not self._is_cooling:
            await self._run_once()
        if self._failure is not None:
            raise Rejected(self._failure)
        if generation != self.generation:
            return True
        self._cool()
        return False

    def accepted(self) -> None:
        self.on_trial = False

    @property
    def _is_cooling(self) -> bool:
        return self._cools_until is not None and self._clock() < self._cools_until

    def _cool(self) -> None:
        """Begins the cooldown, unless it has begun."""
        if not self._is_cooling:
            self._cools_until = self._clock() + COOLDOWN

    async def _run_once(self) -> None:
        """Waits for the current run, or for a new one."""
        if self._done is None:
            self._done = anyio.Event()
            self._spawn(self._run)
        await self._done.wait()

    async def _run(self) -> None:
        try:
            printed = await self._headers()
        except (CommandFailed, Unreachable) as error:
            self._failure = f"headers_command: {error}"
            self._cool()
            log.warning("a headers_command failed", upstream=self._spec.name, why=str(error))
        except Exception as bug:
            # Neither an operator's program nor a bug of ours may take other upstreams down (R1).
            log.exception("a headers_command failed unexpectedly", upstream=self._spec.name)
            self._failure = f"headers_command: an internal error: {type(bug).__name__}"
            self._cool()
        else:
            self._failure = self._cools_until = None
            if printed != self._printed:
                self._printed, self.on_trial = printed, self._printed is not None
                self.generation += 1
        finally:
            done, self._done = self._done, None
            if done is not None:
                done.set()

    async def _headers(self) -> PrintedHeaders:
        spec = self._spec
        env = environment(spec, self._environ)
        written = await output(spec.headers_command, spec.cwd, env, timeout=TIMEOUT, limit=MAX_OUTPUT)
        return PrintedHeaders(parse_headers(written))


def parse_headers(written: bytes) -> dict[str, str]:
    """The headers in a command's output: one JSON object with string values, or lines `Name: value`.

    Raises CommandFailed, which quotes nothing of the output.
    """
    headers = _from_json(written) if written.lstrip()[:1] == b"{" else _from_lines(written)
    if not headers:
        raise CommandFailed("it printed no headers")
    names = [name.lower() for name in headers]
    if len(set(names)) < len(names):
        raise CommandFailed("it printed a header twice")
    for name, value in headers.items():
        if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise CommandFailed("it printed a header with characters that no header may have")
        if _RESERVED.fullmatch(name) is not None:
            raise CommandFailed("it printed a header that the gateway sets itself")
    return headers


def _from_json(written: bytes) -> dict[str, str]:
    try:
        return msgspec.json.decode(written, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The cause would quote the output.
        raise CommandFailed("it printed JSON that is no object of texts") from None


def _from_lines(written: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in filter(None, map(str.strip, written.decode("utf-8", "replace").splitlines())):
        name, colon, value = line.partition(":")
        if not colon or name.strip() in headers:
            raise CommandFailed("it printed neither a JSON object nor lines `Name: value`")
        headers[name.strip()] = value.strip()
    return headers
