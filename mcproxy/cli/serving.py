"""`mcproxy serve`: the gateway over HTTP or stdio, until a signal or the client ends it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import structlog
from msgspec.structs import replace

from mcproxy import rlimits
from mcproxy.app import App, running
from mcproxy.cli.listening import obstacle
from mcproxy.cli.output import banner, print_err, stdio_hint
from mcproxy.cli.runtime import ExitCode, own_command, run, set_up_logs
from mcproxy.concurrency.exception_groups import first_of
from mcproxy.configuration.loading import Configuration, load_configuration
from mcproxy.service import systemd
from mcproxy.service.heap import c_mallopt, keep_freed_memory
from mcproxy.service.reloading import Reloading, log_warnings
from mcproxy.serving import run_http, run_stdio

log = structlog.get_logger()

COLLECTION_THRESHOLD: Final = 10_000
"""Objects allocated, less those freed, before the garbage collector looks through the youngest."""


def serve(path: Path, *, over_stdio: bool, port: int | None) -> NoReturn:
    """Serves until stopped. `port` stands in for `proxy.port`. Raises ConfigurationError."""

    def load() -> Configuration:
        return _on_port(load_configuration(path, lenient=True), port)

    configuration = load()
    set_up_logs(configuration)
    log_warnings(configuration)
    rlimits.raise_limit()
    if over_stdio and sys.stdin.isatty():
        print_err(stdio_hint([*own_command(), "serve", "--stdio", "--config", str(path.absolute())]), lines=True)
    run((_serve_stdio if over_stdio else _serve_http)(configuration, load))


async def _serve_http(configuration: Configuration, load: Callable[[], Configuration]) -> int:
    code, notify = ExitCode.OK, systemd.notifier()
    try:
        async with running(configuration.settings, joins_cluster=True, keeps_state=True) as app:
            reloading = Reloading(configuration, load, app.reconfigure, app.metrics, notify=notify)
            await run_http(app, started=partial(_started, app), reloading=reloading, tell=notify)
    except* OSError as group:
        print_err(_stopped(configuration, first_of(group)))
        code = ExitCode.FAILED
    return code


def _stopped(configuration: Configuration, error: BaseException) -> str:
    """Why the gateway stopped; where it could not listen, with the key of the address and a remedy."""
    admin = configuration.settings.admin
    # The sentence of asyncio names the address, and nothing else tells the two listeners apart.
    at_admin = admin.port is not None and f", {admin.port})" in str(error)
    problem = obstacle(configuration, "admin" if at_admin else "proxy", error)
    return f"mcproxy stopped: {problem or error}"


async def _serve_stdio(configuration: Configuration, load: Callable[[], Configuration]) -> int:
    async with running(configuration.settings, keeps_state=True) as app:
        _manage_memory()
        await run_stdio(app, reloading=Reloading(configuration, load, app.reconfigure, app.metrics))
    return ExitCode.OK


def _started(app: App, url: str, status_page: str | None) -> None:
    settings = app.settings
    if sys.stderr.isatty() or settings.proxy.log_format == "console":
        print_err(banner(url, settings, status_page), lines=True)
    else:
        log.info("serving", url=url + settings.proxy.paths.mcp, **({"status_page": status_page} if status_page else {}))
    _manage_memory()


def _manage_memory() -> None:
    """From now on, collects garbage, but rarely, and without looking through the objects made at start-up.

    What start-up freed is given back, and what calls free is kept for the next.

    Collections hold up calls and find nothing that calls leave behind. They came so often that calls in flight
    survived them, were taken for lasting, and each further one went through everything, the sessions too.
    """
    gc.freeze()
    gc.set_threshold(COLLECTION_THRESHOLD, *gc.get_threshold()[1:])
    gc.enable()
    keep_freed_memory(c_mallopt())


def _on_port(configuration: Configuration, port: int | None) -> Configuration:
    """The configuration, with the port of the command line in place of its own."""
    if port is None:
        return configuration
    settings = configuration.settings
    proxy = settings.proxy.model_copy(update={"port": port})
    return replace(configuration, settings=settings.model_copy(update={"proxy": proxy}))
