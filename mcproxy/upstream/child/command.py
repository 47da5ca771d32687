"""Commands of the configuration: found on PATH, given their environment, started under a reaper.

No shell is involved. Commands run under `reaper`, so that every process that a command starts ends with the command,
and with the gateway (requirement R11). `process` keeps a command running; `output` reads one to its end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import ByteReceiveStream, Process

from mcproxy.rlimits import AT_START
from mcproxy.settings import UpstreamSettings
from mcproxy.upstream.link import Unreachable

END_TIMEOUT: Final = 2.0
"""Seconds that a command gets to end."""
REAPER: Final = Path(__file__).with_name("reaper.py")
INHERITED: Final = (
    "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME",
    # What programs need to reach out: proxies, authorities, Docker and SSH's agent.
    "ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "all_proxy", "https_proxy", "http_proxy", "no_proxy",
    "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE",
    "DOCKER_HOST", "SSH_AUTH_SOCK",
)  # fmt: skip
"""The variables of the gateway's environment that a child inherits. Of these only a proxy's URL may hold a secret."""


class CommandFailed(Exception):
    """A command gave no usable output. The text says why, and quotes nothing that it wrote."""


def environment(spec: UpstreamSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child: the INHERITED variables that are set, those of `inherit`, and those of `env`."""
    more = {name: value for name, value in environ.items() if spec.inherits(name)}
    return {name: environ[name] for name in INHERITED if name in environ} | more | spec.env


def locate(command: str, cwd: str | None, env: Mapping[str, str]) -> str:
    """The absolute path of a command. Raises Unreachable, naming the command and the PATH (R17)."""
    if cwd is not None and not Path(cwd).is_dir():
        raise Unreachable(f"the working folder {cwd} does not exist: make it, or correct `cwd`")
    if os.path.dirname(command):
        path = Path(cwd or ".", command).absolute()
        if shutil.which(path) is None:
            raise Unreachable(
                f"the command {path} does not exist, or cannot be executed: install it, or correct the path"
            )
        return str(path)
    search = env.get("PATH", os.defpath)
    found = shutil.which(command, path=search)
    if found is None:
        raise Unreachable(
            f"the command {command!r} is not installed, or not on the PATH: write its whole path; looked in {search}"
        )
    return os.path.abspath(found)


@contextmanager
def starting(command: str) -> Iterator[None]:
    """Raises Unreachable for what the system refuses while a command is started, as for too many open files."""
    try:
        yield
    except OSError as error:
        raise Unreachable(f"the command {command} could not be started: {error.strerror}") from error


async def start(
    command: Sequence[str], cwd: str | None, env: Mapping[str, str], lifeline: int, *, stdin: int, stderr: int
) -> Process:
    """Starts the command under a reaper, with its stdout in a pipe.

    `lifeline` is the reaper's end of the lifeline pipe, and is closed here. Raises OSError.
    """
    reaper = [sys.executable, "-I", "-S", str(REAPER), str(lifeline), str(AT_START)]
    try:
        return await anyio.open_process(
            [*reaper, *command],
            stdin=stdin,
            stderr=stderr,
            cwd=cwd,
            env=env,
            start_new_session=True,
            pass_fds=(lifeline,),
        )
    finally:
        os.close(lifeline)


async def output(
    command: Sequence[str], cwd: str | None, env: Mapping[str, str], *, timeout: float, limit: int
) -> bytes:
    """The stdout of a command that ends by itself with status 0, within `timeout` seconds and `limit` bytes.

    Its stdin is empty, and its stderr is discarded. Raises CommandFailed, and Unreachable if it cannot be started.
    """
    found = locate(command[0], cwd, env)
    with ExitStack() as stack:
        with starting(found):
            held, ours = os.pipe()
            lifeline = stack.enter_context(os.fdopen(ours, "wb", buffering=0))
            process = await start(
                [found, *command[1:]], cwd, env, held, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        try:
            with anyio.fail_after(timeout):
                assert process.stdout is not None
                written = await _whole(process.stdout, limit)
                status = await process.wait()
        except TimeoutError as error:
            raise CommandFailed(f"{command[0]} did not end within {timeout:g} s") from error
        finally:
            lifeline.close()
            with anyio.CancelScope(shield=True):
                await _ended(process)
    if status:
        raise CommandFailed(f"{command[0]} ended with status {status}: run it by hand to see why")
    return written


async def _whole(stream: ByteReceiveStream, limit: int) -> bytes:
    """The whole stream. Raises CommandFailed for more than `limit` bytes."""
    written = b""
    async for chunk in stream:
        written += chunk
        if len(written) > limit:
            raise CommandFailed(f"it wrote more than {limit} bytes")
    return written


async def _ended(process: Process) -> None:
    """Waits for a command whose lifeline is closed; kills its reaper if the command does not end by that."""
    with anyio.move_on_after(END_TIMEOUT):
        await process.wait()
    with suppress(ProcessLookupError):
        process.kill()
    await process.aclose()
