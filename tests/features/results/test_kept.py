"""The twin of `mcproxy.features.results.kept`: for their callers alone, bounded, and for a while."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from mcproxy.call.calls import Call
from mcproxy.call.errors import McpError
from mcproxy.call.identity import ANONYMOUS, Caller, ForwardedCredentials, InboundToken, Principal
from mcproxy.features.results.kept import KeptOrigin, KeptResults, Origin
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, RESOURCE_NOT_FOUND, raw
from mcproxy.protocol.methods import row_of
from mcproxy.sealing import Sealer
from mcproxy.settings import KeptResultLimits
from tests.fakes.upstream import FakeClient, decoded

ALICE, BOB = Caller(Principal("alice"), LATEST), Caller(Principal("bob"), LATEST)


@dataclass
class Rig:
    now: float = 100.0
    kept: KeptResults = field(init=False)

    def __post_init__(self) -> None:
        limits = KeptResultLimits(max_bytes=100, max_bytes_per_principal=60, lifetime=10)
        self.kept = KeptResults(limits, Sealer(b"secret"), lambda: self.now)

    def keep(self, caller: Caller, size: int) -> str:
        return self.kept.keep(Origin(caller), b"x" * size, "text/plain")

    def reads(self, caller: Caller, uri: str) -> bool:
        try:
            self.kept.read(reading(caller, uri), anybody)
        except McpError:
            return False
        return True


def anybody(caller: Caller, origin: KeptOrigin) -> bool:
    return True


def reading(caller: Caller, uri: str) -> Call:
    return Call(row_of("resources/read"), {"uri": raw(uri)}, caller, FakeClient())


def test_a_result_is_read_whole_or_in_pieces_by_its_caller() -> None:
    it = Rig()
    text = "häßlich".encode()
    uri = it.kept.keep(Origin(ALICE), text, "text/plain")
    assert it.kept.names(reading(ALICE, uri))

    def read(end: str) -> str:
        contents = decoded(it.kept.read(reading(ALICE, uri + end), anybody))["contents"]
        assert isinstance(contents, list)
        assert contents[0]["uri"] == uri + end
        return str(contents[0]["text"])

    assert read("") == read("/0-999") == "häßlich"
    assert read("/0-2") + read("/2-5") + read("/5-9") == "häßlich"
    assert read("/7-3") == ""


@pytest.mark.parametrize(
    "caller",
    [BOB, Caller(ANONYMOUS, LATEST), Caller(Principal("alice"), LATEST, endpoint="/other")],
    ids=["another", "anonymous", "at another endpoint"],
)
def test_r81_nobody_else_reads_it(caller: Caller) -> None:
    it = Rig()
    uri = it.keep(ALICE, 10)
    assert it.reads(ALICE, uri)
    assert not it.reads(caller, uri)


OWN, OTHERS = ForwardedCredentials("k", {"x": "1"}), ForwardedCredentials("other", {"x": "2"})
FULL = Principal("alice", frozenset({"dev", "ops"}), frozenset({"read", "write"}), (("team", "red"),))


@pytest.mark.parametrize(
    ("caller", "reads"),
    [
        (Caller(FULL, LATEST, credentials=OWN), True),
        (
            Caller(
                replace(FULL, roles=FULL.roles | {"more"}), LATEST, credentials=ForwardedCredentials("k", {"x": "1"})
            ),
            True,
        ),
        (
            Caller(replace(FULL, roles=frozenset({"dev"})), LATEST, credentials=OWN),
            False,
        ),
        (
            Caller(
                replace(FULL, scopes=frozenset({"read"})), LATEST, credentials=ForwardedCredentials("k", {"x": "1"})
            ),
            False,
        ),
        (
            Caller(
                replace(FULL, attributes=(("team", "blue"),)), LATEST, credentials=ForwardedCredentials("k", {"x": "1"})
            ),
            False,
        ),
        (Caller(FULL, LATEST, credentials=OTHERS), False),
        (Caller(FULL, LATEST), False),
        (
            Caller(
                FULL,
                LATEST,
                credentials=ForwardedCredentials("k", {"x": "1"}, InboundToken("authority:less", 1.0, "token")),
            ),
            False,
        ),
    ],
    ids=["itself", "more roles", "fewer roles", "fewer scopes", "another team", "others", "none", "another token"],
)
def test_r81_a_lesser_request_of_the_same_caller_does_not_read_it(caller: Caller, reads: bool) -> None:
    it = Rig()
    uri = it.keep(Caller(FULL, LATEST, credentials=OWN), 10)
    assert it.reads(caller, uri) is reads


def test_what_is_kept_of_a_calls_arguments_counts() -> None:
    it = Rig()
    it.kept.keep(Origin(ALICE, "up", "get", {"a": raw("x" * 20)}), b"y" * 10, "text/plain")
    assert 30 < it.kept.size < 60
    it.keep(ALICE, 50)
    assert it.kept.size == 50, "both together are over the caller's share"


@pytest.mark.parametrize(
    "uri", ["mcproxy-result:", "mcproxy-result:made-up", "mcproxy-result:a/1", "mcproxy-result:a/b-c"]
)
def test_a_uri_that_was_made_up_names_nothing_and_the_error_is_that_of_the_era(uri: str) -> None:
    it = Rig()
    codes = []
    for version in (LATEST, LATEST_HANDSHAKE):
        with pytest.raises(McpError) as refusal:
            it.kept.read(reading(Caller(ANONYMOUS, version), uri), anybody)
        codes.append(refusal.value.code)
    assert codes == [INVALID_PARAMS, RESOURCE_NOT_FOUND]


@pytest.mark.parametrize("part", ["/1", "/b-c", "/-5", "/0-5/6"])
def test_of_a_part_that_is_malformed_a_caller_is_told_what_one_is(part: str) -> None:
    it = Rig()
    with pytest.raises(McpError, match="ID/START-END for bytes of it"):
        it.kept.read(reading(ALICE, it.keep(ALICE, 10) + part), anybody)


def test_other_uris_and_other_methods_are_none_of_its_own() -> None:
    it = Rig()
    assert not it.kept.names(reading(ALICE, "file:///mcproxy-result:x"))
    subscribe = Call(row_of("resources/subscribe"), {"uri": raw(it.keep(ALICE, 1))}, ALICE, FakeClient())
    assert not it.kept.names(subscribe)


def test_it_expires() -> None:
    it = Rig()
    uri = it.keep(ALICE, 10)
    it.now += 10
    assert not it.reads(ALICE, uri)
    it.keep(BOB, 10)
    assert it.kept.size == 10


def test_a_caller_has_a_share_of_its_own_and_loses_its_oldest_first() -> None:
    it = Rig()
    of_bob, first, second, third = it.keep(BOB, 30), it.keep(ALICE, 30), it.keep(ALICE, 30), it.keep(ALICE, 20)
    assert [it.reads(BOB, of_bob), *(it.reads(ALICE, uri) for uri in (first, second, third))] == [
        True,
        False,
        True,
        True,
    ]
    assert it.kept.fits(60)
    assert not it.kept.fits(61)


def test_all_together_are_bounded_and_the_oldest_give_way() -> None:
    it = Rig()
    uris = [it.keep(Caller(Principal(str(number)), LATEST), 40) for number in range(3)]
    assert it.kept.size == 80
    assert [it.reads(Caller(Principal(str(number)), LATEST), uri) for number, uri in enumerate(uris)] == [
        False,
        True,
        True,
    ]
    it.kept.reconfigure(KeptResultLimits(max_bytes=50))
    assert it.kept.size == 40
    assert not it.kept.fits(51)
