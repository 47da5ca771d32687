"""A child process as a `Duplex`: one JSON message a line on its stdin and stdout (basic/transports, stdio).

Starts no shell. The child runs under `reaper`, so that every process that it starts ends with it, and with the gateway
(requirement R11). Knows no era: the conversation reads the lines.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from io import RawIOBase
from pathlib import Path
from typing import Final

import anyio
import anyio.lowlevel
import structlog
from anyio.abc import ByteReceiveStream, Process

from mcproxy.protocol.jsonrpc import Message, encode
from mcproxy.protocol.pieces import Pieces
from mcproxy.upstream.child.command import environment, locate, start, starting
from mcproxy.upstream.child.leniency import SpreadMessage, after_prompt, without_colours
from mcproxy.upstream.child.stdin import ChildStdin, stdin_pipe
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.link import BOM, Duplex, NotAccepted, Receive, task_group
from mcproxy.upstream.stderr_tail import LineRateLimit

log = structlog.get_logger()

EXIT_GRACE: Final = 0.4
"""Seconds from a child's exit to the end of its stdout, and again to the end of its stderr (R13: within 1 s)."""
LINES_PER_TURN: Final = 10
"""Lines that are read in a row before other tasks have a turn (R1): of each, hundreds of clients may be told."""
QUOTED_STDERR_LINES: Final = 10
"""The last lines of stderr that the reason of an exit quotes."""


class LineTooLong(Exception):
    """A line is longer than the decoder's limit in bytes."""


class LineDecoder:
    """Takes chunks split anywhere; `limit` is the most bytes of one line."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pending = Pieces()

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, in order, without their line ends. Raises LineTooLong."""
        head, *rest = chunk.split(b"\n")
        self._keep(head)
        if not rest:
            return []
        lines = [self._pending.taken(), *rest[:-1]]
        self._keep(rest[-1])
        return lines

    def _keep(self, part: bytes) -> None:
        self._pending.add(part)
        if self._pending.size > self._limit:
            raise LineTooLong(f"a message is larger than {self._limit} bytes (max_message_bytes)")


@asynccontextmanager
async def child(context: LinkContext, environ: Mapping[str, str] = os.environ) -> AsyncIterator[Duplex]:
    """Runs a child. On leaving, its stdin is closed; then it gets SIGTERM, then its whole process tree SIGKILL."""
    spec = context.spec
    assert spec.command is not None, "a child has a command"
    env = environment(spec, environ)
    command = locate(spec.command, spec.cwd, env)
    context.stderr.begin()
    context.stray_output = ""
    async with AsyncExitStack() as stack:
        with starting(command):
            child_end, stdin = await stack.enter_async_context(stdin_pipe())
            try:
                held, ours = os.pipe()
                lifeline = stack.enter_context(os.fdopen(ours, "wb", buffering=0))
                process = await start(
                    [command, *spec.args], spec.cwd, env, held, stdin=child_end, stderr=subprocess.PIPE
                )
            finally:
                os.close(child_end)
        context.metrics.child_starts.labels(spec.name).inc()
        try:
            pipe = _Child(process, stdin, context)
            async with task_group() as tasks:
                tasks.start_soon(pipe.watch_stdin)
                tasks.start_soon(pipe.read_stderr)
                tasks.start_soon(pipe.wait_exit)
                yield pipe
        finally:
            with anyio.CancelScope(shield=True):
                await _stop(process, stdin, lifeline, spec.timeouts.shutdown)


class _Child:
    """Implements `link.Duplex`."""

    def __init__(self, process: Process, stdin: ChildStdin, context: LinkContext) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin = stdin
        self._stdout: ByteReceiveStream = process.stdout
        self._stderr: ByteReceiveStream = process.stderr
        self._context = context
        self._reading = anyio.CancelScope()
        self._end_reason = ""
        self._has_ended = False
        """Whether nothing more can be asked: it exited, or its stdout ended."""
        self._spread = SpreadMessage(context.spec.max_message_bytes)
        self._stderr_ended = anyio.Event()
        self._stdout_ended = anyio.Event()
        self.heard = 0

    async def send(self, message: Message) -> None:
        if self._has_ended:  # A helper that it left behind may hold the other end of its stdin.
            raise NotAccepted("the child has closed its output, or exited")
        try:
            await self._stdin.write(encode(message) + b"\n")
        except anyio.BrokenResourceError as error:
            raise NotAccepted("the child takes no more input") from error

    async def watch_stdin(self) -> None:
        """Ends the connection if the child does not read its stdin for `idle` seconds, or has closed it."""
        timeout = self._context.spec.timeouts.idle
        try:
            await self._stdin.watch(timeout)
        except TimeoutError:
            self._end(f"the child did not read its input for {timeout:g} s")
            return
        with anyio.move_on_after(EXIT_GRACE):
            await self._stdout_ended.wait()  # If the child died, the end of its output tells more.
        self._end("the child closed its input")

    def _end(self, reason: str) -> None:
        self._end_reason = reason
        self._reading.cancel()

    async def read_stderr(self) -> None:
        """Keeps the last lines of the child's stderr, and logs them."""
        rate_limit = LineRateLimit()
        try:
            async for chunk in self._stderr:
                self.heard += 1
                lines = self._context.stderr.feed(chunk)
                self._log(*rate_limit.admit(lines, self._context.spec.stderr_lines, anyio.current_time()))
        finally:
            self._log([], rate_limit.take_suppressed())
        self._stderr_ended.set()

    def _log(self, lines: list[str], suppressed: int) -> None:
        if suppressed:
            log.debug("more on stderr", upstream=self._context.spec.name, lines=suppressed)
        for line in lines:
            log.debug("stderr", upstream=self._context.spec.name, line=line)

    async def wait_exit(self) -> None:
        """Ends reading soon after the child has exited: a grandchild may hold its stdout open."""
        await self._process.wait()
        self._has_ended = True
        with anyio.move_on_after(EXIT_GRACE):
            await self._stdout_ended.wait()
        self._reading.cancel()

    async def read(self, receive: Receive) -> str:
        try:
            with self._reading:
                await self._read(receive)
        except LineTooLong as error:
            return str(error)
        finally:
            self._has_ended = True
            self._stdout_ended.set()
        return self._end_reason or await self._exit_reason()

    async def _read(self, receive: Receive) -> None:
        decoder = LineDecoder(self._context.spec.max_message_bytes)
        async for chunk in self._stdout:
            self.heard += 1
            for count, line in enumerate(decoder.feed(chunk), 1):
                taken = self._take(line, receive)
                if taken is not None:
                    await taken
                if count % LINES_PER_TURN == 0:
                    await anyio.lowlevel.checkpoint()

    def _take(self, line: bytes, receive: Receive) -> Awaitable[None] | None:
        """Takes a line, as `Receive` does a message.

        Banners and log lines are told from messages by their first character, as there may be many (R16).
        """
        bare = line.strip()
        if bare[:1] == b"{" and bare[-1:] == b"}" and not self._spread.is_begun:
            return receive(bare)
        return self._take_odd(line, receive)

    def _take_odd(self, line: bytes, receive: Receive) -> Awaitable[None] | None:
        oddities = self._context.oddities
        was_begun = self._spread.is_begun
        message = self._spread.take(line, oddities)
        if message is not None:
            return receive(message)
        if self._spread.is_begun:
            if not was_begun:
                self._context.keep_stray_output(line)
            return None
        bare = without_colours(line.removeprefix(BOM), oddities)
        if bare.startswith((b"{", b"[")):
            if bare[-1:] not in (b"}", b"]"):
                self._context.keep_stray_output(bare)
            return receive(bare)
        answer = after_prompt(bare, oddities)
        if answer is not None:
            return receive(answer)
        if bare:
            self._context.note_stray_output(bare)
        return None

    async def _exit_reason(self) -> str:
        with anyio.move_on_after(EXIT_GRACE):
            await self._process.wait()
            await self._stderr_ended.wait()
        said = " | ".join(self._context.stderr.own_lines[-QUOTED_STDERR_LINES:])
        return (
            f"{_exit_sentence(self._process.returncode)}; its stderr: {said}"
            if said
            else _exit_sentence(self._process.returncode)
        )


def _exit_sentence(status: int | None) -> str:
    if status is None:
        return "the child closed its output"
    if status < 0:
        return f"the child was killed by {signal.Signals(-status).name}"
    return f"the child exited with status {status}"


async def _stop(process: Process, stdin: ChildStdin, lifeline: RawIOBase, timeout: float) -> None:
    """Ends the child. Its output is read meanwhile: a child that blocks in a write could not exit (R11)."""
    assert process.stdout is not None
    assert process.stderr is not None
    async with anyio.create_task_group() as readers:
        readers.start_soon(_discard, process.stdout)
        readers.start_soon(_discard, process.stderr)
        if not await _ends_by_itself(process, stdin, timeout):
            await _kill(process, lifeline, timeout)
        readers.cancel_scope.cancel()
    await process.aclose()
    if process.returncode == -signal.SIGKILL:
        _kill_session(process.pid)


async def _ends_by_itself(process: Process, stdin: ChildStdin, timeout: float) -> bool:
    stdin.close()
    if await _exits(process, timeout):
        return True
    with suppress(ProcessLookupError):
        process.terminate()
    return await _exits(process, timeout)


async def _kill(process: Process, lifeline: RawIOBase, timeout: float) -> None:
    """Closes the lifeline, upon which the reaper kills every process of its session."""
    lifeline.close()
    if not await _exits(process, timeout):
        with suppress(ProcessLookupError):
            process.kill()


def _kill_session(leader: int) -> None:
    """If the reaper was SIGKILLed, kill every process still in its session."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name in parentheses may hold any characters; state, parent, group and session follow it.
            if int(stat.read_bytes().rpartition(b")")[2].split()[3]) == leader:
                os.kill(int(stat.parent.name), signal.SIGKILL)


async def _exits(process: Process, timeout: float) -> bool:
    with anyio.move_on_after(timeout):
        await process.wait()
    return process.returncode is not None


async def _discard(stream: ByteReceiveStream) -> None:
    async for _ in stream:
        pass
