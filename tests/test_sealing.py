"""State that a client carries: what opens it, and what does not."""

from __future__ import annotations

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
    for token in (here.seal(purpose, payload), SEALER.seal_here(purpose, payload)):
        assert label_of(token) == ""
        assert there.open(purpose, token) == payload
    assert here.name_here(purpose, payload) == here.name_here(purpose, payload)


@pytest.mark.parametrize("label", ["there", "", "here.", "."])
def test_a_token_with_another_label_than_it_was_sealed_with_does_not_open(label: str) -> None:
    sealer = Sealer(b"secret", label="here")
    sealed = sealer.seal_here("purpose", b"payload").rpartition(".")[2]
    for token in (f"{label}.{sealed}", sealed):
        with pytest.raises(Unsealable):
            sealer.open("purpose", token)


@pytest.mark.parametrize("token", ["", "=", "é", "short", "A" * 100])
def test_what_was_never_sealed_does_not_open(token: str) -> None:
    with pytest.raises(Unsealable):
        SEALER.open("purpose", token)


def test_what_any_listed_secret_sealed_opens_and_the_first_seals() -> None:
    old, new = Sealer(b"old"), Sealer(b"new")
    both = Sealer(b"new", b"old")
    assert both.open("purpose", old.seal("purpose", b"x")) == both.open("purpose", new.seal("purpose", b"x")) == b"x"
    assert new.open("purpose", both.seal("purpose", b"x")) == b"x"
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
