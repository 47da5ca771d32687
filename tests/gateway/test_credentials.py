"""Callers that bring credentials of their own for an upstream, as the gateway tells them apart (R39, R40)."""

from __future__ import annotations

import anyio
import pytest
from msgspec.structs import replace

from mcproxy.call.calls import Call, Outcome
from mcproxy.call.clients import ResourceUpdated
from mcproxy.call.identity import Caller, ForwardedCredentials, Principal
from mcproxy.call.upstreams import UpstreamChanged
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind, row_of
from tests.fakes.upstream import (
    FakeClient,
    FakeListener,
    FakeUpstream,
    House,
    complete,
    decoded,
    error,
    house,
    resource,
)
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

OPTIONS = {"a": {"cache": {"ttl": {"*": 60}}, "credentials": {"forward": {"X-T": "Authorization"}}}}


def a() -> FakeUpstream:
    upstream = FakeUpstream("a")
    upstream.lists[Kind.RESOURCES] = [resource("memo:x")]
    upstream.answers["resources/read"] = lambda call: complete(contents=[{"uri": "memo:x", "text": _key(call)}])
    upstream.answers["resources/subscribe"] = upstream.answers["resources/unsubscribe"] = lambda call: complete()
    return upstream


def _key(call: Call) -> str:
    return call.caller.credentials.key if call.caller.credentials is not None else "nobody"


def caller(key: str | None, session: str | None = None) -> Caller:
    credentials = None if key is None else ForwardedCredentials(key, {"x-t": f"the token {key}"})
    version = LATEST if session is None else LATEST_HANDSHAKE
    return Caller(Principal("ann"), version, session=session, credentials=credentials)


async def ask(h: House, method: str, who: Caller, listener: FakeListener | None = None) -> Outcome:
    with anyio.fail_after(GUARD):
        return await h.gateway.handler(Call(row_of(method), {"uri": raw("a+memo:x")}, who, FakeClient(), listener))


async def test_r39_what_was_read_with_one_set_of_credentials_is_not_given_for_another() -> None:
    async with house(a(), options=OPTIONS) as h:
        await h.ready()
        for key in ("one", "two", "one", "two"):
            contents = decoded(await ask(h, "resources/read", caller(key)))["contents"]
            assert contents == [{"uri": "a+memo:x", "text": key}]
        read = [_key(call) for call in h["a"].calls if call.method == "resources/read"]
        assert read == ["one", "two"]


@pytest.mark.parametrize("method", ["resources/read", "resources/subscribe"])
async def test_r40_a_caller_without_credentials_is_told_what_to_bring_and_reaches_nothing(method: str) -> None:
    async with house(a(), options=OPTIONS) as h:
        await h.ready()
        who = caller(None, session="s")
        listener = FakeListener(who)
        h.gateway.join(listener)
        assert "X-T" in error(await ask(h, method, who, listener)).message
        assert all(call.method != method for call in h["a"].calls)


async def test_links_of_credentials_are_let_go_when_they_are_not_used() -> None:
    async with house(a(), options=OPTIONS, limits={"session_idle": 100}) as h:
        await h.ready()
        await ask(h, "resources/read", caller("one"))
        h.clock.now += 101
        await h.sleeper.slept(1)
        h.sleeper.wake()
        with anyio.fail_after(GUARD):
            while h["a"].released != ["one"]:
                await anyio.lowlevel.checkpoint()


async def test_a_session_that_brings_other_credentials_watches_over_their_link() -> None:
    async with house(a(), options=OPTIONS) as h:
        await h.ready()
        listener = FakeListener(caller("one", session="s"))
        h.gateway.join(listener)
        decoded(await ask(h, "resources/subscribe", listener.caller, listener))
        listener.caller = replace(listener.caller, credentials=caller("two").credentials)
        h.gateway.join(listener)
        updated = ResourceUpdated("a+memo:x")
        await listener.hears(updated)
        listener.changes.clear()
        h.gateway.on_event(UpstreamChanged("a", "one", ResourceUpdated("memo:x")))
        assert updated not in listener.changes
        h.gateway.on_event(UpstreamChanged("a", "two", ResourceUpdated("memo:x")))
        assert updated in listener.changes
