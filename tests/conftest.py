"""What every test shares: the event loop's kind."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
