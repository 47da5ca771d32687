"""The twin of `mcproxy.gateway.gateway`: what only the whole of it shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import get_args

import anyio
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from mcproxy.call.calls import Call, Complete, InputRequired, Outcome
from mcproxy.call.clients import Change, InputRequest, ListChanged, ResourceUpdated
from mcproxy.call.identity import ANONYMOUS, Principal
from mcproxy.call.upstreams import PushChannel, UnannouncedLists, UpstreamChanged, UpstreamEvent
from mcproxy.catalog.instructions import INSTRUCTIONS_URI
from mcproxy.gateway.component import Component
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import LIMIT_EXCEEDED, METHOD_NOT_FOUND, raw
from mcproxy.protocol.methods import ROOTS_CHANGED, Kind
from mcproxy.settings import Settings
from tests.fakes.upstream import FakeUpstream, House, complete, decoded, error, house, quiet, resource, tool

pytestmark = pytest.mark.anyio


async def test_r60_changed_roots_concern_the_sessions_own_links_alone() -> None:
    own, shared = FakeUpstream("own"), FakeUpstream("shared")
    own.answers[ROOTS_CHANGED] = shared.answers[ROOTS_CHANGED] = lambda call: complete()
    async with house(own, shared, options={"own": {"connection": "session"}}) as h:
        await h.ready()
        listener = h.listener(session="s1")
        await own.called("tools/list", 2)
        assert decoded(await h.call(ROOTS_CHANGED, listener=listener)) == {}
        assert [call.caller.session for call in own.calls if call.method == ROOTS_CHANGED] == ["s1"]
        assert shared.count(ROOTS_CHANGED) == 0


@pytest.mark.parametrize("session", ["s1", None])
async def test_r60_changed_roots_of_one_session_do_not_concern_the_link_of_all_sessions_of_its_principal(
    session: str | None,
) -> None:
    own = FakeUpstream("own")
    own.answers[ROOTS_CHANGED] = own.answers["tools/call"] = lambda call: complete(content=[])
    own.lists[Kind.TOOLS] = [tool("t")]
    own.owner_of = lambda call: call.over or (None if call.caller.principal == ANONYMOUS else call.caller.principal.key)
    async with house(own, options={"own": {"connection": "principal"}}) as h:
        await h.ready()
        listener = h.listener(session=session, principal=Principal("ann"))
        decoded(await h.call("tools/call", listener=listener, name="own__t", arguments={}))
        await quiet()
        assert decoded(await h.call(ROOTS_CHANGED, listener=listener)) == {}
        assert own.count(ROOTS_CHANGED) == 0


async def test_a_link_that_was_never_made_is_not_made_for_changed_roots() -> None:
    own = FakeUpstream("own")
    async with house(own, options={"own": {"connection": "session"}}) as h:
        await h.call(ROOTS_CHANGED, session="s1")
        assert own.calls == []


async def test_r54_sessions_that_come_and_go_leave_nothing_behind() -> None:
    own = FakeUpstream("own")
    own.lists[Kind.TOOLS] = [tool("x")]
    own.answers["resources/subscribe"] = lambda call: complete()
    async with house(own, options={"own": {"connection": "session"}}) as h:
        await h.ready()
        for number in range(50):
            listener = h.listener(session=f"s{number}")
            await h.listed(Kind.TOOLS, listener=listener)
            await h.call("resources/subscribe", listener=listener, uri="own+file:///x")
            h.gateway.leave(listener)
        await quiet()
        assert own.released == [f"s{number}" for number in range(50)]
        last = h.listener(session="last")
        own.announce(ListChanged(Kind.TOOLS), "s1")
        own.announce(ResourceUpdated("file:///x"), "s1")
        assert last.changes == []


async def test_events_of_an_upstream_that_is_not_configured_are_ignored() -> None:
    async with house(FakeUpstream("a")) as h:
        stranger = FakeUpstream("stranger")
        stranger.on_event = h.gateway.on_event
        listener = h.listener(level="debug")
        stranger.connect()
        stranger.announce(ListChanged(Kind.TOOLS))
        stranger.announce(ResourceUpdated("file:///x"))
        stranger.disconnect()
        await quiet()
        assert listener.changes == []
        assert stranger.calls == []


class AskingUpstream(FakeUpstream):
    """Asks its caller for roots during each call of a tool, until the test has it give up; says what it got."""

    def __init__(self) -> None:
        super().__init__("up", tools={})
        self.lists[Kind.TOOLS] = [tool("ask")]
        self.gives_up = anyio.Event()

    async def __call__(self, call: Call) -> Outcome:
        if call.row.named_in is not Kind.TOOLS:
            return await super().__call__(call)
        got: object = None

        async def ask() -> None:
            nonlocal got
            got = await call.client.ask(InputRequest("roots/list", {}))
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await self.gives_up.wait()
            tasks.cancel_scope.cancel()
        return complete(content=[], structuredContent={"got": got})


async def asked(h: House, **params: object) -> Outcome:
    return await h.call("tools/call", version=LATEST, capabilities={"roots": raw({})}, name="up__ask", **params)  # type: ignore[arg-type]  # as in `call`


@asynccontextmanager
async def one_at_once(up: AskingUpstream) -> AsyncIterator[House]:
    """A gateway that lets each principal make one call at once; no time goes by for it."""
    access = {"limits": {"rules": {"each": {"per": ["principal"], "at_once": 1, "tools": ["*"]}}}}
    async with house(up, access=access) as h, anyio.create_task_group() as tasks:

        async def wake() -> None:
            while True:
                await anyio.lowlevel.checkpoint()
                h.sleeper.wake()

        tasks.start_soon(wake)
        await h.ready()
        yield h
        tasks.cancel_scope.cancel()


async def test_a_parked_call_counts_among_the_calls_at_once_until_it_is_over_and_its_retry_is_no_other() -> None:
    async with one_at_once(AskingUpstream()) as h:
        paused = await asked(h)
        assert isinstance(paused, InputRequired)
        assert error(await asked(h)).code == LIMIT_EXCEEDED
        assert error(await asked(h, requestState="made up")).code == LIMIT_EXCEEDED
        retried = await asked(h, requestState=paused.state, inputResponses={"1": {"roots": []}})
        assert decoded(retried)["structuredContent"] == {"got": {"roots": []}}
        await quiet()
        assert isinstance(await asked(h), InputRequired)


async def test_a_parked_call_that_its_upstream_ends_leaves_its_place_among_the_calls_at_once() -> None:
    up = AskingUpstream()
    async with one_at_once(up) as h:
        assert isinstance(await asked(h), InputRequired)
        assert error(await asked(h)).code == LIMIT_EXCEEDED
        up.gives_up.set()
        await quiet()
        assert decoded(await asked(h))["structuredContent"] == {"got": None}


def test_every_kind_of_upstream_event_is_heeded_and_every_section_that_components_go_by_exists() -> None:
    components = Component.__subclasses__()
    heeded = frozenset[type]().union(*(component.heeds for component in components))
    assert heeded == {*get_args(UpstreamEvent), PushChannel, UnannouncedLists, *get_args(Change)} - {UpstreamChanged}
    assert frozenset[str]().union(*(component.goes_by for component in components)) <= Settings.model_fields.keys()


@pytest.mark.parametrize(("method", "declared"), [("on_event", "heeds"), ("reconfigure", "goes_by")])
def test_a_component_declares_what_it_overrides_the_method_for(method: str, declared: str) -> None:
    for component in Component.__subclasses__():
        assert (method in vars(component)) == bool(getattr(component, declared)), component.__name__


def told(name: str, text: str) -> FakeUpstream:
    upstream = FakeUpstream(name)
    upstream.identity = replace(upstream.identity, instructions=text)
    return upstream


@pytest.mark.parametrize("version", [LATEST, LATEST_HANDSHAKE])
async def test_instructions_that_are_cut_are_a_resource_in_full(version: str) -> None:
    long = "Mind the gap. " * 100
    async with house(told("git", long), told("wiki", long), FakeUpstream("silent")) as gateway:
        await gateway.ready()
        shown = decoded(await gateway.call("server/discover", version=version))["instructions"]
        assert isinstance(shown, str)
        assert len(shown) <= 2000
        assert shown.startswith("Servers behind this gateway: git, wiki, silent. The resource mcproxy://instructions")
        assert await gateway.listed(Kind.RESOURCES, version=version) == [INSTRUCTIONS_URI]
        read = decoded(await gateway.call("resources/read", version=version, uri=INSTRUCTIONS_URI))
        text = f"Servers behind this gateway: git, wiki, silent.\n\n## git\n\n{long}\n\n## wiki\n\n{long}"
        assert read["contents"] == [{"uri": INSTRUCTIONS_URI, "mimeType": "text/markdown", "text": text}]
        assert gateway["git"].count("resources/read") == 0


async def test_a_resource_of_the_gateways_own_can_be_subscribed_to_and_completes_nothing() -> None:
    long = "Mind the gap. " * 100
    async with house(told("git", long), told("wiki", long)) as gateway:
        await gateway.ready()
        listener = gateway.listener(session="s")
        assert isinstance(await gateway.call("resources/subscribe", listener=listener, uri=INSTRUCTIONS_URI), Complete)
        assert isinstance(
            await gateway.call("resources/unsubscribe", listener=listener, uri=INSTRUCTIONS_URI), Complete
        )
        ref = {"type": "ref/resource", "uri": INSTRUCTIONS_URI}
        outcome = await gateway.call("completion/complete", ref=ref, argument={"name": "a", "value": ""})
        assert error(outcome).code == METHOD_NOT_FOUND


async def test_an_upstreams_own_resource_of_that_uri_gives_way_to_the_gateways() -> None:
    long = "Mind the gap. " * 100
    bare = told("git", long)
    bare.lists[Kind.RESOURCES] = [resource(INSTRUCTIONS_URI)]
    async with house(bare, told("wiki", long), options={"git": {"prefix": ""}}) as gateway:
        await gateway.ready()
        assert isinstance(await gateway.call("resources/read", uri=INSTRUCTIONS_URI), Complete)
        assert bare.count("resources/read") == 0


async def test_instructions_that_fit_need_no_resource() -> None:
    async with house(told("git", "Be kind."), told("wiki", "Read first.")) as gateway:
        await gateway.ready()
        assert await gateway.listed(Kind.RESOURCES) == []
        assert error(await gateway.call("resources/read", uri=INSTRUCTIONS_URI)).message.startswith(
            "Resource not found"
        )


async def test_a_view_that_cannot_be_made_is_an_outcome_of_its_first_call_and_told_in_the_log() -> None:
    class Broken:
        def __getattr__(self, name: str) -> None:
            raise LookupError("a view of nothing")

    up = FakeUpstream("a", tools={})
    up.lists[Kind.TOOLS] = [tool("t")]
    async with house(up) as h:
        await h.ready()
        h.gateway._catalogue.exposures = Broken()  # type: ignore[assignment]
        with capture_logs() as logs:
            outcome = await h.call("tools/list", principal=Principal("ann"), version=LATEST)
        assert error(outcome).message == "internal error of the gateway: see its log"
        assert [line["event"] for line in logs if line["log_level"] == "error"] != []


async def test_r78_the_first_call_of_a_caller_holds_up_no_other_where_very_much_is_listed() -> None:
    up = FakeUpstream("a", tools={})
    up.lists[Kind.TOOLS] = [tool(f"t{number}") for number in range(1000)]
    up.answers["tools/call"] = lambda call: complete(content=[])
    policy = {"policy": {"roles": {"user": {"allow": [{"tools": ["t*"]}]}}}}
    async with house(up, access=policy) as h:
        await h.ready()
        turns: list[int] = []

        async def count_turns() -> None:
            while True:
                turns.append(1)
                await anyio.lowlevel.checkpoint()

        async def turns_of_a_call(name: str) -> int:
            turns.clear()
            decoded(await h.call("tools/call", principal=Principal(name, frozenset({"user"})), name="a__t1"))
            return len(turns)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count_turns)
            first, second = [await turns_of_a_call(name) for name in ("ann", "bob")]
            tasks.cancel_scope.cancel()
        assert first > second + 10
