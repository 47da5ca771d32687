"""The twin of `mcproxy.cluster.hop`; what it does over real connections is in `test_listener`."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from mcproxy.call.errors import McpError
from mcproxy.cluster.hop import brought_back
from mcproxy.http import server as http
from mcproxy.http.client import ClientResponse
from mcproxy.http.client.heads import ResponseHead
from mcproxy.http.headers import Headers

pytestmark = pytest.mark.anyio


class FakeResponse:
    """A stream that has only begun."""

    head = ResponseHead(200, "OK", Headers({"content-type": "text/event-stream"}), "text/event-stream", "", False)
    is_complete = False
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


async def test_a_stream_that_its_sender_may_not_open_is_closed_at_its_home_too() -> None:
    def refuse(end: Callable[[], None]) -> Callable[[], None]:
        raise McpError(-32603, "too many event streams")

    response = FakeResponse()
    with pytest.raises(McpError, match="too many"):
        # The request is not begun to be answered.
        await brought_back(cast(http.Request, None), cast(ClientResponse, response), refuse)
    assert response.is_closed
