"""The parts of a URL that may be secret: user, password, values of the query and long segments of the path.

For redaction by value (requirement R44), so each part comes as it is written and decoded. Judges no value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote, unquote_plus, urlsplit

MIN_SEGMENT: Final = 16
"""Characters of a segment of a path that may be secret: shorter ones are mostly ordinary words."""


def url_credentials(url: str) -> Iterator[str]:
    """User, password and values of the query, as written and decoded; some come twice, some are empty."""
    split = urlsplit(url)
    userinfo = split.netloc.rpartition("@")[0]
    for part in (*userinfo.split(":", 1), *(pair.partition("=")[2] for pair in split.query.split("&"))):
        yield from (part, unquote(part), unquote_plus(part))


def url_secrets(url: str) -> Iterator[str]:
    """The same, and long segments of the path, which hold keys at some services and ordinary words at others."""
    yield from url_credentials(url)
    for segment in urlsplit(url).path.split("/"):
        if len(segment) >= MIN_SEGMENT:
            yield from (segment, unquote(segment))
