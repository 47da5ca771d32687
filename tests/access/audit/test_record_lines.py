"""The twin of `mcproxy.access.audit.record_lines`."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mcproxy.access.audit.record_lines import MAX_READ, MAX_TEXT, Lines
from mcproxy.access.audit.records import MAX_SHOWN, End, Record, recorded
from mcproxy.call.calls import CallSubject, Decision, Failed
from mcproxy.call.errors import Party, Reason
from mcproxy.call.identity import Principal
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import ErrorObject, raw
from tests.access.audit.recorded_calls import TRACE, call, digests, record


def written(made: Record, *secrets: str, redact: tuple[str, ...] = ()) -> dict[str, object]:
    text = Lines(secrets, redact).line(made)
    assert text.endswith(b"\n")
    members: dict[str, object] = json.loads(text)
    return members


@pytest.mark.parametrize("name", ["h\udc80lf", "ünïcode", "\x7f\u2028"])
def test_what_is_no_ascii_is_written_in_ascii(name: str) -> None:
    made = record(call(arguments={}))
    text = Lines([]).line(replace(made, caller=replace(made.caller, principal=Principal(name))))
    assert text.isascii()
    assert b"\x7f" not in text
    assert json.loads(text)["principal"] == name


def test_times_are_told_to_the_microsecond() -> None:
    found = written(replace(record(call(arguments={})), seconds=0.0123456))
    assert (found["ms"], found["upstream_ms"]) == (12.346, 200)


def test_a_record_holds_caller_subject_decision_and_outcome() -> None:
    made = record(
        call(name="gh__push", arguments={"branch": "main"}, _meta={"traceparent": f"00-{TRACE}-{'1' * 16}-01"})
    )
    found = written(made)
    assert found == {
        "time": "2001-09-09T01:46:40.000+00:00",
        "trace": TRACE,
        "id": 7,
        "principal": "ann",
        "roles": ["a", "b"],
        "session": found["session"],
        "client": "host 2",
        "version": LATEST,
        "method": "tools/call",
        "upstream": "gh",
        "subject": "push",
        "allowed": False,
        "rule": "roles.reader.deny, rule 2 (mcproxy.yaml:12)",
        "outcome": "ok",
        "ms": 250,
        "upstream_ms": 200,
        "bytes_in": made.size_in,
        "bytes_out": 14,
        "arguments_hash": found["arguments_hash"],
        "arguments": {"branch": "main"},
    }
    assert "the-session-key" not in str(found)


def test_of_a_task_the_tool_is_told_whose_call_became_it() -> None:
    made = replace(record(call("tasks/result"), "7"), seen=CallSubject("gh", own="7", tool="push"))
    found = written(made)
    assert (found["subject"], found["tool"]) == ("7", "push")


def test_a_failure_says_its_code_and_nothing_of_its_sentence() -> None:
    failed = Failed(ErrorObject(-32602, "secret sauce"), Party.CLIENT, Reason.DENIED)
    end = End(0, 0, "denied", failed)
    found = written(recorded(call(), CallSubject(), end, "hash", digests))
    assert (found["outcome"], found["code"]) == ("denied", -32602)
    assert "sauce" not in str(found)


def test_without_arguments_neither_they_nor_their_hash_are_written() -> None:
    assert "arguments" not in written(record(call(arguments="a"), arguments="hash"))
    assert not {"arguments", "arguments_hash"} & written(record(call(arguments="a"), arguments="none")).keys()


SENTINEL = "s3ntinel-0xDEADBEEF"


@pytest.mark.parametrize(
    "arguments",
    [
        {"password": SENTINEL},
        {"deep": [{"apiKey": {"any": SENTINEL}}]},
        {"x-auth": [SENTINEL]},
        {"SessionId": SENTINEL},
        {"header": f"Authorization: Bearer {SENTINEL}"},
        {"text": f"see https://user:{SENTINEL}@host/path"},
        {"text": f"https://host/a?access_token={SENTINEL}&b=1#c"},
        {"text": f"ghp_{SENTINEL.replace('-', '')}"},
        {"text": f"eyJhbGciOiJIUzI1NiJ9.{SENTINEL}.{SENTINEL}"},
        {"text": f"-----BEGIN RSA PRIVATE KEY-----\n{SENTINEL}\n-----END RSA PRIVATE KEY-----"},
        {"mine": SENTINEL},
    ],
)
def test_r44_no_secret_is_written_by_its_name_or_by_its_look(arguments: dict[str, object]) -> None:
    text = Lines([], ["mine"]).line(record(call(arguments=arguments))).decode()
    assert SENTINEL not in text
    assert SENTINEL.replace("-", "") not in text


def test_r44_a_known_secret_is_written_nowhere() -> None:
    made = record(call(f"made/{SENTINEL}", arguments={"text": f"a {SENTINEL} b", SENTINEL: 1}), SENTINEL)
    caller = replace(made.caller, principal=Principal(SENTINEL, frozenset({SENTINEL})), info=raw({"name": SENTINEL}))
    assert SENTINEL not in str(written(replace(made, caller=caller, id=SENTINEL), SENTINEL))


def test_r44_a_uri_is_written_without_its_user_and_the_values_of_its_query() -> None:
    found = written(record(call(), f"https://bob:{SENTINEL}@host/a/b?sig={SENTINEL}&page=2#x"))
    assert found["subject"] == "https://[redacted]@host/a/b?sig=[redacted]&page=[redacted]#x"


@given(st.text(), st.text(), st.text())
def test_whatever_peers_write_a_record_is_one_line_of_plain_ascii(name: str, subject: str, argument: str) -> None:
    made = record(call(name, arguments={argument: [argument]}), subject)
    caller = replace(made.caller, info=raw({"name": name, "version": subject}))
    text = Lines([]).line(replace(made, caller=caller, id=name))
    assert all(0x20 <= byte < 0x7F for byte in text[:-1])
    assert text[-1:] == b"\n"


def test_a_forged_line_stays_inside_its_text() -> None:
    forged = 'x\n{"principal": "root"}\u2028\x7f\x1b[2J'
    text = Lines([]).line(record(call(), forged))
    assert text.count(b"\n") == 1
    assert json.loads(text)["subject"] == forged


def test_what_a_peer_wrote_is_cut_and_large_arguments_are_not_shown() -> None:
    made = record(call(arguments={"text": "x" * MAX_SHOWN}), "y" * 10_000)
    found = written(made)
    assert len(str(found["subject"])) == MAX_TEXT + 3
    assert "arguments" not in found
    assert "arguments_hash" in found


@pytest.mark.parametrize("info", [b"7", b"{", b'{"name":7}', b"null"])
def test_a_client_that_says_nothing_of_use_is_left_out(info: bytes) -> None:
    made = record(call())
    assert "client" not in written(replace(made, caller=replace(made.caller, info=raw(None).__class__(info))))


def test_what_records_have_in_common_is_remembered_and_what_they_have_not_is_not_mixed_up() -> None:
    lines, calls = Lines([]), [call(), call("prompts/get"), call(session=None), call(session="another")]
    callers = [
        replace(calls[0].caller, principal=Principal("bob")),
        replace(calls[0].caller, principal=Principal("ann", frozenset({"c"}))),
        replace(calls[0].caller, info=raw({"name": "guest"})),
        replace(calls[0].caller, info=raw({"name": "x" * 2 * MAX_READ})),
        replace(calls[0].caller, version="2024-11-05"),
        replace(calls[0].caller, endpoint="gl"),
    ]
    allowed = Decision(True)
    calls += [replace(calls[0], caller=caller) for caller in callers]
    made = [replace(record(each), trace=TRACE) for each in calls]
    made += [
        replace(made[0], seen=seen)
        for seen in (CallSubject("gl", own="push"), CallSubject("gh"), CallSubject("gh", own="push", decision=allowed))
    ]
    assert [lines.line(each) for each in made * 2] == [Lines([]).line(each) for each in made * 2]
    assert len({lines.line(each) for each in made}) == len(made)
