"""The twin of `mcproxy.cluster.envelope`."""

from __future__ import annotations

import tracemalloc

import pytest

from mcproxy.call.identity import ForwardedCredentials, InboundToken, Principal
from mcproxy.cluster.envelope import LIFETIME, Envelopes, HopEnvelope, RefusedEnvelope
from mcproxy.sealing import Sealer

ENVELOPE = HopEnvelope(
    "POST",
    "/mcp?x=1",
    [("accept", "application/json"), ("mcp-param-x", "1"), ("mcp-param-x", "2")],
    "alice",
    ["dev", "ops"],
    ["read"],
    [("team", "red")],
    ("key", {"x-token": "secret"}),
)


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def replica(label: str, clock: Clock, secret: bytes = b"secret") -> Envelopes:
    return Envelopes(Sealer(secret, label=label), clock)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_an_envelope_brings_the_request_and_its_sender_to_the_replica_it_is_for(clock: Clock) -> None:
    opened = replica("b", clock).open(replica("a", clock).seal(ENVELOPE, "b", b"body"), b"body")
    assert opened == ENVELOPE
    roles, scopes = frozenset({"dev", "ops"}), frozenset({"read"})
    assert opened.principal == Principal("alice", roles, scopes, (("team", "red"),))
    assert opened.forwarded == ForwardedCredentials("key", {"x-token": "secret"})
    assert opened.forwarded is not None
    assert opened.forwarded.headers == {"x-token": "secret"}


@pytest.mark.parametrize(
    ("sender", "credentials"),
    [
        (Principal("anonymous", address="198.51.100.1"), None),
        (Principal("ann", frozenset({"dev"}), frozenset({"read"}), (("team", "red"),)), None),
        (
            Principal("ann"),
            ForwardedCredentials("key", {"x-token": "secret"}, InboundToken("authority:a", 7.0, "the token of ann")),
        ),
    ],
)
def test_r70_who_sends_a_request_is_the_same_at_the_replica_that_answers_it(
    sender: Principal, credentials: ForwardedCredentials | None, clock: Clock
) -> None:
    sent = HopEnvelope.of("POST", "/mcp", [], sender, credentials)
    opened = replica("b", clock).open(replica("a", clock).seal(sent, "b", b""), b"")
    assert (opened.principal, opened.forwarded) == (sender, credentials)
    assert opened.principal.account == sender.account


def test_no_secret_of_a_request_can_be_read_without_the_key(clock: Clock) -> None:
    token = replica("a", clock).seal(ENVELOPE, "b", b"body")
    assert b"secret" not in token
    assert b"alice" not in token


def test_an_envelope_is_taken_once(clock: Clock) -> None:
    receiver, token = replica("b", clock), replica("a", clock).seal(ENVELOPE, "b", b"body")
    receiver.open(token, b"body")
    while True:
        clock.now += LIFETIME / 7
        with pytest.raises(RefusedEnvelope) as refused:
            receiver.open(token, b"body")
        if "expired" in str(refused.value):
            break
        assert "before" in str(refused.value)


@pytest.mark.parametrize("turns", [0, 1, 2])
@pytest.mark.parametrize("back", [LIFETIME / 2, LIFETIME, 2 * LIFETIME, 3 * LIFETIME])
def test_an_envelope_is_taken_once_though_the_clock_is_set_back(back: float, turns: int, clock: Clock) -> None:
    sender, receiver = replica("a", clock), replica("b", clock)
    for _ in range(turns):
        clock.now += 2 * LIFETIME
        receiver.open(sender.seal(ENVELOPE, "b", b"body"), b"body")
    token = sender.seal(ENVELOPE, "b", b"body")
    receiver.open(token, b"body")
    clock.now -= back
    for _ in range(40):
        receiver.open(sender.seal(ENVELOPE, "b", b"body"), b"body")
        with pytest.raises(RefusedEnvelope):
            receiver.open(token, b"body")
        clock.now += LIFETIME / 7


def test_r78_envelopes_are_remembered_no_longer_while_the_clock_is_set_back(clock: Clock) -> None:
    sender, receiver = replica("a", clock), replica("b", clock)
    clock.now -= 3600
    remembered = []
    tracemalloc.start()
    try:
        for _ in range(10):
            for _ in range(200):
                receiver.open(sender.seal(ENVELOPE, "b", b"body"), b"body")
            remembered.append(tracemalloc.get_traced_memory()[0])
            clock.now += 2 * LIFETIME
    finally:
        tracemalloc.stop()
    assert max(remembered) < 3 * remembered[0]


def test_an_envelope_is_refused_once_it_has_expired(clock: Clock) -> None:
    token = replica("a", clock).seal(ENVELOPE, "b", b"body")
    clock.now += LIFETIME + 1
    with pytest.raises(RefusedEnvelope, match="expired"):
        replica("b", clock).open(token, b"body")


def test_an_envelope_of_a_clock_that_is_far_ahead_is_refused(clock: Clock) -> None:
    ahead = Clock()
    ahead.now += 2 * LIFETIME
    with pytest.raises(RefusedEnvelope, match="clocks"):
        replica("b", clock).open(replica("a", ahead).seal(ENVELOPE, "b", b"body"), b"body")


def test_an_envelope_is_refused_by_another_replica_beside_another_body_and_under_another_secret(clock: Clock) -> None:
    token = replica("a", clock).seal(ENVELOPE, "b", b"body")
    with pytest.raises(RefusedEnvelope, match="another replica"):
        replica("c", clock).open(token, b"body")
    with pytest.raises(RefusedEnvelope, match="sealed for another body"):
        replica("b", clock).open(token, b"other")
    with pytest.raises(RefusedEnvelope, match="no secret that the receiver has"):
        replica("b", clock, b"another").open(token, b"body")
    replica("b", clock).open(token, b"body")


SEALED_BY_ANOTHER_HAND = Sealer(b"secret").seal("cluster envelope", b"[]").encode()
TOKENS = {"empty": b"", "no text": b"\xff", "too short": b"AAAA", "of another secret": SEALED_BY_ANOTHER_HAND}


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS.keys())
def test_what_no_replica_sealed_is_refused(token: bytes, clock: Clock) -> None:
    with pytest.raises(RefusedEnvelope):
        replica("b", clock).open(token, b"body")


def test_what_another_version_sealed_is_told_apart(clock: Clock) -> None:
    token = Sealer(b"secret", label="a").seal("cluster envelope", b'["b", "soon"]').encode()
    with pytest.raises(RefusedEnvelope, match="another version"):
        replica("b", clock).open(token, b"body")
