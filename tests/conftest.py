"""What every test shares: the event loop's kind, logs as they come, limits of time, and that no process outlives it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Iterator

import pytest
import structlog
from structlog.dev import ConsoleRenderer, plain_traceback
from xdist.remote import Producer

from tests import forking
from tests.depth import load_profile
from tests.processes import GRACE, adopt_orphans, end_descendants, give_children_default_signals
from tests.scheduling import BySharing, workers
from tests.timeouts import Timeouts


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--grace", type=float, default=GRACE, help="seconds in which what tests started must have ended")


def pytest_configure(config: pytest.Config) -> None:
    give_children_default_signals()
    # In colour and with each frame's variables, one costs half a second.
    ConsoleRenderer.get_active().exception_formatter = plain_traceback
    adopt_orphans()
    config.pluginmanager.register(Timeouts())
    load_profile(config.getoption("--hypothesis-profile"))


@pytest.hookimpl(wrapper=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    cores = yield
    return workers(cores)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> BySharing:
    return BySharing(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from going through thousands of tests again and again: all of them stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that left a process behind. Under xdist this is the process above the workers, once these have ended:
    it finds what a worker left that was killed itself.
    """
    if not hasattr(session.config, "workerinput") and (left := end_descendants(session.config.getoption("--grace"))):
        print(f"\nleft running: {left}", file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the tests started, and what that started, has ended when they have."""
    yield
    forking.end_all()
    left = end_descendants(request.config.getoption("--grace"))
    assert not left, f"left running: {left}"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def logs_are_as_they_come() -> Iterator[None]:
    """A command that a test runs in this process configures the logs for all; the next test finds them anew."""
    yield
    structlog.reset_defaults()
