"""The twin of `mcproxy.gateway.routing`, `resolving` and `translation`: where calls go, and in whose names."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from mcproxy.call.calls import Call, Complete, Failed, InputRequired, LoginNeed, Outcome
from mcproxy.call.clients import InputRequest, Listener
from mcproxy.call.errors import Party, Reason
from mcproxy.call.upstreams import LoginAwaited
from mcproxy.protocol.eras import HANDSHAKE_VERSIONS, LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import first_level, raw
from mcproxy.protocol.methods import METHODS, Answerer, Kind
from tests.fakes.upstream import (
    FakeClient,
    FakeUpstream,
    House,
    complete,
    decoded,
    error,
    failed,
    house,
    quiet,
    resource,
    text_of,
    tool,
)

pytestmark = pytest.mark.anyio

LINK = {"type": "resource_link", "uri": "file:///b", "name": "b"}


def stocked(name: str) -> FakeUpstream:
    """One of everything, that echoes what it is asked."""
    upstream = FakeUpstream(name)
    upstream.lists = {
        Kind.TOOLS: [tool("do.it"), tool("ask")],
        Kind.RESOURCES: [resource("file:///a"), resource("http://Ex.com")],
        Kind.TEMPLATES: [{"uriTemplate": "db://{table}", "name": "rows"}],
        Kind.PROMPTS: [{"name": "greet"}],
    }
    for row in METHODS.values():
        if row.answerer is Answerer.UPSTREAM:
            upstream.answers[row.name] = echo
    return upstream


def echo(call: Call) -> Outcome:
    return complete(server_got=call.params)


async def ask(
    h: House, method: str, params: Mapping[str, object], *, endpoint: str = "", listener: Listener | None = None
) -> Outcome:
    return await h.call(method, endpoint=endpoint, listener=listener, **params)  # type: ignore[arg-type]  # all params


async def got(h: House, method: str, *, endpoint: str = "", **params: object) -> object:
    """The params that reached the upstream."""
    return decoded(await ask(h, method, params, endpoint=endpoint))["server_got"]


async def test_a_tool_is_called_by_its_own_name_with_everything_else_as_given() -> None:
    async with house(stocked("a"), stocked("b")) as h:
        await h.ready()
        found = await got(h, "tools/call", name="b__do_it", arguments={"x": [1.5]}, _meta={"k": 1}, novel=None)
        assert found == {"name": "do.it", "arguments": {"x": [1.5]}, "_meta": {"k": 1}, "novel": None}
        assert h["a"].count("tools/call") == 0


@pytest.mark.parametrize(
    ("method", "params"), [("tools/call", {"name": "a__ask"}), ("prompts/get", {"name": "a__greet"})]
)
async def test_only_tools_fail_by_themselves(method: str, params: Mapping[str, object]) -> None:
    async with house(stocked("a")) as h:
        await h.ready()
        h["a"].answers[method] = lambda call: complete(isError=True)
        outcome = await ask(h, method, params)
        assert isinstance(outcome, Complete)
        assert outcome.is_error is (method == "tools/call")


async def test_r48_a_call_is_one_upstream_request() -> None:
    async with house(stocked("a")) as h:
        await h.ready()
        before = len(h["a"].calls)
        await h.call("tools/call", name="a__ask")
        assert len(h["a"].calls) == before + 1


async def test_r33_at_its_own_endpoint_an_upstream_is_called_as_it_is() -> None:
    async with house(stocked("a"), stocked("b")) as h:
        await h.ready()
        h["a"].answers["tools/call"] = lambda call: complete(content=[LINK])
        outcome = await h.call("tools/call", endpoint="a", name="do.it")
        assert decoded(outcome) == {"content": [LINK]}
        assert await got(h, "resources/read", endpoint="a", uri="b+file:///x") == {"uri": "b+file:///x"}
        assert error(await h.call("tools/call", endpoint="a", name="a__do_it")).message == "Unknown tool: a__do_it"


async def test_prompts_and_resources_go_to_whom_they_belong() -> None:
    async with house(stocked("a"), stocked("b")) as h:
        await h.ready()
        assert await got(h, "prompts/get", name="b__greet") == {"name": "greet"}
        assert await got(h, "resources/read", uri="b+file:///a") == {"uri": "file:///a"}
        assert await got(h, "resources/read", uri="b+db://unlisted/1") == {"uri": "db://unlisted/1"}


async def test_r63_a_respelled_uri_reaches_the_listed_resource() -> None:
    async with house(stocked("a")) as h:
        await h.ready()
        assert await got(h, "resources/read", uri="a+http://ex.com/") == {"uri": "http://Ex.com"}


async def test_completions_go_by_their_reference() -> None:
    async with house(stocked("a"), stocked("b")) as h:
        await h.ready()
        argument = {"name": "n", "value": "v"}
        prompt = {"type": "ref/prompt", "name": "b__greet", "title": "kept"}
        assert await got(h, "completion/complete", ref=prompt, argument=argument) == {
            "ref": {"type": "ref/prompt", "name": "greet", "title": "kept"},
            "argument": argument,
        }
        template = {"type": "ref/resource", "uri": "a+db://{table}"}
        assert await got(h, "completion/complete", ref=template, argument=argument) == {
            "ref": {"type": "ref/resource", "uri": "db://{table}"},
            "argument": argument,
        }


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ({"type": "ref/prompt", "name": "a__no"}, "Unknown prompt: a__no"),
        ({"type": "ref/prompt"}, '"name" must be given, as a string'),
        ({"type": "ref/resource", "uri": "no:where"}, "Unknown resource: no:where"),
        ({"type": "ref/other"}, '"ref" must be of type "ref/prompt" or "ref/resource"'),
        ("a__greet", '"ref" must be an object'),
    ],
)
async def test_a_completion_of_nothing_known_is_refused(ref: object, message: str) -> None:
    async with house(stocked("a")) as h:
        await h.ready()
        refused = error(await h.call("completion/complete", ref=ref, argument={}))
        assert (refused.code, refused.message) == (-32602, message)


async def test_r27_uris_in_results_are_the_callers() -> None:
    async with house(stocked("a")) as h:
        await h.ready()
        h["a"].answers["tools/call"] = lambda call: complete(content=[LINK])
        h["a"].answers["resources/read"] = lambda call: complete(contents=[{"uri": "file:///a", "text": ""}])
        h["a"].answers["prompts/get"] = lambda call: complete(messages=[{"role": "user", "content": LINK}])
        exposed = {**LINK, "uri": "a+file:///b"}
        assert decoded(await h.call("tools/call", name="a__ask")) == {"content": [exposed]}
        read = decoded(await h.call("resources/read", uri="a+file:///a"))
        assert read == {"contents": [{"uri": "a+file:///a", "text": ""}]}
        prompt = decoded(await h.call("prompts/get", name="a__greet"))
        assert prompt == {"messages": [{"role": "user", "content": exposed}]}


@pytest.mark.parametrize("endpoint", ["", "a"])
async def test_a_tools_own_failure_is_told_at_every_endpoint(endpoint: str) -> None:
    async with house(stocked("a")) as h:
        await h.ready()
        h["a"].answers["tools/call"] = lambda call: complete(content=[], isError=True)
        outcome = await h.call("tools/call", endpoint=endpoint, name="ask" if endpoint else "a__ask")
        assert isinstance(outcome, Complete)
        assert outcome.is_error


@pytest.mark.parametrize(
    ("method", "params", "message", "data"),
    [
        ("tools/call", {"name": "a__no"}, "Unknown tool: a__no", {"name": "a__no"}),
        ("tools/call", {"name": "do.it"}, "Unknown tool: do.it", {"name": "do.it"}),
        ("prompts/get", {"name": "a__no"}, "Unknown prompt: a__no", {"name": "a__no"}),
        ("tools/call", {}, '"name" must be given, as a string', None),
        ("tools/call", {"name": 7}, '"name" must be given, as a string', None),
        ("resources/read", {"uri": ["x"]}, '"uri" must be given, as a string', None),
    ],
)
async def test_what_is_unknown_or_ill_typed_is_refused(
    method: str, params: dict[str, object], message: str, data: object
) -> None:
    async with house(stocked("a")) as h:
        await h.ready()
        refused = error(await ask(h, method, params))
        assert (refused.code, refused.message) == (-32602, message)
        assert (msgspec.json.decode(refused.data) if refused.data else None) == data


@pytest.mark.parametrize(("version", "code"), [*((v, -32002) for v in HANDSHAKE_VERSIONS), (LATEST, -32602)])
async def test_an_unknown_resource_has_the_code_of_the_callers_revision(version: str, code: int) -> None:
    async with house(stocked("a")) as h:
        await h.ready()
        refused = error(await h.call("resources/read", version=version, uri="no+file:///x"))
        assert (refused.code, msgspec.json.decode(refused.data or b"")) == (code, {"uri": "no+file:///x"})


async def test_r38_what_is_excluded_looks_like_what_does_not_exist() -> None:
    rules = {"tools": {"exclude": ["ask"]}, "resources": {"exclude": ["file:*"]}, "prompts": {"exclude": ["*"]}}
    async with house(stocked("a"), options={"a": rules}) as h:
        await h.ready()
        listener = h.listener()
        for method, key, hidden, absent in (
            ("tools/call", "name", "a__ask", "a__nope"),
            ("prompts/get", "name", "a__greet", "a__nope"),
            ("resources/read", "uri", "a+file:///a", "nope:x"),
            ("resources/subscribe", "uri", "a+file:///a", "nope:x"),
        ):
            one = error(await ask(h, method, {key: hidden}, listener=listener))
            other = error(await ask(h, method, {key: absent}, listener=listener))
            assert (one.code, one.message.replace(hidden, "X")) == (other.code, other.message.replace(absent, "X"))
        hidden_ref = {"type": "ref/resource", "uri": "a+file:///a"}
        assert error(await h.call("completion/complete", ref=hidden_ref)).code == -32602
        assert {call.method for call in h["a"].calls} <= {kind.list_method for kind in Kind}


async def test_a_method_without_a_row_is_not_found() -> None:
    async with house(stocked("a")) as h:
        await h.ready()
        assert error(await h.call("no/such")).code == -32601
        assert error(await h.call("initialize")).code == -32601


async def test_a_method_that_no_upstream_offers_is_not_found() -> None:
    async with house(FakeUpstream("a", tools={})) as h:
        await h.ready()
        for method in ("prompts/list", "prompts/get", "completion/complete", "logging/setLevel"):
            assert error(await h.call(method)).code == -32601
        assert decoded(await h.call("tools/list"))["tools"] == []


async def test_an_endpoint_that_does_not_exist_offers_nothing() -> None:
    async with house(stocked("a")) as h:
        await h.ready()
        assert error(await h.call("tools/list", endpoint="nope")).code == -32601
        assert error(await h.call("resources/subscribe", endpoint="nope")).code == -32601


async def test_an_upstreams_error_passes_untouched() -> None:
    async with house(stocked("a")) as h:
        await h.ready()
        theirs = failed("file:///a is locked", -32042, Reason.TIMEOUT)
        h["a"].answers["tools/call"] = lambda call: theirs
        assert await h.call("tools/call", name="a__ask") is theirs


@pytest.mark.parametrize("endpoint", ["", "a"])
async def test_r27_an_error_about_the_requested_resource_names_it_as_the_caller_did(endpoint: str) -> None:
    prefix = "" if endpoint else "a+"
    about = {"uri": "http://Ex.com", "why": ["http://Ex.com"]}
    async with house(stocked("a")) as h:
        await h.ready()
        h["a"].answers["resources/read"] = lambda call: failed("no http://Ex.com", -32002, data=about)
        refused = error(await h.call("resources/read", endpoint=endpoint, uri=f"{prefix}http://ex.com/"))
        assert refused.message == "no http://Ex.com"
        assert refused.data is not None
        assert decoded(refused.data) == {**about, "uri": f"{prefix}http://ex.com/"}


@pytest.mark.parametrize("data", [{"uri": "file:///other"}, {"uri": 1}, ["http://Ex.com"], "http://Ex.com", None])
async def test_r27_other_data_of_an_error_passes_untouched(data: object) -> None:
    async with house(stocked("a")) as h:
        await h.ready()
        theirs = failed("no", -32002, data=data)
        h["a"].answers["resources/read"] = lambda call: theirs
        assert await h.call("resources/read", uri="a+http://ex.com/") == theirs


@pytest.mark.parametrize(
    ("annotations", "repeatable"),
    [({"readOnlyHint": True}, True), ({"idempotentHint": True}, True), ({"title": "t"}, False)],
)
async def test_r4_a_call_is_repeatable_where_its_tool_says_so(annotations: dict[str, object], repeatable: bool) -> None:
    upstream = stocked("a")
    upstream.lists[Kind.TOOLS] = [{**tool("do"), "annotations": annotations}]
    async with house(upstream) as h:
        await h.ready()
        await h.call("tools/call", name="a__do")
        assert h["a"].calls[-1].repeatable is repeatable


async def test_what_an_upstream_asks_comes_in_the_callers_names() -> None:
    async with house(Asking("a")) as h:
        await h.ready()
        client, listener = FakeClient(answer={"role": "assistant"}), h.listener()
        found = await h.call("tools/call", name="a__ask", client=client, listener=listener)
        assert decoded(found) == {"client": {"role": "assistant"}, "listener_uri": "a+file:///b"}
        assert msgspec.json.decode(client.asked[0].params["messages"])[0]["content"]["uri"] == "a+file:///b"
        assert client.notified == [("notifications/progress", {"progress": raw(1)})]


class Asking(FakeUpstream):
    """Asks the client, during the call and after it, about a resource of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(name, tools={})
        self.lists[Kind.TOOLS] = [tool("ask")]

    async def __call__(self, call: Call) -> Outcome:
        if METHODS[call.method].lists is not None:
            return await super().__call__(call)
        call.client.notify("notifications/progress", {"progress": raw(1)})
        request = InputRequest("sampling/createMessage", {"messages": raw([{"role": "user", "content": LINK}])})
        answer = await call.client.ask(request)
        assert call.listener is not None
        between = msgspec.json.decode(await call.listener.ask(request))
        return complete(client=answer, listener_uri=between["messages"][0]["content"]["uri"])


async def test_an_unfinished_result_comes_in_the_callers_names() -> None:
    async with house(stocked("a")) as h:
        await h.ready()
        params = {"messages": raw([{"role": "user", "content": LINK}])}
        asked = {"q": {"method": "sampling/createMessage", "params": params}}
        unfinished = InputRequired(
            {"q": InputRequest("sampling/createMessage", params)}, None, first_level({"inputRequests": asked})
        )
        h["a"].answers["tools/call"] = lambda call: unfinished
        outcome = await h.call("tools/call", name="a__ask", version=LATEST, capabilities={"sampling": raw({})})
        assert isinstance(outcome, InputRequired)
        assert b"a+file:///b" in bytes(outcome.requests["q"].params["messages"])
        assert b"a+file:///b" in bytes(raw(outcome.result))


async def test_r52_labels_hold_known_names_alone() -> None:
    async with house(stocked("a")) as h:
        await h.ready()
        await h.call("tools/call", name="a__ask")
        await h.call("tools/call", name="made-up")
        await h.call("resources/read", uri="a+file:///made-up")

        def count(**labels: str) -> float | None:
            return h.metrics.registry.get_sample_value("mcproxy_requests_total", labels)

        assert count(upstream="a", method="tools/call", subject="a__ask", outcome="ok") == 1
        assert count(upstream="unknown", method="tools/call", subject="unknown", outcome="protocol_error") == 1
        assert count(upstream="a", method="resources/read", subject="", outcome="ok") == 1
        labels = {"upstream": "a", "method": "tools/call"}
        assert h.metrics.registry.get_sample_value("mcproxy_upstream_duration_seconds_count", labels) == 1


async def test_every_call_that_the_table_gives_to_the_gateway_is_answered_by_it() -> None:
    async with house(stocked("a")) as h:
        await h.ready()
        for row in METHODS.values():
            if row.answerer is Answerer.GATEWAY:
                params = {"uri": "a+file:///a", "level": "info"}
                outcome = await ask(h, row.name, params, listener=h.listener())
                assert not isinstance(outcome, Failed) or outcome.error.code != -32603, row.name


async def test_the_upstreams_own_name_is_what_it_hears() -> None:
    async with house(stocked("a")) as h:
        await h.ready()
        await h.call("prompts/get", name="a__greet", version=LATEST_HANDSHAKE)
        assert text_of(h["a"].calls[-1].params["name"]) == "greet"


async def test_content_that_an_upstream_may_not_send_is_an_error_that_names_it() -> None:
    upstream = stocked("docs")
    upstream.answers["resources/read"] = lambda call: complete(contents=[{"uri": "file:///a", "mimeType": "text/html"}])
    async with house(upstream, options={"docs": {"content": {"types": ["text/plain"]}}}) as gateway:
        await gateway.ready()
        outcome = await gateway.call("resources/read", uri="docs+file:///a")
        assert error(outcome).message == "upstream 'docs' sent content of the type 'text/html' (content.types)"
        assert isinstance(outcome, Failed)
        assert outcome.party is Party.UPSTREAM


async def test_r27_content_that_is_kept_is_judged_and_named_on_every_read() -> None:
    upstream = stocked("docs")
    kinds = {"file:///good": "text/plain", "file:///bad": "text/html"}
    upstream.answers["resources/read"] = lambda call: complete(
        contents=[{"uri": uri, "mimeType": kinds[uri]} for uri in (text_of(call.params["uri"]),)], cacheScope="public"
    )
    options = {"docs": {"content": {"types": ["text/plain"]}, "cache": {"ttl": {"*": 60}}}}
    async with house(upstream, options=options) as gateway:
        await gateway.ready()
        for _ in range(3):
            good = await gateway.call("resources/read", uri="docs+file:///good")
            assert decoded(good)["contents"] == [{"uri": "docs+file:///good", "mimeType": "text/plain"}]
            bare = await gateway.call("resources/read", uri="file:///good", endpoint="docs")
            assert decoded(bare)["contents"] == [{"uri": "file:///good", "mimeType": "text/plain"}]
            bad = await gateway.call("resources/read", uri="docs+file:///bad")
            assert "content.types" in error(bad).message
        assert len([call for call in upstream.calls if call.method == "resources/read"]) == 2


GUARDED: Mapping[str, Mapping[str, object]] = {"a": {"command": None, "url": "https://up.example/mcp", "oauth": {}}}


class Guarded(FakeUpstream):
    """Connects without a token, and lists nothing until somebody has logged in."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.lists[Kind.TOOLS] = [tool("work")]
        self.lists[Kind.PROMPTS] = [{"name": "greet"}]
        self.logged_in = False

    def _answer(self, call: Call) -> Outcome:
        if self.logged_in:
            return complete() if call.row.lists is None else super()._answer(call)
        self.on_event(LoginAwaited(self.name, None, awaited=True))
        need = LoginNeed(self.name, None, "there is no valid login")
        return replace(failed("log in first", reason=Reason.LOGIN_NEEDED), login=need)

    def log_in(self) -> None:
        self.logged_in = True
        self.on_event(LoginAwaited(self.name, None, awaited=False))


@pytest.mark.parametrize(
    ("method", "name"), [("tools/call", "a__work"), ("prompts/get", "a__greet"), ("tools/call", "a__any")]
)
async def test_r67_a_call_asks_for_the_login_that_the_list_of_its_server_needs(method: str, name: str) -> None:
    async with house(Guarded("a"), options=GUARDED) as h:
        h["a"].connect()
        await h["a"].called("prompts/list" if method == "prompts/get" else "tools/list")
        for _ in range(2):
            outcome = await h.call(method, name=name)
            assert isinstance(outcome, Failed)
            assert outcome.reason is Reason.LOGIN_NEEDED, outcome


async def test_r67_a_call_that_comes_while_the_list_is_refused_asks_for_the_login() -> None:
    async with house(Guarded("a"), options=GUARDED) as h:
        h["a"].gate.shut()
        h["a"].connect()
        outcomes: list[Outcome] = []

        async def call() -> None:
            outcomes.append(await h.call("tools/call", name="a__work"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await h["a"].called("tools/list")
            await quiet()
            h["a"].gate.open()
        assert [type(each) for each in outcomes] == [Failed]
        assert "log in first" in str(outcomes)


async def test_r67_the_login_tool_is_answered_after_its_login_before_and_after_the_lists_are_there() -> None:
    upstream = Guarded("a")
    async with house(upstream, options=GUARDED) as h:
        upstream.connect()
        await upstream.called("tools/list")
        await quiet()
        assert h.names(Kind.TOOLS) == ["a__login"]
        upstream.log_in()
        for _ in range(2):
            outcome = await h.call("tools/call", name="a__login")
            assert isinstance(outcome, Complete), outcome
            assert "No login is needed at a now" in str(decoded(outcome)["content"])
        assert h.names(Kind.TOOLS) == ["a__work"]
        unknown = await h.call("tools/call", name="a__other")
        assert isinstance(unknown, Failed)
        assert "Unknown tool" in unknown.error.message


async def test_a_servers_own_tool_with_the_name_of_the_login_tool_is_called() -> None:
    upstream = Guarded("a")
    upstream.lists[Kind.TOOLS] = [tool("login")]
    async with house(upstream, options=GUARDED) as h:
        upstream.connect()
        await upstream.called("tools/list")
        await quiet()
        upstream.log_in()
        assert isinstance(await h.call("tools/call", name="a__login"), Complete)
        assert upstream.count("tools/call") == 1
