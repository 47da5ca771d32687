"""State that a client carries: what opens it, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.sealing import Sealer, Unsealable

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


@pytest.mark.parametrize("token", ["", "=", "é", "short", "A" * 100])
def test_what_was_never_sealed_does_not_open(token: str) -> None:
    with pytest.raises(Unsealable):
        SEALER.open("purpose", token)
