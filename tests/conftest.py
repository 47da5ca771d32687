"""What every test shares: the event loop's kind, logs as they come, and that no process outlives the run."""

from collections.abc import Iterator

import pytest
import structlog

from tests.processes import nothing_is_left

__all__ = ["nothing_is_left"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def logs_are_as_they_come() -> Iterator[None]:
    """A command that a test runs in this process configures the logs for all; the next test finds them anew."""
    yield
    structlog.reset_defaults()
