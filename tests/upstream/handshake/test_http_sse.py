"""HTTP+SSE of 2024-11-05 against real servers on loopback."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from mcproxy.call.errors import Reason
from mcproxy.call.upstreams import Connected, Disconnected
from mcproxy.settings import UpstreamSettings
from tests.fakes.servers.web import FakeSse, error, serving
from tests.timeouts import GUARD
from tests.upstream.support import QUICK, failure, running, tool, value

pytestmark = pytest.mark.anyio


def at(url: str, **settings: Any) -> UpstreamSettings:
    return UpstreamSettings(name="old", prefix="old", type="sse", url=url, timeouts=QUICK, **settings)


async def test_a_call_is_posted_and_answered_on_the_stream() -> None:
    server = FakeSse()
    async with serving(server) as url, running(at(f"{url}/sse")) as it:
        assert value(await it.upstream(tool("echo", {"n": 1}))) == {"n": 1}
        assert it.events.of(Connected)[0].identity.version == "2024-11-05"
        server.over.set()


async def test_a_call_is_over_with_its_answer_whether_its_post_is_responded_to_or_not() -> None:
    server = FakeSse(never_accepts=True)
    async with serving(server, notices_hang_up=True) as url, running(at(f"{url}/sse", max_in_flight=2)) as it:
        with anyio.fail_after(GUARD):
            for number in range(5):
                assert value(await it.upstream(tool("echo", {"n": number}))) == {"n": number}
        server.over.set()


async def test_a_call_whose_post_is_refused_fails_at_once() -> None:
    server = FakeSse(refusal=lambda asked: error(-32000, "no", "another"))
    async with serving(server) as url, running(at(f"{url}/sse")) as it:
        with anyio.fail_after(GUARD):
            assert failure(await it.upstream(tool("echo"))).reason is Reason.UNAVAILABLE
        server.over.set()


async def test_r5_the_end_of_the_stream_fails_the_calls_on_it_at_once() -> None:
    server = FakeSse()
    async with serving(server) as url, running(at(f"{url}/sse")) as it:
        with anyio.fail_after(GUARD):
            failed = failure(await it.upstream(tool("hang up")))
        assert "the event stream ended" in failed.error.message
        await it.events.until(lambda: bool(it.events.of(Disconnected)))


async def test_r43_an_endpoint_at_another_origin_is_refused() -> None:
    server = FakeSse(endpoint="http://localhost:1/messages")
    async with serving(server) as url, running(at(f"{url}/sse")) as it:
        assert "another origin" in failure(await it.upstream(tool("echo"))).error.message
        server.over.set()
    assert not server.heard


async def test_r76_an_answer_in_the_response_to_the_post_is_the_answer_whatever_the_status() -> None:
    server = FakeSse(refusal=lambda asked: error(-32001, "Session not found", asked["id"]))
    async with serving(server) as url, running(at(f"{url}/sse")) as it:
        assert failure(await it.upstream(tool("echo"))).error.code == -32001
        assert len([message for message in server.heard if message["method"] == "tools/call"]) == 1
        server.over.set()
