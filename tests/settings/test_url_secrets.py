"""The twin of `mcproxy.settings.url_secrets`."""

from __future__ import annotations

from mcproxy.configuration.loading import credentials
from mcproxy.settings.url_secrets import url_credentials, url_secrets
from tests.fakes.upstream import settings_of

URL = "https://user-123:pass%2Fword@example.com/s/aaaabbbbccccdddd/mcp?key=query%20secret&debug=1"


def test_user_password_and_values_of_the_query_are_credentials_as_written_and_decoded() -> None:
    found = set(url_credentials(URL))
    assert found >= {"user-123", "pass%2Fword", "pass/word", "query%20secret", "query secret", "1"}
    assert "aaaabbbbccccdddd" not in found


def test_long_segments_of_the_path_may_be_secret_too() -> None:
    assert set(url_secrets(URL)) - set(url_credentials(URL)) == {"aaaabbbbccccdddd"}


def test_r44_what_an_upstreams_url_holds_of_credentials_is_a_secret_of_the_gateway_and_short_words_are_none() -> None:
    found = credentials(settings_of({"up": {"url": URL, "command": None}}))
    assert found >= {"user-123", "pass/word", "query secret"}
    assert found.isdisjoint({"1", "", "aaaabbbbccccdddd", "example.com"})
