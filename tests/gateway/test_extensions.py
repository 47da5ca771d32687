"""Extensions that the gateway does not know: they pass where one upstream alone is behind the endpoint.

What such a message does no rule can say: it passes for callers who may use everything of the upstream.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mcproxy.call.calls import Call, Complete, InputRequired
from mcproxy.call.clients import InputRequest
from mcproxy.call.identity import Caller, Principal
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE, Era
from mcproxy.protocol.jsonrpc import METHOD_NOT_FOUND, Params, first_level, raw
from mcproxy.protocol.methods import Kind, row_of_notification
from tests.fakes.upstream import FakeClient, FakeUpstream, House, complete, decoded, error, house, tool

pytestmark = pytest.mark.anyio

NOVEL = "io.example/novel"
METHOD = "novel/do"
DECLARED: Params = {"extensions": raw({NOVEL: {}})}
ERAS = [LATEST, LATEST_HANDSHAKE]


def offering(name: str = "a") -> FakeUpstream:
    made = FakeUpstream(name)
    capabilities = {"tools": raw({}), **DECLARED}
    made.identity = ServerIdentity(Era.STATELESS, LATEST, capabilities)
    made.answers[METHOD] = lambda call: complete(did=decoded(call.params))
    return made


async def extensions(h: House, endpoint: str, version: str = LATEST, principal: Principal | None = None) -> object:
    who = {} if principal is None else {"principal": principal}
    found = await h.call("server/discover", endpoint=endpoint, version=version, capabilities=DECLARED, **who)  # type: ignore[arg-type]
    capabilities = decoded(found)["capabilities"]
    assert isinstance(capabilities, dict)
    return capabilities.get("extensions", {})


@pytest.mark.parametrize("version", ERAS)
async def test_a_request_goes_to_the_only_upstream_as_it_is(version: str) -> None:
    async with house(offering(), FakeUpstream("b")) as h:
        await h.ready()
        assert await extensions(h, "a", version) == {NOVEL: {}}
        outcome = await h.call(METHOD, endpoint="a", version=version, capabilities=DECLARED, name="x", n=1)
        assert decoded(outcome) == {"did": {"name": "x", "n": 1}}
        assert h["a"].calls[-1].caller.capabilities == DECLARED


@pytest.mark.parametrize("version", ERAS)
async def test_where_several_are_behind_the_endpoint_it_is_neither_offered_nor_passed(version: str) -> None:
    async with house(offering(), offering("b")) as h:
        await h.ready()
        assert await extensions(h, "", version) == {}
        refused = error(await h.call(METHOD, version=version, capabilities=DECLARED))
        assert (refused.code, refused.message) == (METHOD_NOT_FOUND, f"Method not found: {METHOD}")
        assert (h["a"].count(METHOD), h["b"].count(METHOD)) == (0, 0)


async def test_the_endpoint_of_all_passes_it_where_there_is_one() -> None:
    async with house(offering()) as h:
        await h.ready()
        assert await extensions(h, "") == {NOVEL: {}}
        assert isinstance(await h.call(METHOD, capabilities=DECLARED, version=LATEST), Complete)


async def test_r79_an_upstream_without_an_unknown_extension_is_sent_no_unknown_method() -> None:
    async with house(FakeUpstream("a")) as h:
        await h.ready()
        assert error(await h.call(METHOD, endpoint="a", capabilities=DECLARED)).code == METHOD_NOT_FOUND


async def test_a_handshake_client_that_did_not_declare_it_has_it_not() -> None:
    async with house(offering()) as h:
        await h.ready()
        assert error(await h.call(METHOD, endpoint="a")).code == METHOD_NOT_FOUND


@pytest.mark.parametrize("method", ["notifications/progress", "sampling/createMessage", "x" * 129, ""])
async def test_a_name_that_no_extension_may_have_does_not_pass(method: str) -> None:
    async with house(offering()) as h:
        await h.ready()
        refused = error(await h.call(method, endpoint="a", version=LATEST, capabilities=DECLARED))
        assert refused.code == METHOD_NOT_FOUND
        assert h["a"].count(method) == 0


@pytest.mark.parametrize(
    ("rules", "passes"),
    [
        ({"allow": [{"upstreams": ["a"]}]}, True),
        ({"allow": [{"upstreams": ["*"]}]}, True),
        ({"allow": [{"upstreams": ["a"], "tools": ["*"]}]}, False),
        ({"allow": [{"upstreams": ["a"], "tools": ["*"], "resources": ["*"], "prompts": ["*"]}]}, True),
        ({"allow": [{"upstreams": ["a"], "tools": ["t*"], "resources": ["*"], "prompts": ["*"]}]}, False),
        ({"allow": [{"upstreams": ["a"]}], "deny": [{"upstreams": ["a"], "tools": ["rm"]}]}, False),
        ({"allow": [{"upstreams": ["a"]}], "deny": [{"upstreams": ["b"], "tools": ["rm"]}]}, True),
        ({"allow": [{"upstreams": ["a"]}, {"upstreams": ["a"], "tools": ["rm"], "approve": "caller"}]}, False),
    ],
)
async def test_it_passes_for_callers_who_may_use_all_of_the_upstream(rules: object, passes: bool) -> None:
    access = {"policy": {"roles": {"staff": rules}}}
    staff = Principal("ann", roles=frozenset({"staff"}))
    async with house(offering(), access=access) as h:
        await h.ready()
        assert await extensions(h, "a", principal=staff) == ({NOVEL: {}} if passes else {})
        outcome = await h.call(METHOD, endpoint="a", version=LATEST, capabilities=DECLARED, principal=staff)
        assert isinstance(outcome, Complete) is passes
        # Another has no role, and the policy denies by default.
        refused = await h.call(METHOD, endpoint="a", version=LATEST, capabilities=DECLARED, principal=Principal("bob"))
        assert error(refused).code == METHOD_NOT_FOUND
        assert h["a"].count(METHOD) == passes


@pytest.mark.parametrize(
    "options",
    [
        {"tools": {"exclude": ["rm"]}},
        {"resources": {"include": ["file:///open/*"]}},
        {"tools": {"overrides": {"t": {"arguments": {"path": {"value": "/srv"}}}}}},
    ],
)
async def test_it_passes_not_where_a_setting_hides_something(options: Mapping[str, object]) -> None:
    async with house(offering(), options={"a": options}) as h:
        await h.ready()
        assert await extensions(h, "a") == {}
        assert error(await h.call(METHOD, endpoint="a", version=LATEST, capabilities=DECLARED)).code == METHOD_NOT_FOUND


@pytest.mark.parametrize(
    "access",
    [
        {"pins": {"mode": "enforce"}},
        {"hooks": [{"on": ["tools/call"], "url": "https://hooks.example/", "secret": "a long secret of the hook"}]},
    ],
)
async def test_it_passes_not_where_pins_or_hooks_could_be_passed_by(access: object) -> None:
    async with house(offering(), access=access) as h:
        await h.ready()
        assert await extensions(h, "a") == {}


async def test_a_limit_counts_it_as_a_call_of_the_upstream() -> None:
    async with house(offering(), access={"limits": {"rules": {"one": {"upstreams": ["a"], "rate": "1/h"}}}}) as h:
        await h.ready()
        outcomes = [await h.call(METHOD, endpoint="a", version=LATEST, capabilities=DECLARED) for _ in range(2)]
        assert [isinstance(outcome, Complete) for outcome in outcomes] == [True, False]
        assert h["a"].count(METHOD) == 1


async def test_a_notification_passes_too() -> None:
    async with house(offering()) as h:
        await h.ready()
        listener = h.listener(endpoint="a")
        listener.caller = Caller(Principal("ann"), LATEST_HANDSHAKE, DECLARED, endpoint="a")
        row = row_of_notification("notifications/novel/poke")
        await h.gateway.handler(Call(row, first_level({"n": 1}), listener.caller, FakeClient(), listener))
        (poked,) = [call for call in h["a"].calls if call.row is row]
        assert decoded(poked.params) == {"n": 1}


def asking(method: str) -> InputRequired:
    question = {"method": method, "params": {"n": 1}}
    result = first_level({"resultType": "input_required", "inputRequests": {"q": question}, "requestState": "s"})
    return InputRequired({"q": InputRequest(method, first_level({"n": 1}))}, "s", result)


async def test_a_question_of_an_extension_reaches_a_stateless_client_and_its_answer_the_upstream() -> None:
    up = offering()
    up.answers[METHOD] = lambda call: (
        complete(heard=decoded(call.params)) if "inputResponses" in call.params else asking("novel/ask")
    )
    async with house(up) as h:
        await h.ready()
        required = await h.call(METHOD, endpoint="a", version=LATEST, capabilities=DECLARED)
        assert isinstance(required, InputRequired)
        assert required.requests["q"].method == "novel/ask"
        outcome = await h.call(
            METHOD,
            endpoint="a",
            version=LATEST,
            capabilities=DECLARED,
            inputResponses={"q": {"yes": 1}},
            requestState=required.state,
        )
        assert decoded(outcome) == {"heard": {"inputResponses": {"q": {"yes": 1}}, "requestState": "s"}}


async def test_a_question_of_an_extension_is_put_to_a_handshake_client() -> None:
    up = offering()
    up.answers[METHOD] = lambda call: (
        complete(heard=decoded(call.params)["inputResponses"])
        if "inputResponses" in call.params
        else asking("novel/ask")
    )
    client = FakeClient(answer={"yes": 1})
    async with house(up) as h:
        await h.ready()
        outcome = await h.call(METHOD, endpoint="a", capabilities=DECLARED, client=client)
        assert decoded(outcome) == {"heard": {"q": {"yes": 1}}}
        assert [request.method for request in client.asked] == ["novel/ask"]


async def test_r79_a_question_of_an_extension_reaches_no_client_where_several_are_behind_the_endpoint() -> None:
    up = offering()
    up.answers["tools/call"] = lambda call: asking("novel/ask")
    up.lists[Kind.TOOLS] = [tool("t")]
    client = FakeClient(answer={"yes": 1})
    async with house(up, FakeUpstream("b")) as h:
        await h.ready()
        for version in ERAS:
            outcome = await h.call(
                "tools/call", version=version, capabilities=DECLARED, client=client, name="a__t", arguments={}
            )
            assert error(outcome).message == "unknown method: novel/ask"
        assert client.asked == []
