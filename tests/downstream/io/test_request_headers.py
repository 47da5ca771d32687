"""What the header fields of a request say, however they are spelled, and that they are read once."""

from __future__ import annotations

import pytest

from mcproxy.downstream.io.request_headers import RequestHeaders, request_headers
from mcproxy.downstream.io.responses import Accepted
from mcproxy.http.server import Headers


def test_fields_are_read_once_and_others_for_themselves() -> None:
    fields = Headers.of([("Mcp-Session-Id", "a")])
    assert request_headers(fields) is request_headers(fields)
    assert request_headers(fields).session == "a"
    assert request_headers(Headers.of([("Mcp-Session-Id", "b")])).session == "b"


def test_what_is_not_said_means_what_the_specification_has_it_mean() -> None:
    assert request_headers(Headers()) == RequestHeaders(
        "", "identity", False, Accepted(True, True), None, False, True, None
    )


@pytest.mark.parametrize("said", ["application/json", "Application/JSON; charset=utf-8", " application/json ;x"])
def test_a_media_type_is_without_its_parameters(said: str) -> None:
    assert request_headers(Headers.of([("Content-Type", said)])).content_type == "application/json"


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
    head = request_headers(Headers.of([("MCP-Protocol-Version", version) for version in versions]))
    assert (head.is_stateless, head.fits_sessions) == (is_stateless, fits_sessions)
