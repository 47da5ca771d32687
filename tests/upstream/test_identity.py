"""The twin of `mcproxy.upstream.identity`."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
from msgspec import Raw

from mcproxy.call.upstreams import GATEWAY_CAPABILITY, ServerIdentity
from mcproxy.catalog.views.offers import capabilities
from mcproxy.protocol.capabilities import MAX_SAID
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE, META_SERVER_INFO, Era
from mcproxy.protocol.jsonrpc import Response, first_level, parse_message, parse_object, raw, size_of
from mcproxy.upstream.handshake import initialization
from mcproxy.upstream.identity import identified
from mcproxy.upstream.oddities import Oddities
from mcproxy.upstream.stateless import probe
from tests.fakes.upstream import FakeUpstream, decoded, house

pytestmark = pytest.mark.anyio

MUCH = "x" * 2_000_000
OFFERED: dict[str, Any] = {
    "tools": {"listChanged": True},
    "extensions": {"io.modelcontextprotocol/tasks": {}},
    "experimental": {GATEWAY_CAPABILITY + "a": {}},
}
SAYINGS: dict[str, dict[str, Any]] = {
    "an experiment": {"capabilities": {**OFFERED, "experimental": {**OFFERED["experimental"], "x": MUCH}}},
    "many experiments": {
        "capabilities": {
            **OFFERED,
            "experimental": {**OFFERED["experimental"], **{f"x{number}": MUCH[:200] for number in range(900)}},
        }
    },
    "a capability": {"capabilities": {**OFFERED, "x": {"x": MUCH}}},
    "the name of one": {"capabilities": {**OFFERED, MUCH: {}}},
    "a member of a known one": {"capabilities": {**OFFERED, "tools": {"listChanged": True, "x": MUCH}}},
    "an extension": {"capabilities": {**OFFERED, "extensions": {**OFFERED["extensions"], "a.b/c": {"x": MUCH}}}},
    "its info": {"capabilities": OFFERED, "info": {"name": "a", "version": "1", "x": MUCH}},
    "its name": {"capabilities": OFFERED, "info": {"name": MUCH, "version": "1"}},
    "its instructions": {"capabilities": OFFERED, "instructions": MUCH},
    "instructions of escapes": {"capabilities": OFFERED, "instructions": "é\n" * 1_000_000},
}


def answered(era: Era, said: dict[str, Any]) -> bytes:
    """The answer of a server to the first request, as it comes."""
    info = said.get("info", {"name": "a", "version": "1"})
    rest: dict[str, object] = {key: said[key] for key in ("capabilities", "instructions") if key in said}
    if era is Era.STATELESS:
        result: dict[str, object] = {"supportedVersions": [LATEST], "_meta": {META_SERVER_INFO: info}, **rest}
    else:
        result = {"protocolVersion": LATEST_HANDSHAKE, "serverInfo": info, **rest}
    return bytes(raw({"jsonrpc": "2.0", "id": 1, "result": result}))


def read(era: Era, data: bytes) -> ServerIdentity:
    answer = parse_message(data)
    assert isinstance(answer, Response)
    return probe.identity(answer) if era is Era.STATELESS else initialization._identity(answer, Oddities())


@pytest.mark.parametrize("era", Era)
@pytest.mark.parametrize("saying", SAYINGS)
def test_r54_little_is_kept_of_what_a_server_says_of_itself(saying: str, era: Era) -> None:
    data = answered(era, SAYINGS[saying])
    tracemalloc.start()
    try:
        identity = read(era, bytes(bytearray(data)))
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 6 * MAX_SAID
    assert size_of(identity.capabilities) <= MAX_SAID
    assert len(identity.info or b"") <= MAX_SAID
    assert len((identity.instructions or "").encode()) <= MAX_SAID
    assert identity.is_cut
    # What the gateway itself goes by is small, and stays.
    assert bytes(parse_object(identity.capabilities["tools"])["listChanged"]) == b"true"
    assert "io.modelcontextprotocol/tasks" in parse_object(identity.capabilities["extensions"])
    assert GATEWAY_CAPABILITY + "a" in parse_object(identity.capabilities["experimental"])


@pytest.mark.parametrize("era", Era)
def test_all_is_kept_of_what_is_not_too_large(era: Era) -> None:
    said = {"capabilities": OFFERED, "info": {"name": "a", "icons": ["x" * 10_000]}, "instructions": "Do: é" * 1000}
    identity = read(era, answered(era, said))
    assert identity.capabilities == first_level(OFFERED)
    assert identity.info == raw(said["info"])
    assert identity.instructions == said["instructions"]
    assert not identity.is_cut


def test_r54_the_capabilities_of_many_servers_are_bounded_together() -> None:
    each = [
        identified(Era.HANDSHAKE, LATEST_HANDSHAKE, first_level({"tools": {}, "experimental": said}), None, None)
        for said in ({f"x{number}": MUCH[:10_000]} for number in range(50))
    ]
    offered = capabilities(each)
    assert size_of(offered) <= MAX_SAID
    assert set(offered) == {"tools", "experimental"}


async def test_r54_an_endpoint_tells_clients_little_of_what_servers_say_of_themselves() -> None:
    async with house(FakeUpstream("a", experimental={"x": MUCH, "y": {}}), FakeUpstream("b", tools={})) as h:
        await h.ready()
        outcome: Any = decoded(await h.call("server/discover"))
    told = outcome["capabilities"]
    assert len(raw(told)) <= MAX_SAID
    assert (told["experimental"], "tools" in told) == ({"y": {}}, True)


def test_info_that_is_no_object_is_left_out_where_it_is_large() -> None:
    assert identified(Era.HANDSHAKE, LATEST_HANDSHAKE, {}, Raw(b'"%b"' % MUCH.encode()), None).info == raw({})
