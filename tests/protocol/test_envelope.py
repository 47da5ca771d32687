"""The reserved keys of `_meta`: read off, put on, and refused where the specification says so."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.protocol.envelope import (
    STRUCTURED,
    Envelope,
    InvalidEnvelope,
    check_version,
    dressed,
    read_envelope,
    server_meta,
    set_apart,
    undressed,
    with_meta,
    without_hop_meta,
    wrap,
)
from mcproxy.protocol.eras import META_CLIENT_CAPABILITIES as CAPABILITIES
from mcproxy.protocol.eras import META_CLIENT_INFO as INFO
from mcproxy.protocol.eras import META_LOG_LEVEL as LOG_LEVEL
from mcproxy.protocol.eras import META_SERVER_INFO, META_SUBSCRIPTION, V2026_07_28
from mcproxy.protocol.eras import META_VERSION as VERSION
from mcproxy.protocol.jsonrpc import (
    INVALID_PARAMS,
    UNSUPPORTED_PROTOCOL_VERSION,
    Params,
    first_level,
    parse_object,
    raw,
)

REQUIRED: dict[str, Any] = {VERSION: V2026_07_28, CAPABILITIES: {}}


def params(meta: Any, **members: Any) -> Params:
    return {key: raw(value) for key, value in {**members, "_meta": meta}.items()}


def unwrap(params: Params) -> tuple[Envelope, Raw | None]:
    said, token = set_apart(params)
    envelope, rest = read_envelope(said)
    return (envelope if token is None else replace(envelope, progress_token=token)), rest


def test_what_was_wrapped_is_unwrapped_with_the_types_of_the_token_kept() -> None:
    for token in (7, "7"):
        envelope = Envelope(V2026_07_28, {"roots": raw({})}, raw({"name": "c", "version": "1"}), "debug", token)
        wrapped = wrap({"name": raw("t")}, envelope)
        assert wrapped["name"] == raw("t")
        assert unwrap(wrapped) == (envelope, None)


def test_an_envelope_without_what_is_optional_is_whole() -> None:
    assert unwrap(params(REQUIRED)) == (Envelope(V2026_07_28), None)


def test_a_capability_that_is_null_is_not_declared() -> None:
    declared, _ = unwrap(params({VERSION: V2026_07_28, CAPABILITIES: {"sampling": None, "roots": {"x": None}}}))
    assert declared.capabilities == {"roots": raw({"x": None})}


@pytest.mark.parametrize("key", ["progressToken", LOG_LEVEL, INFO])
def test_a_client_that_writes_null_for_what_it_leaves_out_leaves_it_out(key: str) -> None:
    assert unwrap(params({**REQUIRED, key: None, "x": None})) == (Envelope(V2026_07_28), raw({"x": None}))


def test_what_is_said_beside_any_token_of_progress_is_the_same_bytes() -> None:
    apart = [set_apart(params({"progressToken": token, **REQUIRED})) for token in (1, "1", 2)]
    assert apart == [(bytes(raw(REQUIRED)), token) for token in (1, "1", 2)]


@pytest.mark.parametrize("meta", [REQUIRED, {**REQUIRED, "x": {"progressToken": 1}}, {"x": "progressToken"}])
def test_where_there_is_no_token_nothing_is_set_apart(meta: Any) -> None:
    said, token = set_apart(params(meta))
    assert token is None
    assert json.loads(said) == meta


def test_a_token_under_an_escaped_name_is_read_with_the_rest() -> None:
    escaped = bytes(raw({**REQUIRED, "progressToken": 7})).replace(b"progressToken", rb"progressT\u006fken")
    said, token = set_apart({"_meta": Raw(escaped)})
    assert (said, token) == (escaped, None)
    assert read_envelope(said)[0].progress_token == 7


def test_r32_other_keys_of_meta_pass() -> None:
    trace = {"traceparent": "00-1-2-01", "com.example/x": [1, {"y": None}]}
    _, rest = unwrap(params({**REQUIRED, **trace, META_SUBSCRIPTION: 1}))
    assert rest is not None
    assert json.loads(bytes(rest)) == trace


@pytest.mark.parametrize(
    "meta",
    [
        None,
        [],
        "x",
        {},
        {VERSION: V2026_07_28},
        {CAPABILITIES: {}},
        {**REQUIRED, VERSION: 20260728},
        {**REQUIRED, VERSION: None},
        {**REQUIRED, CAPABILITIES: []},
        {**REQUIRED, CAPABILITIES: None},
        {**REQUIRED, INFO: "me"},
        {**REQUIRED, LOG_LEVEL: "loud"},
        {**REQUIRED, LOG_LEVEL: 3},
        {**REQUIRED, "progressToken": 1.5},
        {**REQUIRED, "progressToken": {}},
    ],
)
def test_a_missing_or_ill_typed_field_is_invalid_params(meta: Any) -> None:
    with pytest.raises(InvalidEnvelope) as refusal:
        unwrap(params(meta))
    assert refusal.value.error.code == INVALID_PARAMS


@pytest.mark.parametrize("where", ["_meta", CAPABILITIES])
def test_too_many_members_are_refused_as_that(where: str) -> None:
    many = {str(number): 1 for number in range(1025)}
    with pytest.raises(InvalidEnvelope) as refusal:
        unwrap(params({**REQUIRED, **many} if where == "_meta" else {**REQUIRED, where: many}))
    assert refusal.value.error.message.endswith(f"{where} has more than 1024 members")


def test_a_request_without_meta_is_invalid_params() -> None:
    with pytest.raises(InvalidEnvelope, match="_meta"):
        unwrap({})


@pytest.mark.parametrize("meta", [{"progressToken": 1, LOG_LEVEL: "debug"}, {}, None, [1]])
def test_a_meta_in_which_nothing_is_left_for_the_next_hop_is_left_out(meta: Any) -> None:
    assert without_hop_meta(params(meta, name="t")) == {"name": raw("t")}


def test_of_a_meta_what_belongs_to_no_hop_passes() -> None:
    kept = params({"traceparent": "1"}, name="t")
    assert without_hop_meta(kept) is kept
    assert without_hop_meta(params({"traceparent": "1", "progressToken": 1}, name="t")) == kept


def test_an_unsupported_version_is_answered_with_all_that_are_served() -> None:
    check_version(V2026_07_28)
    with pytest.raises(InvalidEnvelope) as refusal:
        check_version("1900-01-01")
    error = refusal.value.error
    assert error.code == UNSUPPORTED_PROTOCOL_VERSION
    assert error.data is not None
    assert json.loads(bytes(error.data)) == {
        "supported": ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"],
        "requested": "1900-01-01",
    }


@pytest.mark.parametrize("rest", [{}, {CAPABILITIES: []}, {CAPABILITIES: {}, LOG_LEVEL: "loud"}])
def test_of_a_version_that_is_not_served_nothing_else_is_judged(rest: Any) -> None:
    with pytest.raises(InvalidEnvelope) as refusal:
        read_envelope(bytes(raw({VERSION: "2027-03-01", **rest})))
    assert refusal.value.error.code == UNSUPPORTED_PROTOCOL_VERSION


def test_a_handshake_version_in_an_envelope_is_unsupported() -> None:
    with pytest.raises(InvalidEnvelope):
        check_version("2025-11-25")


def test_meta_is_set_beside_what_is_there_and_over_what_is_no_object() -> None:
    assert json.loads(bytes(with_meta(params({"a": 1}), {"b": 2})["_meta"])) == {"a": 1, "b": 2}
    assert json.loads(bytes(with_meta(params([1]), {"b": 2})["_meta"])) == {"b": 2}


def test_a_result_keeps_its_own_members_and_gets_those_it_lacks() -> None:
    result = first_level({"resultType": "x/custom", "n": 1, "_meta": {"k": 1}})
    absent, own = first_level({"resultType": "complete", "ttlMs": 0}), first_level({"n": 2})
    worn = dressed(result, absent, own, meta=server_meta({"name": "s"}))
    assert json.loads(bytes(raw(worn))) == {
        "resultType": "x/custom",
        "n": 2,
        "ttlMs": 0,
        "_meta": {"k": 1, META_SERVER_INFO: {"name": "s"}},
    }


def test_a_result_loses_what_the_handshake_eras_do_not_say_and_keeps_the_rest() -> None:
    hints = {"ttlMs": 5, "cacheScope": "public"}
    worn = first_level({"resultType": "complete", **hints, "n": 1, "_meta": {META_SERVER_INFO: {}}})
    assert undressed(worn) == first_level({"n": 1})
    worn = first_level({"resultType": "complete", "n": 1, "_meta": {META_SERVER_INFO: {}, "k": 2}})
    assert undressed(worn) == first_level({"n": 1, "_meta": {"k": 2}})


@pytest.mark.parametrize("structured", [b"[1]", b'"x"', b"7", b"null", b"true"])
@pytest.mark.parametrize("kind", [{}, {"resultType": "complete"}])
def test_structured_content_that_is_no_object_never_reaches_a_handshake_client(
    structured: bytes, kind: dict[str, object]
) -> None:
    content = {"content": [{"type": "text", "text": "as text"}]}
    assert undressed({**first_level({**kind, **content}), STRUCTURED: Raw(structured)}) == first_level(content)


@pytest.mark.parametrize("structured", ["[1, {}]", '"\u00e9"', "7", "null", "true"])
@pytest.mark.parametrize("content", [{}, {"content": []}])
def test_structured_content_that_is_all_there_is_reaches_a_handshake_client_as_text(
    structured: str, content: dict[str, object]
) -> None:
    result = undressed({**first_level({"resultType": "complete", **content}), STRUCTURED: Raw(structured.encode())})
    assert result == first_level({"content": [{"type": "text", "text": structured}]})


@pytest.mark.parametrize(
    "result", [b'{ "ttlMs": 1.0, "_meta": {} }', b'{"text": "\\"resultType\\"", "a": {"resultType": 1}}']
)
def test_a_result_of_the_handshake_eras_passes_as_it_is(result: bytes) -> None:
    members = parse_object(result)
    assert undressed(members) is members


def test_caching_hints_of_a_stateless_result_are_valid_whatever_the_upstream_wrote() -> None:
    absent = first_level({"resultType": "complete", "ttlMs": 0, "cacheScope": "private"})
    given = {"ttlMs": Raw(b"-5"), "cacheScope": Raw(b"null"), "n": raw(1)}
    worn = dressed(given, absent, {}, meta=server_meta({}))
    assert (worn["ttlMs"], worn["cacheScope"], worn["n"]) == (raw(0), raw("private"), raw(1))
    plain = dressed(given, first_level({"resultType": "complete"}), {}, meta=server_meta({}))
    assert plain["ttlMs"] == Raw(b"-5")
