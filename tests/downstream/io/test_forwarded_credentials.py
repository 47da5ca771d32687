"""What requests bring for upstreams: told from the headers alone, once, and anew where anything else is looked for."""

from __future__ import annotations

import pytest

from mcproxy.call.identity import Principal
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.forwarded_credentials import forwarded_credentials
from mcproxy.downstream.io.responses import Refusal
from mcproxy.http.server import Headers, Request
from tests.fakes.gateway import FakeGateway, edge_of

pytestmark = pytest.mark.anyio

ANN, BOB = Principal("ann"), Principal("bob")


class Nowhere:
    most = 0


def request(*lines: tuple[str, str]) -> Request:
    return Request(Nowhere(), "POST", "/mcp", Headers.of(lines))  # type: ignore[arg-type]  # it has no client


def headers(context: TransportContext, asked: Request, principal: Principal = ANN) -> dict[str, str]:
    credentials = forwarded_credentials(context, principal, asked)
    return {} if credentials is None else dict(credentials.headers)


async def test_what_the_same_client_brings_again_is_made_once() -> None:
    async with edge_of(FakeGateway()) as context:
        context.forwarded = frozenset({"x-token"})
        asked = request(("X-Token", "secret"), ("X-Other", "no"))
        assert headers(context, asked) == {"x-token": "secret"}
        assert forwarded_credentials(context, ANN, asked) is forwarded_credentials(context, ANN, asked)


async def test_r49_a_reload_looks_for_other_headers_of_a_connection_that_goes_on() -> None:
    async with edge_of(FakeGateway()) as context:
        asked = request(("X-Token", "secret"), ("X-Other", "too"))
        for forwarded, found in (
            (frozenset({"x-token"}), {"x-token": "secret"}),
            (frozenset({"x-token", "x-other"}), {"x-token": "secret", "x-other": "too"}),
            (frozenset[str](), {}),
            (frozenset({"x-other"}), {"x-other": "too"}),
        ):
            context.forwarded = forwarded
            assert headers(context, asked) == found


async def test_r39_the_same_headers_of_somebody_else_are_other_credentials() -> None:
    async with edge_of(FakeGateway()) as context:
        context.forwarded = frozenset({"x-token"})
        asked = request(("X-Token", "secret"))
        anns, bobs, again = (forwarded_credentials(context, principal, asked) for principal in (ANN, BOB, ANN))
        assert anns is not None
        assert bobs is not None
        assert anns.key != bobs.key
        assert anns == again


async def test_a_header_that_came_twice_is_refused_each_time() -> None:
    async with edge_of(FakeGateway()) as context:
        context.forwarded = frozenset({"x-token"})
        asked = request(("X-Token", "secret"), ("x-token", "other"))
        for _ in range(2):
            with pytest.raises(Refusal):
                forwarded_credentials(context, ANN, asked)
