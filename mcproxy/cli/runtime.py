"""What commands share: exit codes, reading the settings, and running a coroutine to its exit code.

Every command imports it, `--version` too: slow libraries are imported by the functions that need them.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, cast

import typer

from mcproxy.concurrency.exception_groups import first_of

if TYPE_CHECKING:
    from mcproxy.configuration.loading import Configuration
    from mcproxy.settings import Settings


class ExitCode(IntEnum):
    """The exit codes of all commands, listed in docs/reference/commands.md; scripts rely on them."""

    OK = 0
    """It worked."""
    FAILED = 1
    """The request failed."""
    INPUT = 2
    """The command line, the configuration or another file is wrong."""
    NOT_FOUND = 3
    """What was asked for does not exist: no such tool or resource, or nothing to list."""
    INTERRUPTED = 130
    """Ctrl-C, as shells number it."""


class OutputLost(Exception):
    """What was to be printed could not be written, as on a full disk. The text is the system's reason."""


@contextmanager
def printing() -> Iterator[None]:
    """Turns an error of writing to stdout into OutputLost, but for a reader that is gone, which is no error."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        # What is left in the buffer would be tried again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputLost(error.strerror) from error


def read_settings(config: Path | None) -> Settings:
    """The settings, for a command that reports errors itself. Raises ConfigurationError."""
    return read_configuration(config).settings


def read_configuration(config: Path | None) -> Configuration:
    """The configuration, for a command that reports errors itself: only critical events are logged.

    Raises ConfigurationError.
    """
    from mcproxy.configuration.loading import find, load_configuration

    configuration = load_configuration(config or find())
    set_up_logs(configuration, quiet=True)
    return configuration


def set_up_logs(configuration: Configuration, *, quiet: bool = False) -> None:
    """Logs to stderr as `proxy` says, with the secrets of the configuration masked; `quiet`: critical events alone."""
    from mcproxy.telemetry import logs

    proxy = configuration.settings.proxy
    level = "critical" if quiet else proxy.log_level
    logs.configure("console" if quiet else proxy.log_format, level, configuration.secrets)


def run(work: Coroutine[Any, Any, int]) -> NoReturn:
    """Runs to the end, on uvloop where it is installed, and exits. Ctrl-C exits without a traceback."""
    import importlib.util

    import anyio

    async def whole() -> int:
        return await work

    try:
        code = anyio.run(whole, backend_options={"use_uvloop": importlib.util.find_spec("uvloop") is not None})
    except KeyboardInterrupt:
        # A thread that waits for a line at a prompt would keep the process until Enter is pressed.
        os._exit(ExitCode.INTERRUPTED)
    except ExceptionGroup as group:
        unwritten = group.subgroup((BrokenPipeError, OutputLost))
        if unwritten is None:
            raise
        # The reader of the output is gone, as after `| head`: Typer knows what to do, but not in a group.
        raise first_of(unwritten) from None
    raise typer.Exit(code)


@contextmanager
def unimportable(name: str) -> Iterator[None]:
    """Has `import name` fail meanwhile, for libraries that do without it, unless it was imported before.

    None in `sys.modules` says so to Python ("The import system", the module cache).
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = cast(ModuleType, None)
    try:
        yield
    finally:
        del sys.modules[name]


def own_command() -> Sequence[str]:
    """How this program is started from anywhere: hosts know nothing of the folder or the PATH of this shell."""
    found = shutil.which(sys.argv[0]) or shutil.which("mcproxy")
    return [os.path.abspath(found)] if found else [sys.executable, "-m", "mcproxy"]
