"""What is checked of a stateless request before it is served, apart from any transport."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.access.identity import Identified, anonymous_from
from mcproxy.call.calls import Complete
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError
from mcproxy.call.identity import ANONYMOUS, Caller, ForwardedCredentials, Principal
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.open_streams import IdentifyAgain
from mcproxy.downstream.io.request_head import RequestHead, read_headers
from mcproxy.downstream.stateless.conversation import admit, admit_over_http, respond
from mcproxy.http import server as http
from mcproxy.protocol.eras import HOP_META, META_CLIENT_CAPABILITIES, META_VERSION
from mcproxy.protocol.headers import MirroredParameter
from mcproxy.protocol.jsonrpc import HEADER_MISMATCH, Message, Request, parse_object, raw
from mcproxy.protocol.methods import METHODS
from mcproxy.settings.access.authentication import Authentication
from tests.downstream.modern import ENVELOPE, headers_of
from tests.downstream.modern import request as message
from tests.fakes.gateway import FakeGateway, asking, edge_of

pytestmark = pytest.mark.anyio

REGION = MirroredParameter("Mcp-Param-Region", ("region",), "string")


def knowing(context: TransportContext, *mirrored: MirroredParameter) -> TransportContext:
    """The edge with a catalogue of one tool."""

    def of_tool(caller: Caller, tool: str) -> Sequence[MirroredParameter]:
        return mirrored if tool == "t" else ()

    return replace(context, mirrored=of_tool)


def call(name: str, arguments: Any) -> Request:
    params = {"name": name, "arguments": arguments, "_meta": ENVELOPE}
    return Request(1, "tools/call", {key: raw(value) for key, value in params.items()})


def posted(
    name: str,
    principal: Principal = ANONYMOUS,
    endpoint: str = "",
    credentials: ForwardedCredentials | None = None,
    **params: str,
) -> tuple[http.Headers, RequestHead]:
    """The header fields of a POST, and what its handler is told of them."""
    mirrored = {f"Mcp-Param-{key}": value for key, value in params.items()}
    headers = {**headers_of(message(1, "tools/call", {"name": name})), **mirrored}
    fields = http.Headers.of(headers.items())
    found = Identified(principal, Authentication())
    return fields, RequestHead(endpoint, read_headers(fields), found, principal, _never_again, credentials)


def _never_again(request: http.Request) -> IdentifyAgain:
    raise AssertionError


async def test_a_header_of_a_tools_parameter_must_be_its_argument() -> None:
    async with edge_of(FakeGateway()) as bare:
        context = knowing(bare, REGION)
        request = call("t", {"region": "eu"})
        admit_over_http(context, request, *posted("t", Region="eu"))
        for wrong in (posted("t"), posted("t", Region="us"), posted("t", Region="=?base64?x?=")):
            with pytest.raises(McpError) as refusal:
                admit_over_http(context, request, *wrong)
            assert refusal.value.code == HEADER_MISMATCH


async def test_parameters_of_a_tool_that_is_not_known_are_not_compared() -> None:
    async with edge_of(FakeGateway()) as bare:
        request = call("other", {"region": "eu"})
        admit_over_http(knowing(bare, REGION), request, *posted("other", Region="us"))


async def test_without_headers_the_body_alone_counts() -> None:
    async with edge_of(FakeGateway()) as bare:
        admitted = admit(knowing(bare, REGION), call("t", {"region": "eu"}), ANONYMOUS, "up")
        assert admitted.caller.transport == "stdio"
        assert admitted.caller.endpoint == "up"
        assert "_meta" not in admitted.params


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(METHODS)), st.dictionaries(st.sampled_from([*HOP_META]), ANYTHING), ANYTHING, ANYTHING)
async def test_any_request_is_admitted_or_refused(method: str, meta: Any, name: Any, arguments: Any) -> None:
    params = {"name": name, "uri": name, "arguments": arguments, "_meta": {**ENVELOPE, **meta}}
    request = Request(1, method, {key: raw(value) for key, value in params.items()})
    async with edge_of(FakeGateway()) as bare:
        with suppress(McpError):
            admit_over_http(knowing(bare, REGION), request, *posted("t", Region="eu"))


async def test_r26_a_client_is_asked_nothing_while_its_request_runs() -> None:
    gateway = FakeGateway()
    gateway.answers["tools/call"] = asking("roots/list")
    sent: list[Message] = []
    async with edge_of(gateway) as context:
        await respond(context, admit(context, call("t", {}), ANONYMOUS, ""), sent.append)
    (answer,) = sent
    assert not isinstance(answer, Request)
    with pytest.raises(McpError):
        await gateway.calls[0].client.ask(InputRequest("roots/list", {}))


async def test_r24_nothing_follows_the_answer() -> None:
    gateway = FakeGateway()
    sent: list[Message] = []
    async with edge_of(gateway) as context:
        params = {"name": "t", "_meta": {**ENVELOPE, "progressToken": 1}}
        request = Request(1, "tools/call", {key: raw(value) for key, value in params.items()})
        await respond(context, admit(context, request, ANONYMOUS, ""), sent.append)
    gateway.calls[0].client.notify("notifications/progress", {"progress": raw(1)})
    assert len(sent) == 1


async def test_r32_what_a_result_holds_passes_byte_for_byte() -> None:
    odd = b'{"content":[{"type":"odd" , "n":1.0e+2}],"x":{"deep":[ 1 ]}}'

    async def answer(call: Any) -> Complete:
        return Complete(parse_object(odd))

    gateway = FakeGateway()
    gateway.answers["tools/call"] = answer
    sent: list[Any] = []
    async with edge_of(gateway) as context:
        await respond(context, admit(context, call("t", {}), ANONYMOUS, ""), sent.append)
    assert b'[{"type":"odd" , "n":1.0e+2}]' in bytes(raw(sent[0].result))
    assert b'{"deep":[ 1 ]}' in bytes(raw(sent[0].result))


def saying(meta: Any, id: int = 1) -> Request:
    return Request(id, "tools/call", {"name": raw("t"), "_meta": raw(meta)})


async def test_a_client_that_says_the_same_again_is_the_same_caller() -> None:
    async with edge_of(FakeGateway()) as context:
        first = admit(context, saying(ENVELOPE), ANONYMOUS, "")
        again = admit(context, saying({**ENVELOPE, "progressToken": 2}, 2), ANONYMOUS, "")
        assert again.caller is first.caller
        assert (first.progress_token, again.progress_token) == (None, 2)


async def test_a_retry_may_write_null_for_the_state_that_it_was_not_given() -> None:
    params: Any = {"name": "t", "arguments": None, "inputResponses": {"k": {}}, "requestState": None, "_meta": ENVELOPE}
    async with edge_of(FakeGateway()) as context:
        request = Request(1, "tools/call", {key: raw(value) for key, value in params.items()})
        admitted = admit(context, request, ANONYMOUS, "").params
        assert admitted == {"name": raw("t"), "arguments": raw(None), "inputResponses": raw({"k": {}})}


@pytest.mark.parametrize("change", ["principal", "scopes", "endpoint", "transport", "capabilities"])
async def test_a_difference_in_anything_makes_another_caller(change: str) -> None:
    one = Principal("a", scopes=frozenset({"x"}))
    who = {"principal": Principal("b"), "scopes": replace(one, scopes=frozenset())}.get(change, one)
    endpoint = "up" if change == "endpoint" else ""
    said = {**ENVELOPE, META_CLIENT_CAPABILITIES: {"roots": {}}} if change == "capabilities" else ENVELOPE
    async with edge_of(FakeGateway()) as context:
        first = admit(context, saying(ENVELOPE), one, "").caller
        if change == "transport":
            other = admit_over_http(context, saying(said), *posted("t", who, endpoint)).caller
        else:
            other = admit(context, saying(said), who, endpoint).caller
        assert other != first
        assert (other.principal, other.endpoint) == (who, endpoint)
        assert other.transport == ("http" if change == "transport" else "stdio")
        assert ("roots" in other.capabilities) == (change == "capabilities")


async def test_r44_what_a_client_brings_for_upstreams_is_of_its_own_request_alone() -> None:
    async with edge_of(FakeGateway()) as context:
        own = ForwardedCredentials("k", {"x-key": "secret"})
        assert admit_over_http(context, saying(ENVELOPE), *posted("t", credentials=own)).caller.credentials is own
        assert admit(context, saying(ENVELOPE), ANONYMOUS, "").caller.credentials is None


async def test_r32_what_else_a_client_says_in_meta_goes_on_however_long() -> None:
    async with edge_of(FakeGateway()) as context:
        for trace in ("x", "x" * 5000):
            params = admit(context, saying({**ENVELOPE, "com.example/x": trace}), ANONYMOUS, "").params
            assert params == {"name": raw("t"), "_meta": raw({"com.example/x": trace})}


@pytest.mark.parametrize("wrong", ["version", "method", "name"])
async def test_headers_that_agreed_with_one_body_are_compared_with_each_other_one(wrong: str) -> None:
    head = posted("t")
    said = {**ENVELOPE, META_VERSION: "2026-07-29"} if wrong == "version" else ENVELOPE
    params = {"name": raw("other" if wrong == "name" else "t"), "_meta": raw(said)}
    other = Request(2, "prompts/get" if wrong == "method" else "tools/call", params)
    async with edge_of(FakeGateway()) as context:
        for _ in range(2):
            admit_over_http(context, saying(ENVELOPE), *head)
            with pytest.raises(McpError) as refusal:
                admit_over_http(context, other, *head)
            assert refusal.value.code == HEADER_MISMATCH


@pytest.mark.parametrize("name", [1, None, ["t"]])
async def test_a_subject_that_is_no_name_is_looked_at_each_time(name: Any) -> None:
    head = posted("t")
    odd = Request(2, "tools/call", {"name": raw(name), "_meta": raw(ENVELOPE)})
    async with edge_of(FakeGateway()) as context:
        for _ in range(2):
            assert admit_over_http(context, odd, *head).params == {"name": raw(name)}
            with pytest.raises(McpError):
                admit_over_http(context, call("other", {}), *head)


async def test_headers_of_a_tools_parameters_are_compared_with_each_body() -> None:
    head = posted("t", Region="eu")
    async with edge_of(FakeGateway()) as bare:
        context = knowing(bare, REGION)
        for _ in range(2):
            admit_over_http(context, call("t", {"region": "eu"}), *head)
            with pytest.raises(McpError):
                admit_over_http(context, call("t", {"region": "us"}), *head)


@pytest.mark.parametrize("change", ["capabilities", "token"])
async def test_a_client_that_says_other_things_with_the_same_head_is_another_caller(change: str) -> None:
    ann = Principal("ann", scopes=frozenset({"x"}))
    head = posted("t", ann, "up")
    said = {**ENVELOPE, META_CLIENT_CAPABILITIES: {"roots": {}}} if change == "capabilities" else ENVELOPE
    token = {"progressToken": 7} if change == "token" else {}
    async with edge_of(FakeGateway()) as context:
        for _ in range(2):
            first = admit_over_http(context, saying(ENVELOPE), *head)
            assert (first.caller.principal, first.caller.endpoint) == (ann, "up")
            assert (first.caller.capabilities, first.progress_token) == ({}, None)
            other = admit_over_http(context, saying({**said, **token}), *head)
            assert (other.caller.principal, other.caller.endpoint) == (ann, "up")
            assert ("roots" in other.caller.capabilities) == (change == "capabilities")
            assert other.progress_token == (7 if change == "token" else None)


@pytest.mark.parametrize("change", ["principal", "scopes", "endpoint"])
async def test_the_same_body_with_the_head_of_another_is_another_caller(change: str) -> None:
    ann = Principal("ann", scopes=frozenset({"x"}))
    who = {"principal": Principal("bob"), "scopes": replace(ann, scopes=frozenset())}.get(change, ann)
    endpoint = "up" if change == "endpoint" else ""
    async with edge_of(FakeGateway()) as context:
        for principal, where in ((ann, ""), (who, endpoint), (ann, "")):
            caller = admit_over_http(context, saying(ENVELOPE), *posted("t", principal, where)).caller
            assert (caller.principal, caller.endpoint) == (principal, where)


async def test_r54_a_caller_without_authentication_is_not_taken_for_one_of_another_address_that_says_the_same() -> None:
    async with edge_of(FakeGateway()) as context:
        for peer in ("203.0.113.7", "198.51.100.9", "203.0.113.7"):
            head = posted("t", anonymous_from(peer))
            assert admit_over_http(context, saying(ENVELOPE), *head).caller.principal.account == f"anonymous at {peer}"
