"""Serve one client over standard input and output, in both eras, until its input ends (basic/transports, stdio).

Writes only messages: whatever else prints to the process's standard output goes to standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

import anyio
import anyio.lowlevel
import structlog
from anyio.abc import TaskGroup

from mcproxy.call.identity import AGGREGATE, ANONYMOUS, Principal
from mcproxy.downstream.handshake.session_store import SessionStore
from mcproxy.downstream.handshake.stdio import HandshakePipe
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.inbound import read_inbound
from mcproxy.downstream.io.send_buffer import pump
from mcproxy.downstream.stateless.stdio import StatelessPipe
from mcproxy.protocol.jsonrpc import INVALID_REQUEST, ErrorObject, ErrorResponse, InvalidMessage

TRANSPORT: Final = "stdio"

EXIT_MARGIN: Final = 2.0
"""Seconds beyond `shutdown_grace` after which serving is cancelled."""

_CHUNK: Final = 65_536
_PIPE_BUF: Final = 4096
"""Bytes that go into a writable pipe without blocking (POSIX)."""

log = structlog.get_logger()


async def serve_stdio(
    context: TransportContext,
    stdin: int | None = None,
    stdout: int | None = None,
    *,
    stop: anyio.Event | None = None,
    principal: Principal = ANONYMOUS,
) -> None:
    """Serves until the input ends (R12) or `stop` is set (R9), then gives calls in flight `shutdown_grace` to end.

    `stdin` and `stdout` are file descriptors, by default the process's own.
    """
    with _own_stdout() if stdout is None else _as_given(stdout) as output:
        await _serve(context, sys.stdin.fileno() if stdin is None else stdin, output, stop or anyio.Event(), principal)


async def _serve(context: TransportContext, stdin: int, stdout: int, stop: anyio.Event, principal: Principal) -> None:
    sessions = SessionStore(context)
    pipe = HandshakePipe(context, sessions, TRANSPORT, principal, AGGREGATE, lambda message: message + b"\n")
    stateless = StatelessPipe(context, principal, AGGREGATE, pipe)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_write, pipe, stateless, stdout, context, tasks)
            tasks.start_soon(_read, pipe, stateless, stdin, context, stop)
            await stop.wait()
            with anyio.move_on_after(context.proxy.shutdown_grace):
                await _drain(pipe, stateless, sessions)
            # The margin begins here, not at `stop`: even a process that gets its processor late can write the rest.
            tasks.cancel_scope.deadline = anyio.current_time() + EXIT_MARGIN
            stateless.cut_off()
            await stateless.wait_idle()
            sessions.drain()
            sessions.cut_off()
            await _wait_idle(pipe)
            pipe.close()
    finally:
        stateless.end()
        pipe.end()
        sessions.close()


async def _drain(pipe: HandshakePipe, stateless: StatelessPipe, sessions: SessionStore) -> None:
    """Accepts no more requests, and returns once none is in flight. Input is still read meanwhile."""
    stateless.drain()
    await stateless.wait_idle()
    # Not earlier: an idle session closes the output at once.
    sessions.drain()
    await _wait_idle(pipe)


async def _wait_idle(pipe: HandshakePipe) -> None:
    if pipe.session is not None:
        await pipe.session.wait_idle()


async def _read(
    pipe: HandshakePipe, stateless: StatelessPipe, stdin: int, context: TransportContext, ended: anyio.Event
) -> None:
    received = context.metrics.bytes_in.labels(TRANSPORT)
    async for line in _lines(stdin, context.proxy.limits.max_body_bytes):
        if line is None:
            sentence = f"a message is larger than {context.proxy.limits.max_body_bytes} bytes (limits.max_body_bytes)"
            pipe.send(ErrorResponse(None, ErrorObject(INVALID_REQUEST, sentence)))
            continue
        received.inc(len(line))
        if not line.strip():
            continue
        try:
            incoming = read_inbound(line)
            if not stateless.receive(incoming):
                await pipe.receive(incoming)
        except InvalidMessage as invalid:
            pipe.send(invalid.response())
    pipe.end_input()
    ended.set()


async def _write(
    pipe: HandshakePipe, stateless: StatelessPipe, stdout: int, context: TransportContext, tasks: TaskGroup
) -> None:
    sent = context.metrics.bytes_out.labels(TRANSPORT)

    async def write(frames: bytes) -> None:
        with anyio.fail_after(context.proxy.write_timeout):
            await _write_all(stdout, frames)
        sent.inc(len(frames))

    def refill() -> bool:
        return any([pipe.refill(), stateless.send_changes()])

    try:
        pipe.send_buffer.refill = refill
        await pump(pipe.send_buffer, write)
    except (OSError, TimeoutError) as error:
        log.info("client gone", transport=TRANSPORT, why=str(error) or "it reads nothing (write_timeout)")
    # Without an output, requests cannot be answered and need not be read.
    tasks.cancel_scope.cancel()


async def _lines(fd: int, limit: int) -> AsyncIterator[bytes | None]:
    """The lines of a file, without line ends; None in place of a line over `limit` bytes."""
    parts: list[bytes] = []
    size = 0
    while chunk := await _read_some(fd):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield b"".join([*parts, end]) if size + len(end) <= limit else None
            parts, size = [], 0
        size += len(rest)
        if size <= limit:
            parts.append(rest)
        else:
            parts = []
    if size:
        yield b"".join(parts) if size <= limit else None


async def _read_some(fd: int) -> bytes:
    try:
        await anyio.wait_readable(fd)
    except PermissionError:
        # epoll refuses regular files, which are always ready.
        await anyio.lowlevel.checkpoint()
    return os.read(fd, _CHUNK)


async def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            await anyio.wait_writable(fd)
        except PermissionError:
            await anyio.lowlevel.checkpoint()
        view = view[os.write(fd, view[:_PIPE_BUF]) :]


@contextmanager
def _own_stdout() -> Iterator[int]:
    """The process's standard output, for messages alone: file descriptor 1 is standard error meanwhile."""
    sys.stdout.flush()
    output = sys.stdout.fileno()
    ours = os.dup(output)
    os.dup2(sys.stderr.fileno(), output)
    try:
        yield ours
    finally:
        sys.stdout.flush()
        os.dup2(ours, output)
        os.close(ours)


@contextmanager
def _as_given(stdout: int) -> Iterator[int]:
    yield stdout
