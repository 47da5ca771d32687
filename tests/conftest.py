"""What every test shares: the event loop's kind, and that no process outlives the run."""

import pytest

from tests.processes import nothing_is_left

__all__ = ["nothing_is_left"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
