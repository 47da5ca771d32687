"""Requests of both eras as they go over the wire."""

from __future__ import annotations

import json

from benchmarks.asking import NUMBER, Ask, post
from mcproxy.protocol.eras import LATEST, META_VERSION, Era

READ = Ask("resources/read", {"uri": f"u0+bench://fresh/{NUMBER}", "_meta": {"progressToken": NUMBER}}, "bench:", 1)


def filled(text: str) -> tuple[dict[str, str], bytes]:
    head, _, body = text.replace(NUMBER, "123456789").partition("\r\n\r\n")
    return dict(line.split(": ", 1) for line in head.split("\r\n")[1:]), body.encode()


def test_a_handshake_request_carries_its_session_and_nothing_of_the_other_era() -> None:
    fields, body = filled(post(READ, Era.HANDSHAKE, "s").wire(80))
    assert fields["Mcp-Session-Id"] == "s"
    assert "Mcp-Method" not in fields
    assert json.loads(body)["params"]["_meta"] == {"progressToken": 123456789}


def test_a_stateless_request_says_all_of_itself_and_mirrors_it() -> None:
    fields, body = filled(post(READ, Era.STATELESS, None).wire(80))
    assert fields["MCP-Protocol-Version"] == LATEST
    assert fields["Mcp-Method"] == "resources/read"
    assert fields["Mcp-Name"] == json.loads(body)["params"]["uri"] == "u0+bench://fresh/123456789"
    assert json.loads(body)["params"]["_meta"][META_VERSION] == LATEST
    assert "Mcp-Session-Id" not in fields


def test_the_length_holds_whatever_number_is_filled_in() -> None:
    for era in Era:
        fields, body = filled(post(READ, era, None).wire(80))
        assert int(fields["Content-Length"]) == len(body)
        assert json.loads(body)["id"] == 123456789
