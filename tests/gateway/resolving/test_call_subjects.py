"""The twin of `mcproxy.gateway.resolving.call_subjects`."""

from __future__ import annotations

import pytest

from mcproxy.call.calls import Call, CallSubject
from mcproxy.call.identity import AGGREGATE, ANONYMOUS, Caller
from mcproxy.gateway.resolving.call_subjects import MAX_UNLISTED
from mcproxy.protocol.eras import LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind, row_of
from tests.fakes.upstream import FakeClient, FakeUpstream, House, house, resource, tool

pytestmark = pytest.mark.anyio


def offering() -> FakeUpstream:
    upstream = FakeUpstream("up")
    upstream.lists[Kind.TOOLS] = [tool("push")]
    upstream.lists[Kind.PROMPTS] = [{"name": "ask"}]
    upstream.lists[Kind.RESOURCES] = [resource("file:///x")]
    return upstream


def subject(h: House, method: str, endpoint: str = AGGREGATE, **params: object) -> CallSubject:
    """Without what is known of it, and decided."""
    caller = Caller(ANONYMOUS, LATEST_HANDSHAKE, endpoint=endpoint)
    found = h.gateway.subject_of(
        Call(row_of(method), {key: raw(value) for key, value in params.items()}, caller, FakeClient())
    )
    return CallSubject(found.upstream, found.kind, found.own)


async def test_a_tool_is_the_same_whatever_it_is_called_at_an_endpoint() -> None:
    async with house(offering()) as h:
        await h.ready()
        assert subject(h, "tools/call", name="up__push") == subject(h, "tools/call", "up", name="push")
        assert subject(h, "tools/call", name="up__push") == CallSubject("up", Kind.TOOLS, "push")


async def test_prompts_resources_and_what_completions_refer_to_are_aimed_at() -> None:
    async with house(offering()) as h:
        await h.ready()
        assert subject(h, "prompts/get", name="up__ask") == CallSubject("up", Kind.PROMPTS, "ask")
        assert subject(h, "resources/read", uri="up+file:///y") == CallSubject("up", Kind.RESOURCES, "file:///y")
        prompt, template = {"type": "ref/prompt", "name": "up__ask"}, {"type": "ref/resource", "uri": "up+x:{y}"}
        assert subject(h, "completion/complete", ref=prompt) == CallSubject("up", Kind.PROMPTS, "ask")
        assert subject(h, "completion/complete", ref=template) == CallSubject("up", Kind.RESOURCES, "x:{y}")


async def test_what_is_not_there_is_no_upstreams() -> None:
    async with house(offering()) as h:
        await h.ready()
        assert subject(h, "tools/list") == subject(h, "made/up", name="up__push") == CallSubject()
        assert subject(h, "tools/call", name="up__other") == CallSubject("", Kind.TOOLS, "up__other")
        assert subject(h, "tools/call", name=7) == CallSubject("", Kind.TOOLS, "")
        assert subject(h, "completion/complete", ref=[]) == CallSubject("", Kind.PROMPTS, "")
        assert subject(h, "tasks/get", taskId="made up") == CallSubject("", None, "made up")


async def test_a_first_call_to_an_upstream_that_lists_nothing_yet_is_aimed_at_it() -> None:
    async with house(FakeUpstream("up")) as h:
        assert subject(h, "tools/call", name="up__push") == CallSubject("up", Kind.TOOLS, "push")
        assert len(subject(h, "tools/call", name="up__" + "x" * 10_000).own) == MAX_UNLISTED
