"""A session that is made at the first request."""

from __future__ import annotations

import aiohttp
import pytest

from mcproxy.access.outgoing.http_session import HttpSession

pytestmark = pytest.mark.anyio


async def test_a_session_is_made_once_and_another_after_it_was_closed() -> None:
    session = HttpSession(aiohttp.ClientSession)
    assert not session.is_open
    await session.aclose()
    first = session.get()
    assert session.get() is first
    assert session.is_open
    await session.aclose()
    assert first.closed
    assert session.get() is not first
    await session.aclose()
