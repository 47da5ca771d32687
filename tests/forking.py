"""Starts Python programs as forks of a process that has imported what they need (`tests.fork_server`).

In CI, and where a coverage is taken, each is started anew, as its users start it; and also by a process that does not
adopt orphans, as it could not wait for what was forked.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process

from tests.depth import IN_CI
from tests.processes import FORKED_IN, adopts_orphans

ROOT: Final = Path(__file__).parents[1]
MAX_ANSWER = 64
IN_FULL: Final = IN_CI or "COVERAGE_PROCESS_CONFIG" in os.environ
"""Whether each program goes all the way of its start."""


@dataclass
class ForkServer:
    """Started when it is first needed, and ended by `end_all`."""

    modules: Sequence[str]
    """What programs find imported."""
    options: Sequence[str] = ()
    """Options of the interpreter."""
    _connection: socket.socket | None = None
    _process: subprocess.Popen[bytes] | None = None

    async def open_process(self, command: Sequence[str], environment: Mapping[str, str]) -> Process:
        """Runs `python -m` with this command line in the root of the project. Its stderr can be read."""
        if adopts_orphans() and not IN_FULL:
            return self._fork(command, environment)
        return await anyio.open_process(
            [sys.executable, *self.options, "-m", *command], stdin=None, stdout=None, env=environment, cwd=ROOT
        )

    def _fork(self, command: Sequence[str], environment: Mapping[str, str]) -> Forked:
        connection = self._connection or self._start()
        reading, writing = os.pipe()
        message = json.dumps({"command": command, "environment": dict(environment)})
        socket.send_fds(connection, [message.encode()], [0, 1, writing])
        os.close(writing)
        pid = int(connection.recv(MAX_ANSWER))
        FORKED_IN[pid] = os.environ.get("PYTEST_CURRENT_TEST", "")
        return Forked(pid, Pipe(reading))

    def _start(self) -> socket.socket:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *self.options, "-m", "tests.fork_server", str(theirs.fileno()), *self.modules],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
            )
        return self._connection

    def end(self) -> None:
        if self._connection is not None and self._process is not None:
            self._connection.close()
            self._process.wait()
            self._connection = self._process = None


@dataclass
class Pipe(ByteReceiveStream):
    descriptor: int

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.wait_readable(self.descriptor)
        if data := os.read(self.descriptor, max_bytes):
            return data
        raise anyio.EndOfStream

    async def aclose(self) -> None:
        os.close(self.descriptor)


@dataclass
class Forked(Process):
    """A child of this process, as the one that forked it has gone."""

    _pid: int
    _stderr: ByteReceiveStream
    _status: int | None = field(default=None, init=False)

    async def aclose(self) -> None:
        await self._stderr.aclose()
        await self.wait()

    async def wait(self) -> int:
        while (status := self.returncode) is None:
            descriptor = os.pidfd_open(self._pid)
            try:
                await anyio.wait_readable(descriptor)
            finally:
                os.close(descriptor)
        return status

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, signal: signal.Signals) -> None:
        if self._status is not None:
            raise ProcessLookupError
        os.kill(self._pid, signal)

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def returncode(self) -> int | None:
        if self._status is None and (found := os.waitpid(self._pid, os.WNOHANG)) != (0, 0):
            self._status = os.waitstatus_to_exitcode(found[1])
        return self._status

    @property
    def stdin(self) -> ByteSendStream | None:
        return None

    @property
    def stdout(self) -> ByteReceiveStream | None:
        return None

    @property
    def stderr(self) -> ByteReceiveStream:
        return self._stderr


GATEWAYS: Final = ForkServer(["tests.system.gateway_imports"])


def end_all() -> None:
    """Ends what programs are forked from; not these themselves."""
    GATEWAYS.end()
