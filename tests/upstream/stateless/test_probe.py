"""Which era a server speaks, by its answer to `server/discover`."""

from __future__ import annotations

from typing import Any

import pytest

from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import ErrorObject, ErrorResponse, Response, first_level, raw
from mcproxy.upstream.link import Unreachable
from mcproxy.upstream.stateless.probe import QUESTION, Older, identity, is_modern, wants_handshake
from tests.upstream.support import decoded


def refused(code: int, data: Any = None) -> ErrorResponse:
    return ErrorResponse("discover", ErrorObject(code, "no", None if data is None else raw(data)))


def answered(**members: Any) -> Response:
    return Response("discover", first_level(members))


def test_a_discover_result_says_all_of_a_stateless_server() -> None:
    found = identity(
        answered(
            supportedVersions=["2026-07-28", "2025-11-25"],
            capabilities={"tools": {"listChanged": True}},
            instructions="be kind",
            _meta={"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "1"}},
        )
    )
    assert (found.era, found.version, found.instructions) == (Era.STATELESS, "2026-07-28", "be kind")
    assert decoded(found.capabilities["tools"]) == {"listChanged": True}
    assert found.info is not None
    assert decoded(found.info) == {"name": "s", "version": "1"}


def test_a_server_that_says_no_name_is_no_less_stateless() -> None:
    assert identity(answered(supportedVersions=["2026-07-28"], capabilities={})).info is None


def test_a_server_may_write_null_for_what_it_leaves_out() -> None:
    found = identity(answered(supportedVersions=["2026-07-28"], capabilities={}, instructions=None, _meta=None))
    assert (found.info, found.instructions) == (None, None)


def test_the_probe_declares_no_capability_since_no_client_could_be_asked() -> None:
    meta = decoded(QUESTION.params["_meta"])
    assert meta["io.modelcontextprotocol/clientCapabilities"] == {}
    assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "mcproxy"


@pytest.mark.parametrize("code", [-32601, -32602, -32600, -32000, -32002, 0])
def test_any_error_that_is_not_modern_is_of_an_older_server(code: int) -> None:
    with pytest.raises(Older):
        identity(refused(code))


@pytest.mark.parametrize("code", [-32020, -32021])
def test_a_modern_error_is_of_a_modern_server_that_is_not_fallen_back_from(code: int) -> None:
    with pytest.raises(Unreachable, match=str(code)):
        identity(refused(code))


def test_an_unknown_method_with_404_is_of_a_modern_server_and_with_another_status_is_not() -> None:
    unknown = refused(-32601).error
    assert is_modern(unknown, 404)
    assert not is_modern(unknown, 200)


def test_a_server_that_supports_only_handshake_versions_is_older_however_it_says_so() -> None:
    with pytest.raises(Older, match="2025-06-18"):
        identity(refused(-32022, {"supported": ["2025-06-18"], "requested": "2026-07-28"}))
    with pytest.raises(Older, match="2025-06-18"):
        identity(answered(supportedVersions=["2025-06-18"], capabilities={}))


def test_versions_of_which_none_is_known_are_named() -> None:
    with pytest.raises(Unreachable, match="2099-01-01"):
        identity(refused(-32022, {"supported": ["2099-01-01"]}))


@pytest.mark.parametrize("data", [None, {}, {"supported": "2025-11-25"}, ["2025-11-25"], {"supported": ["2026-07-28"]}])
def test_a_refused_version_without_a_usable_list_is_no_reason_to_fall_back(data: Any) -> None:
    with pytest.raises(Unreachable):
        identity(refused(-32022, data))


@pytest.mark.parametrize("members", [{}, {"supportedVersions": "2026-07-28"}, {"tools": []}])
def test_a_result_of_something_else_is_of_a_server_that_took_the_method_for_its_own(members: dict[str, Any]) -> None:
    with pytest.raises(Older):
        identity(answered(**members))


def test_capabilities_that_are_no_object_are_refused() -> None:
    with pytest.raises(Unreachable, match="malformed"):
        identity(answered(supportedVersions=["2026-07-28"], capabilities=[]))


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, '{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Server not initialized"},"id":null}'),
        (400, '{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Mcp-Session-Id header is required"}}'),
        (400, '{"id":"server-error","error":{"code":-32600,"message":"Bad Request: Missing session ID"}}'),
        (404, '{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}'),
        (404, "session not found"),
        (400, "Bad Request: no valid session"),
        (400, "Invalid session ID"),
        (400, 'method "tools/call" is invalid during session initialization'),
        (422, "Unexpected message, expect initialize request"),
        (400, "A new session can only be created by an initialize request."),
    ],
)
def test_a_server_of_old_that_took_the_place_of_a_newer_one_is_known_by_its_refusals(status: int, text: str) -> None:
    assert wants_handshake(status, text)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (409, "Invalid session ID"),
        (400, "the booking session initialized twice"),
        (400, '{"jsonrpc":"2.0","error":{"code":-32000,"message":"Browser session not found"},"id":null}'),
        (422, "could not initialize the payment"),
        (400, "your sessions are many"),
    ],
)
def test_r4_what_a_tool_says_of_sessions_of_another_kind_does_not_have_it_called_again(status: int, text: str) -> None:
    assert not wants_handshake(status, text)
