"""Calls that are over, and their records, for the tests of the audit."""

from __future__ import annotations

from mcproxy.access.audit.records import Digests, End, Record, recorded
from mcproxy.call.calls import Call, CallSubject, Complete, Decision, RuleName
from mcproxy.call.identity import Caller, Principal
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import Params, first_level, raw
from mcproxy.protocol.methods import row_of
from mcproxy.sealing import Sealer
from tests.fakes.upstream import FakeClient

digests = Digests(Sealer(b"a key").digest)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def params(**members: object) -> Params:
    return {key: raw(value) for key, value in members.items()}


def call(method: str = "tools/call", session: str | None = "the-session-key", **members: object) -> Call:
    caller = Caller(
        Principal("ann", frozenset({"b", "a"})), LATEST, info=raw({"name": "host", "version": "2"}), session=session
    )
    return Call(row_of(method), params(**members), caller, FakeClient(), id=7)


def record(made: Call, subject: str = "push", arguments: str = "redacted") -> Record:
    decision = Decision(False, RuleName("reader", "deny", 2, "mcproxy.yaml:12"))
    end = End(1_000_000_000, 0.25, "ok", Complete(first_level({"content": []})))
    made.notes.upstream_seconds = 0.2
    return recorded(made, CallSubject("gh", own=subject, decision=decision), end, arguments, digests)  # type: ignore[arg-type]  # a word
