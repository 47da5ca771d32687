"""One upstream as the gateway sees it: its state, its events, its limits, and links of sessions' own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest
from msgspec.structs import replace

from mcproxy.call.calls import Call, Outcome
from mcproxy.call.clients import ListChanged, Notice
from mcproxy.call.errors import Party, Reason
from mcproxy.call.identity import ANONYMOUS, Caller, ForwardedCredentials, Principal
from mcproxy.call.upstreams import (
    GATEWAY_CAPABILITY,
    Connected,
    Disconnected,
    LinkFailure,
    LinkState,
    PushChannel,
    Retired,
    ServerIdentity,
    UpstreamChanged,
)
from mcproxy.pending_requests import PeerGone
from mcproxy.protocol.eras import LATEST, Era
from mcproxy.protocol.jsonrpc import Params, parse_text, raw
from mcproxy.protocol.methods import Kind, row_of
from mcproxy.settings import UpstreamSettings, UpstreamTimeouts
from mcproxy.telemetry.logs import about
from mcproxy.telemetry.trace_context import NOTHING, departing
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.link import Link, NotAccepted, Rejected, Unreachable
from mcproxy.upstream.supervisor import ConnectionSlots
from tests.fakes.upstream import FakeClient, quiet
from tests.timeouts import GUARD
from tests.upstream.support import (
    DONE,
    QUICK,
    FakeLink,
    FakeListener,
    answering,
    child,
    failure,
    request,
    running,
    tool,
    value,
)

pytestmark = pytest.mark.anyio

SPEC = UpstreamSettings(name="u", prefix="u", command="c", timeouts=QUICK)


@dataclass
class FakeConnect:
    """Satisfies `link.Connect`: gives `links` in turn, then fresh ones. Each entry that is an error is raised."""

    links: list[FakeLink | Exception] = field(default_factory=list)
    given: list[FakeLink] = field(default_factory=list)
    contexts: list[LinkContext] = field(default_factory=list)
    may_connect: anyio.Event | None = None
    step: str = ""
    alive: int = 0

    def __call__(self, context: LinkContext) -> AbstractAsyncContextManager[Link]:
        return self._connected(context)

    @asynccontextmanager
    async def _connected(self, context: LinkContext) -> AsyncIterator[Link]:
        self.contexts.append(context)
        context.awaited = self.step
        if self.may_connect is not None:
            await self.may_connect.wait()
        link = self.links.pop(0) if self.links else FakeLink()
        if isinstance(link, Exception):
            raise link
        self.given.append(link)
        self.alive += 1
        try:
            yield link
        finally:
            self.alive -= 1


async def test_its_state_is_published_once_for_each_change() -> None:
    connect = FakeConnect([Unreachable("down"), Unreachable("down"), FakeLink()])
    async with running(SPEC, connect=connect) as it:
        await it.events.until(lambda: bool(it.events.of(Connected)))
        connect.given[0].lost.set()
        await it.events.until(lambda: len(it.events.of(Connected)) == 2)
        assert it.upstream.status.reconnects == 1
        assert it.count("mcproxy_upstream_up", upstream="u") == 1
        it.stop()
        await it.events.until(lambda: bool(it.events.of(Retired)))
        assert it.upstream.status.state is LinkState.RETIRED
        assert it.count("mcproxy_upstream_up", upstream="u") == 0
    assert [type(event) for event in it.events.all] == [Disconnected, Connected, Disconnected, Connected, Retired]
    assert [event.reason for event in it.events.of(Disconnected)] == ["down", "lost"]


async def test_why_there_was_no_link_is_counted_by_its_kind() -> None:
    connect = FakeConnect(
        [Unreachable("down"), Unreachable("down"), Rejected("no MCP"), ZeroDivisionError(), FakeLink()]
    )
    async with running(SPEC, connect=connect) as it:
        await it.events.until(lambda: bool(it.events.of(Connected)))
        connect.given[0].lost.set()
        await it.events.until(lambda: len(it.events.of(Connected)) == 2)
        kinds = {
            kind: it.count("mcproxy_upstream_troubles_total", upstream="u", why=kind.value) for kind in LinkFailure
        }
    assert kinds == {
        LinkFailure.UNREACHABLE: 2,
        LinkFailure.REJECTED: 1,
        LinkFailure.INTERNAL: 1,
        LinkFailure.LOST: 1,
        LinkFailure.LOGIN: 0,
        LinkFailure.TIMEOUT: 0,
    }


async def test_the_kind_of_failure_is_shown_while_the_upstream_is_not_connected() -> None:
    connect = FakeConnect([Rejected("no MCP"), FakeLink()])
    async with running(SPEC, connect=connect, delays=lambda _: 3600) as it:
        await it.events.until(lambda: bool(it.events.of(Disconnected)))
        assert it.upstream.status.failure is LinkFailure.REJECTED
        await it.upstream(tool("t"))
        assert it.upstream.status.failure is None
        connect.given[0].lost.set()
        await it.events.until(lambda: len(it.events.of(Disconnected)) == 2)
        assert it.upstream.status.failure is LinkFailure.LOST


async def test_a_link_does_not_inherit_the_trace_of_the_call_that_made_it() -> None:
    found: list[object] = []

    @asynccontextmanager
    async def connect(context: LinkContext) -> AsyncIterator[Link]:
        if context.session is not None:
            found.extend([about.get(), departing.get()])
        yield FakeLink()

    async with running(SESSION, connect=connect) as it:
        told, carried = about.set(dict), departing.set({"traceparent": "of a call"})
        await it.upstream(tool("t", session="a"))
        about.reset(told)
        departing.reset(carried)
    assert found == [None, NOTHING]


async def test_r3_attempts_after_failures_are_ever_rarer() -> None:
    failures: list[int] = []

    def delays(count: int) -> float:
        failures.append(count)
        return 0

    connect = FakeConnect([Unreachable("down")] * 4)
    async with running(SPEC, connect=connect, delays=delays) as it:
        await it.events.until(lambda: bool(it.events.of(Connected)))
    assert failures == [1, 2, 3, 4]


async def test_r3_calls_that_meet_a_backoff_share_one_attempt() -> None:
    connect = FakeConnect([Unreachable("down")])
    async with running(SPEC, connect=connect, delays=lambda _: 3600) as it:
        await it.events.until(lambda: bool(it.events.of(Disconnected)))
        connect.may_connect = anyio.Event()
        outcomes: list[Outcome] = []

        async def call() -> None:
            outcomes.append(await it.upstream(tool("a")))

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            connect.may_connect.set()
    assert outcomes == [DONE] * 10
    assert len(connect.contexts) == 2


async def test_an_attempt_to_connect_ends_at_its_deadline_with_a_reason() -> None:
    connect = FakeConnect(may_connect=anyio.Event())
    spec = SPEC.model_copy(update={"timeouts": UpstreamTimeouts(connect=0.05)})
    async with running(spec, connect=connect, delays=lambda _: 3600) as it:
        await it.events.until(lambda: bool(it.events.of(Disconnected)))
        assert "no connection after 0.05 s (timeouts.connect)" in it.events.of(Disconnected)[0].reason


async def test_r46_a_timeout_of_connecting_names_the_request_that_hangs() -> None:
    spec = child("mute", timeouts=UpstreamTimeouts(connect=0.5, shutdown=0.3))
    async with running(spec, delays=lambda _: 3600) as it:
        await it.events.until(lambda: bool(it.events.of(Disconnected)))
        assert "initialize" in it.events.of(Disconnected)[0].reason


@pytest.mark.parametrize("phase", ["server/discover", "initialize"])
async def test_r46_a_call_that_waits_for_a_link_in_vain_says_what_hangs(phase: str) -> None:
    connect = FakeConnect(may_connect=anyio.Event(), step=phase)
    spec = SPEC.model_copy(update={"timeouts": UpstreamTimeouts(connect=0.05)})
    async with running(spec, connect=connect, delays=lambda _: 3600) as it:
        failed = failure(await it.upstream(tool("a")))
        await it.events.until(lambda: bool(it.events.of(Disconnected)))
        assert f"waits for the answer to {phase}" in failed.error.message
        assert f"no answer to {phase} after 0.05 s (timeouts.connect)" in it.events.of(Disconnected)[0].reason


async def test_r46_a_call_in_the_pause_after_connections_that_were_soon_lost_says_why_they_were() -> None:
    connect = FakeConnect([FakeLink([NotAccepted("no session")]) for _ in range(2)], step="initialize")
    spec = SPEC.model_copy(update={"timeouts": UpstreamTimeouts(connect=0.05)})
    async with running(spec, connect=connect, delays=lambda _: 3600) as it:
        assert "no session" in failure(await it.upstream(tool("a"))).error.message
        failed = failure(await it.upstream(tool("a")))
    assert "it ends again and again soon after it was connected" in failed.error.message
    assert "; before that: lost" in failed.error.message
    assert len(connect.given) == 2


async def test_r18_a_link_is_entered_and_left_in_one_task_however_it_ends() -> None:
    entered: list[asyncio.Task[object] | None] = []
    left: list[asyncio.Task[object] | None] = []
    links = [FakeLink(), FakeLink()]

    @asynccontextmanager
    async def connect(context: LinkContext) -> AsyncIterator[Link]:
        entered.append(asyncio.current_task())
        try:
            yield links[len(entered) - 1]
        finally:
            left.append(asyncio.current_task())

    async with running(SPEC, connect=connect) as it:
        await it.events.until(lambda: bool(it.events.of(Connected)))
        await it.upstream(request("tools/call"))
        links[0].lost.set()
        await it.events.until(lambda: len(it.events.of(Connected)) == 2)
        it.stop()
        await it.events.until(lambda: bool(it.events.of(Retired)))
    assert len(entered) == 2
    assert entered == left
    assert None not in entered
    assert asyncio.current_task() not in entered


async def test_a_bug_in_a_link_takes_nothing_else_down() -> None:
    connect = FakeConnect([ZeroDivisionError("secret"), FakeLink()])
    async with running(SPEC, connect=connect) as it:
        await it.events.until(lambda: bool(it.events.of(Connected)))
        assert "secret" not in it.events.of(Disconnected)[0].reason


async def test_r2_a_call_provably_not_executed_is_sent_again_once() -> None:
    connect = FakeConnect([FakeLink([NotAccepted("no")]), FakeLink([NotAccepted("no")]), FakeLink()])
    async with running(SPEC, connect=connect) as it:
        assert failure(await it.upstream(tool("a"))).reason is Reason.UNAVAILABLE
        assert await it.upstream(tool("a")) == DONE


async def test_r4_only_what_is_safe_to_repeat_is_repeated_after_a_loss() -> None:
    connect = FakeConnect([FakeLink([PeerGone("gone")]), FakeLink([PeerGone("gone")])])
    async with running(SPEC, connect=connect) as it:
        failed = failure(await it.upstream(tool("a")))
        assert "unknown" in failed.error.message
        assert failed.party is Party.UPSTREAM
        assert await it.upstream(request("tools/list")) == DONE
    assert [link.calls for link in connect.given] == [1, 1, 1]


async def test_r4_a_call_whose_tool_may_be_called_again_is_repeated_once_after_a_loss() -> None:
    connect = FakeConnect([FakeLink([PeerGone("gone")]), FakeLink()])
    async with running(SPEC, connect=connect) as it:
        assert await it.upstream(replace(tool("a"), repeatable=True)) == DONE
    assert [link.calls for link in connect.given] == [1, 1]


async def test_r47_one_call_too_many_is_answered_busy() -> None:
    hold = anyio.Event()
    connect = FakeConnect([FakeLink(hold=hold)])
    async with running(SPEC.model_copy(update={"max_in_flight": 2}), connect=connect) as it:
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(it.upstream, tool("a"))
            await anyio.wait_all_tasks_blocked()
            failed = failure(await it.upstream(tool("a")))
            hold.set()
        assert "busy" in failed.error.message
        assert failed.reason is Reason.UNAVAILABLE
        assert await it.upstream(tool("a")) == DONE


async def test_r47_calls_that_wait_for_the_link_count_as_in_flight() -> None:
    connect = FakeConnect(may_connect=anyio.Event())
    outcomes: list[Outcome] = []

    async def call() -> None:
        asked = tool("a", capabilities={"elicitation": {}})
        outcomes.append(await it.upstream(asked))

    spec = SPEC.model_copy(update={"max_in_flight": 2})
    async with running(spec, connect=connect) as it, anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        assert len(outcomes) == 48
        assert connect.may_connect is not None
        connect.may_connect.set()
    assert outcomes.count(DONE) == 2


async def test_r15_a_gateway_refuses_to_be_its_own_upstream() -> None:
    experimental: Params = {"experimental": raw({f"{GATEWAY_CAPABILITY}me": {}, f"{GATEWAY_CAPABILITY}other": {}})}
    itself = FakeLink(identity=ServerIdentity(Era.HANDSHAKE, "2025-11-25", experimental))
    async with running(SPEC, connect=FakeConnect([itself]), gateway_id="me", delays=lambda _: 3600) as it:
        await it.events.until(lambda: bool(it.events.of(Disconnected)))
        assert "leads back to this gateway" in it.events.of(Disconnected)[0].reason
    assert itself.calls == 0


SESSION = SPEC.model_copy(update={"connection": "session"})


async def test_r14_each_session_has_a_link_of_its_own_made_once() -> None:
    connect = FakeConnect()
    async with running(SESSION, connect=connect) as it:
        async with anyio.create_task_group() as tasks:
            for session in ("a", "a", "b", None):
                tasks.start_soon(it.upstream, tool("t", session=session))
        owners = [context.owner for context in connect.contexts]
        assert sorted(map(str, owners)) == ["None", "a", "b"]
        assert {event.owner for event in it.events.of(Connected)} == {None, "a", "b"}
        it.upstream.release("a")
        it.upstream.release("a")
        await it.events.until(lambda: bool(it.events.of(Retired)))
        assert [event.owner for event in it.events.of(Retired)] == ["a"]
        await anyio.wait_all_tasks_blocked()
        assert connect.alive == 2
    assert connect.alive == 0


async def test_r14_a_released_link_says_so_at_once_and_nothing_of_it_follows() -> None:
    connect = FakeConnect()
    async with running(SESSION, connect=connect) as it:
        await it.upstream(tool("t", session="a"))
        old = connect.contexts[-1]
        it.upstream.release("a")
        assert [event.owner for event in it.events.of(Retired)] == ["a"]
        await it.upstream(tool("t", session="a"))
        old.publish(ListChanged(Kind.TOOLS))
        connect.contexts[-1].publish(ListChanged(Kind.PROMPTS))
        await anyio.wait_all_tasks_blocked()
        own = [event for event in it.events.all if event.owner == "a"]
    assert [type(event) for event in own] == [Connected, Retired, Connected, UpstreamChanged]
    assert [event.change for event in own if isinstance(event, UpstreamChanged)] == [ListChanged(Kind.PROMPTS)]


async def test_r14_a_link_that_is_released_before_it_is_up_says_nothing_more() -> None:
    connect = FakeConnect()
    async with running(SESSION, connect=connect) as it:
        await it.events.until(lambda: bool(it.events.of(Connected)))
        connect.may_connect = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.upstream, tool("t", session="a"))
            await anyio.wait_all_tasks_blocked()
            connect.may_connect.set()
            it.upstream.release("a")
        await anyio.wait_all_tasks_blocked()
        assert [type(event) for event in it.events.all if event.owner == "a"] == [Retired]
        assert connect.alive == 1


async def test_r14_a_call_that_no_session_hears_makes_no_link_of_its_own() -> None:
    connect = FakeConnect()
    async with running(SESSION, connect=connect) as it:
        failed = failure(await it.upstream(replace(tool("t", session="a"), listener=None)))
        assert failed.reason is Reason.UNAVAILABLE
        await it.upstream(tool("t", session="a"))
        assert await it.upstream(replace(tool("t", session="a"), listener=None)) == DONE
        assert [context.owner for context in connect.contexts if context.owner] == ["a"]


async def test_r14_links_of_sessions_are_capped_per_upstream() -> None:
    async with running(SESSION.model_copy(update={"max_connections": 1}), connect=FakeConnect()) as it:
        assert await it.upstream(tool("t", session="a")) == DONE
        failed = failure(await it.upstream(tool("t", session="b")))
        assert "taken" in failed.error.message
        it.upstream.release("a")
        await anyio.wait_all_tasks_blocked()
        assert await it.upstream(tool("t", session="b")) == DONE


PRINCIPAL = SPEC.model_copy(update={"connection": "principal", "max_connections": 2})


def of_principal(name: str, call: Call) -> Call:
    return replace(call, caller=replace(call.caller, principal=Principal(name)))


async def test_r77_each_principal_has_a_link_of_its_own_made_once_when_it_first_calls_and_capped() -> None:
    connect = FakeConnect()
    async with running(PRINCIPAL, connect=connect) as it:
        await it.events.until(lambda: bool(it.events.of(Connected)))
        assert [context.owner for context in connect.contexts] == [None]
        for session in ("a", "b", None):
            assert await it.upstream(of_principal("ann", tool("t", session=session))) == DONE
        assert await it.upstream(of_principal("bob", tool("t", session="c"))) == DONE
        assert [context.owner for context in connect.contexts] == [None, "principal:ann", "principal:bob"]
        failed = failure(await it.upstream(of_principal("eve", tool("t"))))
        assert "max_connections" in failed.error.message
        it.upstream.release("principal:ann")
        await it.events.until(lambda: bool(it.events.of(Retired)))
        with anyio.fail_after(GUARD):
            while connect.alive > 2:
                await anyio.lowlevel.checkpoint()
        assert await it.upstream(of_principal("eve", tool("t"))) == DONE


async def test_r39_no_call_makes_the_link_of_another_principal() -> None:
    connect = FakeConnect()
    async with running(PRINCIPAL, connect=connect) as it:
        call = replace(of_principal("ann", tool("t")), over="principal:bob")
        assert failure(await it.upstream(call)).reason is Reason.UNAVAILABLE
        assert [context.owner for context in connect.contexts] in ([], [None])


async def test_r77_a_question_reaches_the_principal_whose_own_child_asks() -> None:
    ann, bob = answering({"mine": "ann's"}), answering({"mine": "bob's"})
    async with running(child(connection="principal")) as it:
        for name, client in (("ann", ann), ("bob", bob)):
            asked = tool("ask", {"key": "q", "method": "sampling/createMessage"}, client=client)
            answer = value(await it.upstream(of_principal(name, asked)))
            assert answer["result"] == {"mine": f"{name}'s"}
    assert len(ann.questions) == len(bob.questions) == 1


async def test_r14_links_of_sessions_are_capped_in_total() -> None:
    slots = ConnectionSlots(1)
    async with (
        running(SESSION, connect=FakeConnect(), slots=slots) as one,
        running(SESSION, connect=FakeConnect(), slots=slots) as two,
    ):
        assert await one.upstream(tool("t", session="a")) == DONE
        failure(await two.upstream(tool("t", session="a")))


async def test_r14_a_sessions_own_child_mirrors_what_its_client_declared() -> None:
    capabilities: dict[str, object] = {"sampling": {}, "tasks": {}}
    async with running(child(connection="session")) as it:
        own = value(await it.upstream(tool("heard", session="s", capabilities=capabilities)))
        shared = value(await it.upstream(tool("heard")))
        one = value(await it.upstream(tool("environment", session="s")))["pid"]
        assert one != value(await it.upstream(tool("environment")))["pid"]
    assert own[0]["params"]["capabilities"] == {"sampling": {}}
    assert "roots" in shared[0]["params"]["capabilities"]


async def test_r60_a_question_on_a_sessions_own_link_outside_any_call_goes_to_that_session() -> None:
    call = tool("ask afterwards", {"method": "roots/list"}, session="s")
    listener = FakeListener(call.caller, {"roots": [{"uri": "file:///mine"}]})
    async with running(child(connection="session", roots=("file:///configured",))) as it:
        await it.upstream(replace(call, listener=listener))
        answer = value(await it.upstream(tool("await answer", {"id": "later"}, session="s")))
    assert answer["result"] == {"roots": [{"uri": "file:///mine"}]}


async def test_r26_a_question_on_a_shared_link_outside_any_call_is_refused_with_the_remedy() -> None:
    async with running(child()) as it:
        await it.upstream(tool("ask afterwards", {"method": "sampling/createMessage"}))
        answer = value(await it.upstream(tool("await answer", {"id": "later"})))
    assert "connection: session" in answer["error"]["message"]


async def test_what_a_sessions_own_child_announces_bears_its_owner() -> None:
    async with running(child(connection="session")) as it:
        await it.upstream(tool("announce afterwards", {"method": "notifications/odd"}, session="s"))
        await it.events.until(lambda: bool(it.events.of(UpstreamChanged)))
        [changed] = it.events.of(UpstreamChanged)
    assert changed.owner == "s"
    assert isinstance(changed.change, Notice)


async def test_r75_the_push_channel_of_a_second_link_is_not_that_of_the_shared_one() -> None:
    connect = FakeConnect([FakeLink(identity=ServerIdentity(Era.STATELESS, LATEST, {}))])
    spec = UpstreamSettings(name="u", prefix="u", url="http://u/mcp", timeouts=QUICK)
    async with running(spec, connect=connect) as it:
        await it.upstream(tool("t", capabilities={"elicitation": {}}))
        [shared, second] = connect.contexts
        second.publish(PushChannel.LOST)
        second.publish(ListChanged(Kind.TOOLS))
        shared.publish(PushChannel.LOST)
    assert [event.change for event in it.events.of(UpstreamChanged)] == [ListChanged(Kind.TOOLS), PushChannel.LOST]


def levels(link: FakeLink) -> list[str]:
    return [parse_text(call.params["level"]) or "" for call in link.sent if call.row.per_link]


def at(level: str) -> Call:
    return Call(row_of("logging/setLevel"), {"level": raw(level)}, Caller(ANONYMOUS, LATEST), FakeClient())


async def test_a_log_level_reaches_the_second_link_too_and_again_when_that_is_made_anew() -> None:
    stateless = ServerIdentity(Era.STATELESS, LATEST, {})
    connect = FakeConnect([FakeLink(identity=stateless)])
    spec = UpstreamSettings(name="u", prefix="u", url="http://u/mcp", timeouts=QUICK)
    async with running(spec, connect=connect) as it:
        await it.upstream(at("error"))
        await it.upstream(tool("t", capabilities={"elicitation": {}}))
        [shared, second] = connect.given
        await quiet()
        await it.upstream(at("debug"))
        assert (levels(shared), levels(second)) == (["error", "debug"], ["error", "debug"])
        assert [call.method for call in second.sent] == ["logging/setLevel", "tools/call", "logging/setLevel"]
        second.lost.set()
        await it.upstream(tool("t", capabilities={"elicitation": {}}))
        await quiet()
        assert levels(connect.given[2]) == ["debug"]


FORWARDING = UpstreamSettings.model_validate(
    {"name": "u", "prefix": "u", "url": "http://u/mcp", "credentials": {"forward": {"X-T": "Authorization: Bearer {}"}}}
)


def brought(key: str, token: str = "a-secret-token") -> Call:
    call = tool("done")
    return replace(call, caller=replace(call.caller, credentials=ForwardedCredentials(key, {"x-t": token})))


async def test_r39_calls_with_the_same_credentials_share_a_link_that_no_other_has() -> None:
    connect = FakeConnect(may_connect=anyio.Event())
    async with running(FORWARDING, connect=connect) as u:
        outcomes: list[Outcome] = []

        async def call(key: str) -> None:
            outcomes.append(await u.upstream(brought(key)))

        async with anyio.create_task_group() as tasks:
            for key in ("ann", "bob", "ann"):
                tasks.start_soon(call, key)
            await anyio.lowlevel.checkpoint()
            assert connect.may_connect is not None
            connect.may_connect.set()
        assert outcomes == [DONE] * 3
        assert sorted(context.owner or "" for context in connect.contexts) == ["", "ann", "bob"]
        assert {context.owner: context.headers for context in connect.contexts}[None] == {}
        assert {context.owner: context.headers for context in connect.contexts}["ann"] == {
            "Authorization": "Bearer a-secret-token"
        }


async def test_r44_what_a_caller_brought_is_taken_out_of_what_its_server_says() -> None:
    connect = FakeConnect([FakeLink(), Unreachable("I do not like a-secret-token")])
    async with running(FORWARDING, connect=connect) as u:
        await u.upstream(request("tools/list"))
        said = failure(await u.upstream(brought("ann"))).error.message
        assert "[redacted]" in said
        assert "a-secret-token" not in said
        assert "a-secret-token" not in repr(brought("ann"))


async def test_r39_a_call_of_the_gateways_own_makes_no_link_for_credentials_that_it_has_not() -> None:
    connect = FakeConnect()
    async with running(FORWARDING, connect=connect) as u:
        assert "credentials" in failure(await u.upstream(tool("done"))).error.message
        outcome = failure(await u.upstream(replace(tool("done"), over="ann")))
        assert outcome.reason is Reason.UNAVAILABLE
        assert await u.upstream(brought("ann")) == DONE
        assert await u.upstream(replace(tool("done"), over="ann")) == DONE
        assert [context.owner for context in connect.contexts].count("ann") == 1


async def test_links_of_credentials_are_released_and_counted() -> None:
    connect = FakeConnect()
    async with running(FORWARDING.model_copy(update={"max_connections": 1}), connect=connect) as u:
        assert await u.upstream(brought("ann")) == DONE
        assert "max_connections" in failure(await u.upstream(brought("bob"))).error.message
        u.upstream.release("ann")
        await u.events.until(lambda: bool(u.events.of(Retired)))
        with anyio.fail_after(GUARD):
            while connect.alive > 1:
                await anyio.lowlevel.checkpoint()
        assert await u.upstream(brought("bob")) == DONE


async def test_a_server_that_cannot_run_as_written_is_in_trouble_with_its_fault() -> None:
    async with running(SPEC.out_of_service("env.A: the environment variable A is not set")) as it:
        await it.events.until(lambda: bool(it.events.of(Disconnected)))
        assert it.upstream.status.error == "env.A: the environment variable A is not set"
        assert "A is not set" in failure(await it.upstream(tool("a"))).error.message
