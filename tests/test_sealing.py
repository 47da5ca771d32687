"""State that a client carries: what opens it, and what does not."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.sealing import Sealer, Unsealable, label_of

SEALER = Sealer(b"secret")


@given(purpose=st.text(), payload=st.binary())
def test_what_is_sealed_opens_for_its_purpose_alone(purpose: str, payload: bytes) -> None:
    for token in (SEALER.seal(purpose, payload), SEALER.name(purpose, payload)):
        assert SEALER.open(purpose, token) == payload
        for sealer, other in ((SEALER, purpose + "!"), (Sealer(b"another"), purpose)):
            with pytest.raises(Unsealable):
                sealer.open(other, token)


@given(purpose=st.text(), payload=st.binary())
def test_what_is_signed_is_read_by_anyone_and_opens_for_its_purpose_alone(purpose: str, payload: bytes) -> None:
    token = SEALER.sign(purpose, payload)
    assert base64.urlsafe_b64decode(token + "==").startswith(payload)
    assert SEALER.open_signed(purpose, token) == payload
    for sealer, other in ((SEALER, purpose + "!"), (Sealer(b"another"), purpose)):
        with pytest.raises(Unsealable):
            sealer.open_signed(other, token)


@given(payload=st.binary(), changed=st.integers(0))
def test_what_was_signed_does_not_open_once_a_byte_of_it_is_another(payload: bytes, changed: int) -> None:
    signed = bytearray(base64.urlsafe_b64decode(SEALER.sign("purpose", payload) + "=="))
    signed[changed % len(signed)] ^= 1
    with pytest.raises(Unsealable):
        SEALER.open_signed("purpose", base64.urlsafe_b64encode(signed).decode().rstrip("="))


def test_what_is_sealed_is_not_signed_nor_the_other_way_round() -> None:
    for token, opened in ((SEALER.seal("p", b"x"), SEALER.open_signed), (SEALER.sign("p", b"x"), SEALER.open)):
        with pytest.raises(Unsealable):
            opened("p", token)


@given(st.tuples(st.text(), st.binary()), st.tuples(st.text(), st.binary()))
def test_equal_payloads_have_equal_names_and_no_others(one: tuple[str, bytes], other: tuple[str, bytes]) -> None:
    assert SEALER.name(*one) == SEALER.name(*one)
    assert (SEALER.name(*one) == SEALER.name(*other)) == (one == other)
    assert SEALER.seal(*one) != SEALER.seal(*one)


@given(purpose=st.text(), payload=st.binary())
def test_what_lives_in_one_process_begins_with_its_label_and_opens_in_others(purpose: str, payload: bytes) -> None:
    here, there = Sealer(b"secret", label="here"), Sealer(b"secret", label="there")
    for token in (here.seal_here(purpose, payload), here.name_here(purpose, payload)):
        assert label_of(token) == "here"
        assert there.open(purpose, token) == SEALER.open(purpose, token) == payload
    signed = here.sign_here(purpose, payload)
    assert label_of(signed) == "here"
    assert there.open_signed(purpose, signed) == SEALER.open_signed(purpose, signed) == payload
    for token in (here.seal(purpose, payload), SEALER.seal_here(purpose, payload)):
        assert label_of(token) == ""
        assert there.open(purpose, token) == payload
    assert here.name_here(purpose, payload) == here.name_here(purpose, payload)


@pytest.mark.parametrize("label", ["there", "", "here.", "."])
def test_a_token_with_another_label_than_it_was_sealed_with_does_not_open(label: str) -> None:
    sealer = Sealer(b"secret", label="here")
    for opened, token in (
        (sealer.open, sealer.seal_here("purpose", b"payload")),
        (sealer.open_signed, sealer.sign_here("purpose", b"payload")),
    ):
        content = token.rpartition(".")[2]
        for other in (f"{label}.{content}", content):
            with pytest.raises(Unsealable):
                opened("purpose", other)


@pytest.mark.parametrize("token", ["", "=", "é", "short", "A" * 100])
def test_what_was_never_sealed_does_not_open(token: str) -> None:
    for opened in (SEALER.open, SEALER.open_signed):
        with pytest.raises(Unsealable):
            opened("purpose", token)


def test_what_any_listed_secret_sealed_opens_and_the_first_seals() -> None:
    old, new = Sealer(b"old"), Sealer(b"new")
    both = Sealer(b"new", b"old")
    assert both.open("purpose", old.seal("purpose", b"x")) == both.open("purpose", new.seal("purpose", b"x")) == b"x"
    assert new.open("purpose", both.seal("purpose", b"x")) == b"x"
    assert both.open_signed("purpose", old.sign("purpose", b"x")) == b"x"
    assert new.open_signed("purpose", both.sign("purpose", b"x")) == b"x"
    with pytest.raises(Unsealable):
        new.open("purpose", old.seal("purpose", b"x"))


def test_only_what_another_secret_than_the_first_sealed_is_outdated() -> None:
    both = Sealer(b"new", b"old")
    tokens = {secret: Sealer(secret).seal("purpose", b"x") for secret in (b"old", b"new", b"another")}
    assert {secret: both.is_outdated("purpose", token) for secret, token in tokens.items()} == {
        b"old": True,
        b"new": False,
        b"another": False,
    }


def test_names_and_digests_stay_while_the_secret_that_made_them_is_listed() -> None:
    sealer = Sealer(b"old")

    def compared() -> tuple[str, str]:
        return sealer.name("purpose", b"x"), sealer.digest("purpose", b"x")

    before = compared()
    sealer.reconfigure(b"new", b"old")
    assert compared() == before
    assert sealer.digest("purpose", b"x") in sealer.digests("purpose", b"x")
    sealer.reconfigure(b"new")
    assert compared() != before
    assert sealer.open("purpose", compared()[0]) == b"x"
