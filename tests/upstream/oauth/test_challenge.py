"""What a server wants of a request that it refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.upstream.oauth.challenge import MAX_HEADER, BearerChallenge, bearer_challenge

URL = "https://a.example/.well-known/oauth-protected-resource"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("", None),
        ('Basic realm="x"', None),
        ("Bearer", BearerChallenge()),
        (f'Bearer resource_metadata="{URL}"', BearerChallenge(URL)),
        (f"bearer resource_metadata={URL}", BearerChallenge(URL)),
        (
            f'Bearer error="insufficient_scope", scope="a b:c",  resource_metadata = "{URL}"',
            BearerChallenge(URL, ("a", "b:c"), "insufficient_scope"),
        ),
        (f'Basic realm="a, Bearer x", Bearer resource_metadata="{URL}"', BearerChallenge(URL)),
        (f'Bearer scope="one", Digest resource_metadata="{URL}"', BearerChallenge(None, ("one",))),
        (f'Negotiate abc==, Bearer resource_metadata="{URL}"', BearerChallenge(URL)),
        ('Bearer realm="say \\"hi\\"", error="invalid_token"', BearerChallenge(None, (), "invalid_token")),
        ('Bearer error="first", error="second"', BearerChallenge(None, (), "first")),
        ('Bearer scope="broken', BearerChallenge()),
        ("Bearer " + "a" * MAX_HEADER, None),
    ],
)
def test_the_first_bearer_challenge_is_read_whatever_stands_around_it(
    header: str | None, expected: BearerChallenge | None
) -> None:
    assert bearer_challenge(header) == expected


@given(st.text(max_size=400))
def test_no_header_makes_it_fail(header: str) -> None:
    bearer_challenge(header)
    bearer_challenge(f"Bearer {header}")
