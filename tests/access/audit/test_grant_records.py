"""The twin of `mcproxy.access.audit.grant_records`: what the audit's lines say of logins at upstreams."""

from __future__ import annotations

import json

from mcproxy.access.audit.grant_records import GrantAction, GrantOutcome, GrantRecord
from mcproxy.access.audit.record_lines import Lines


def line(record: GrantRecord) -> dict[str, object]:
    written: dict[str, object] = json.loads(Lines(["a-known-secret"]).line(record))
    return written


def test_a_record_says_who_where_and_what_came_of_it() -> None:
    login = GrantRecord(0.5, GrantAction.LOGIN, GrantOutcome.OK, "web", "oidc:ann", "https://as.example", "user-7")
    assert line(login) == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "event": "oauth login",
        "outcome": "ok",
        "upstream": "web",
        "principal": "oidc:ann",
        "issuer": "https://as.example",
        "subject": "user-7",
    }


def test_r44_the_words_of_an_authorization_server_are_cleaned() -> None:
    why = "invalid_grant: Bearer abcdefghijklmnop a-known-secret\n"
    refused = GrantRecord(0, GrantAction.REFRESH, GrantOutcome.REFUSED, "web", "", "https://u:p@as.example", None, why)
    written = Lines(["a-known-secret"]).line(refused)
    assert b"abcdefghijklmnop" not in written
    assert b"a-known-secret" not in written
    assert b"u:p" not in written
    assert written.count(b"\n") == 1
    assert "principal" not in line(refused), "the gateway's own grant is nobody's"
