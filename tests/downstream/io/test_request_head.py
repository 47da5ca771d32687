"""What is read from the header fields of a request: media types, version and session, and credentials for upstreams."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mcproxy.access.identity import Identified
from mcproxy.access.oauth.tokens import Verified
from mcproxy.call.identity import Principal
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.request_head import (
    RequestHeaders,
    forwarded_credentials,
    gaps,
    read_headers,
)
from mcproxy.downstream.io.responses import Accepted, Refusal
from mcproxy.http.server import Headers
from mcproxy.settings.access.authentication import Authentication
from tests.fakes.gateway import FakeGateway, edge_of, quick

pytestmark = pytest.mark.anyio

ANN, BOB = Principal("ann"), Principal("bob")


def test_missing_fields_mean_what_the_specification_says() -> None:
    assert read_headers(Headers()) == RequestHeaders("", False, Accepted(True, True), None, False, True)


def test_fields_are_gaps_that_no_note_depends_on() -> None:
    names = ("Host", "Accept", "Authorization", "Mcp-Name", "Mcp-Param-Region", "traceparent", "X-Request-Id")
    fields = Headers.of([(name, "") for name in names])
    assert gaps(fields, ()) == {"mcp-name", "mcp-param-region", "traceparent", "x-request-id"}
    assert gaps(fields, {"x-request-id", "accept"}) == {"mcp-name", "mcp-param-region", "traceparent"}


@pytest.mark.parametrize("given", ["application/json", "Application/JSON; charset=utf-8", " application/json ;x"])
def test_a_media_type_is_without_its_parameters(given: str) -> None:
    assert read_headers(Headers.of([("Content-Type", given)])).content_type == "application/json"


@pytest.mark.parametrize(
    ("versions", "is_stateless", "fits_sessions"),
    [
        (["2025-11-25"], False, True),
        (["2026-07-28"], True, False),
        (["1999-01-01"], False, False),
        (["2025-11-25", "2025-11-25"], False, False),
        (["2026-07-28", "2025-11-25"], True, False),
    ],
)
def test_a_version_is_of_one_era_and_of_sessions_where_it_is_named_once(
    versions: list[str], is_stateless: bool, fits_sessions: bool
) -> None:
    headers = read_headers(Headers.of([("MCP-Protocol-Version", version) for version in versions]))
    assert (headers.is_stateless, headers.fits_sessions) == (is_stateless, fits_sessions)


def forwarded(context: TransportContext, fields: Headers, principal: Principal = ANN) -> dict[str, str]:
    credentials = forwarded_credentials(context, identified(principal), fields)
    return {} if credentials is None else dict(credentials.headers)


async def test_r49_a_reload_forwards_other_headers() -> None:
    async with edge_of(FakeGateway()) as context:
        fields = Headers.of([("X-Token", "secret"), ("X-Other", "too")])
        for names, found in (
            (frozenset({"x-token"}), {"x-token": "secret"}),
            (frozenset({"x-token", "x-other"}), {"x-token": "secret", "x-other": "too"}),
            (frozenset[str](), {}),
            (frozenset({"x-other"}), {"x-other": "too"}),
        ):
            context.reconfigure(quick(), names)
            assert forwarded(context, fields) == found


async def test_r39_the_same_headers_of_another_principal_are_other_credentials() -> None:
    async with edge_of(FakeGateway()) as context:
        context.reconfigure(quick(), frozenset({"x-token"}))
        fields = Headers.of([("X-Token", "secret")])
        anns, bobs, again = (forwarded_credentials(context, identified(who), fields) for who in (ANN, BOB, ANN))
        assert anns is not None
        assert bobs is not None
        assert anns.key != bobs.key
        assert anns == again


async def test_a_forwarded_header_that_came_twice_is_refused() -> None:
    async with edge_of(FakeGateway()) as context:
        context.reconfigure(quick(), frozenset({"x-token"}))
        with pytest.raises(Refusal):
            forwarded_credentials(context, identified(ANN), Headers.of([("X-Token", "secret"), ("x-token", "other")]))


async def test_the_token_of_a_caller_is_brought_only_if_it_is_exchanged() -> None:
    async with edge_of(FakeGateway()) as context:
        fields = Headers.of([("Authorization", "Bearer inbound")])
        assert forwarded_credentials(context, identified(ANN, b"all"), fields) is None
        context.reconfigure(quick(), frozenset(), exchanges_tokens=True)
        assert forwarded_credentials(context, identified(ANN), fields) is None, "a key is exchanged for nothing"
        brought = forwarded_credentials(context, identified(ANN, b"all", until=7.0), fields)
        assert brought is not None
        assert brought.inbound_token is not None
        assert (brought.inbound_token.value, brought.inbound_token.expires) == ("inbound", 7.0)
        assert "inbound" not in repr(brought).replace("inbound_token", "")


async def test_tokens_share_an_authority_only_if_they_grant_one_principal_the_same() -> None:
    async with edge_of(FakeGateway()) as context:
        context.reconfigure(quick(), frozenset(), exchanges_tokens=True)

        def authority(principal: Principal, grants: bytes, token: str) -> str:
            fields = Headers.of([("Authorization", f"Bearer {token}")])
            brought = forwarded_credentials(context, identified(principal, grants), fields)
            assert brought is not None
            assert brought.inbound_token is not None
            return brought.inbound_token.authority

        assert authority(ANN, b"all", "one") == authority(ANN, b"all", "renewed")
        others = {authority(ANN, b"all", "one"), authority(ANN, b"less", "one"), authority(BOB, b"all", "one")}
        assert len(others) == 3


def identified(principal: Principal, grants: bytes | None = None, until: float = math.inf) -> Identified:
    """A caller that authenticated with a token, if it `grants` anything."""
    nothing: Any = None
    token = None if grants is None else Verified(principal, grants, nothing, nothing, nothing)
    return Identified(principal, Authentication(), until=until, token=token)
