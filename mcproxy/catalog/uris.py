"""The canonical spelling of a URI, the longest one allowed, and the resources that a URI may be a part of.

First-generation SDKs respell URIs (requirement R63): what compares them compares their canonical spellings. Decides
no caller's right to use a URI: see `uri_matching`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final
from urllib.parse import quote

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/?#]*))?(.*)", re.DOTALL)
_SPELT_SO: Final = re.compile(
    r"[a-z][a-z0-9+.-]*:(?://[a-z0-9_.~:\[\]@!$&'()*+,;=-]*/|(?!//))[A-Za-z0-9_.~:/?#\[\]@!$&'()*+,;=-]*"
)
"""Matches URIs in canonical spelling, as most are."""
_PERCENT: Final = re.compile(r"%[0-9a-fA-F]{2}")
_KEPT: Final = "%:/?#[]@!$&'()*+,;=~"
"""Characters that RFC 3986 reserves, and those that are encoded already."""
MAX_URI: Final = 8192
"""Characters of a URI that callers may use, and that an upstream may list. A longer one is refused unread."""
MAX_PARTS: Final = 128
"""`/`, `?` and `#` of a URI at which `wholes` cuts it; a resource with more of them is not cached."""
_PART: Final = re.compile("[/?#]")
RESULT_SCHEME: Final = "mcproxy-result"
"""The scheme of the URIs at which the gateway keeps whole results whose callers were shown a part."""


def canonical(uri: str) -> str:
    """`uri` in its canonical spelling (requirement R63).

    Scheme and host in lower case, an empty path as `/`, and what is outside RFC 3986 percent-encoded.
    """
    if _SPELT_SO.fullmatch(uri):
        return uri
    match = _URI.fullmatch(uri)
    if match is None:
        return _quoted(uri)
    scheme, authority, rest = match.groups()
    if authority is None:
        return f"{scheme.lower()}:{_quoted(rest)}"
    path = rest if rest.startswith("/") else f"/{rest}"
    return f"{scheme.lower()}://{_quoted(_host_lowered(authority))}{_quoted(path)}"


def _quoted(text: str) -> str:
    encoded = quote(text, safe=_KEPT, errors="replace")
    return _PERCENT.sub(lambda code: code[0].upper(), encoded)


def _host_lowered(authority: str) -> str:
    user, at, host = authority.rpartition("@")
    return f"{user}{at}{host.lower()}"


def has_many_parts(uri: str) -> bool:
    """Whether a URI has more parts than `wholes` examines."""
    return len(uri) > MAX_PARTS and len(_PART.findall(uri)) > MAX_PARTS


def wholes(uri: str) -> Iterator[str]:
    """`uri`, and each resource that it may be a sub-resource of: its prefixes up to a `/`, `?` or `#`."""
    yield uri
    for part in islice(_PART.finditer(uri), MAX_PARTS):
        yield uri[: part.start()]
        yield uri[: part.end()]
