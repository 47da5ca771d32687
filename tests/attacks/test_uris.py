"""Attempts to read a resource that a policy denies, by URIs that servers read in more than one way."""

from __future__ import annotations

from typing import Any

import pytest

from mcproxy.call.identity import Principal
from mcproxy.catalog.uris import MAX_URI
from mcproxy.protocol.jsonrpc import INVALID_PARAMS
from mcproxy.protocol.methods import Kind
from tests.fakes.upstream import FakeUpstream, complete, error, house, resource

pytestmark = pytest.mark.anyio

ANN = Principal("ann")
ALLOWING: dict[str, Any] = {
    "default": "deny",
    "roles": {"everyone": {"allow": [{"resources": ["notes://public/*", "ui://public/*"]}]}},
}
DENYING: dict[str, Any] = {
    "default": "allow",
    "roles": {"everyone": {"deny": [{"resources": ["notes://private/*", "ui://private/*"]}]}},
}
METHODS = ("resources/read", "resources/subscribe")


def notes() -> FakeUpstream:
    upstream = FakeUpstream("a", resources={"subscribe": True}, completions={})
    upstream.lists[Kind.RESOURCES] = [resource("notes://public/a.md"), resource("notes://private/s.md")]
    for method in (*METHODS, "completion/complete"):
        upstream.answers[method] = lambda call: complete(did=call.method)
    return upstream


@pytest.mark.parametrize("policy", [ALLOWING, DENYING], ids=["allow", "deny"])
@pytest.mark.parametrize(
    "uri",
    [
        "a+notes://private/s.md",
        "a+notes://public/../private/s.md",
        "a+notes://public/%2e%2e/private/s.md",
        "a+notes://public/..%2Fprivate/s.md",
        "a+notes://public/..%252Fprivate/s.md",
        "a+notes://public/..;/private/s.md",
        "a+notes://public/%u002e%u002e/private/s.md",
        "a+notes://public/\uff0e\uff0e/private/s.md",
        "a+notes://public\\..\\private/s.md",
        "a+notes://public%2f../private/s.md",
        "a+notes:///private/s.md",
        "a+NOTES://Private/s.md",
        "a+notes://private:80/s.md",
        "a+notes://somebody@private:80/s.md",
        "a+notes://%2570rivate/s.md",
        "ui://a/public/../private/s.html",
        "ui://a/public/..%2Fprivate/s.html",
        "ui://a//private/s.html",
    ],
)
async def test_r38_no_spelling_of_a_uri_leads_to_a_resource_that_is_denied(policy: dict[str, Any], uri: str) -> None:
    async with house(notes(), access={"policy": policy}) as h:
        await h.ready()
        listener = h.listener(principal=ANN)
        for method in METHODS:
            assert error(await h.call(method, listener=listener, principal=ANN, uri=uri))
        reference = {"type": "ref/resource", "uri": uri}
        assert error(await h.call("completion/complete", principal=ANN, ref=reference, argument={}))
        assert [call.method for call in h["a"].calls if call.method in (*METHODS, "completion/complete")] == []
        await h.call("resources/read", principal=ANN, uri="a+notes://public/b/c.md")
        assert h["a"].count("resources/read") == 1


@pytest.mark.parametrize("method", METHODS)
async def test_r78_a_uri_that_is_too_long_is_refused_unread_and_not_sent_back(method: str) -> None:
    uri = "a+notes://public/" + "%2e%2e/" * 300_000
    async with house(notes(), access={"policy": ALLOWING}) as h:
        await h.ready()
        listener = h.listener(principal=ANN)
        refused = error(await h.call(method, listener=listener, principal=ANN, uri=uri))
        assert (refused.code, refused.message) == (INVALID_PARAMS, f"the URI has more than {MAX_URI} characters")
        assert refused.data is None
        assert h["a"].count(method) == 0


async def test_a_resource_that_is_too_long_to_be_read_is_not_listed() -> None:
    upstream = notes()
    long = [resource("x:" + "a" * (MAX_URI - 4)), resource("x:" + "b" * (MAX_URI - 3))]
    upstream.lists[Kind.RESOURCES] = [*upstream.lists[Kind.RESOURCES], *long]
    async with house(upstream) as h:
        await h.ready()
        listed = await h.listed(Kind.RESOURCES)
        assert [uri[:5] for uri in listed] == ["a+not", "a+not", "a+x:a"]
        assert max(map(len, listed)) == MAX_URI
