"""Spellings of one URI: how first-generation SDKs respell what they were given, and what a filter compares.

Names nothing and resolves nothing; `naming` does.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/?#]*))?(.*)", re.DOTALL)
_PERCENT: Final = re.compile(r"%[0-9a-fA-F]{2}")
_KEPT: Final = "%:/?#[]@!$&'()*+,;=~"
"""What RFC 3986 reserves, and what is encoded already."""


def canonical(uri: str) -> str:
    """The one spelling that all of these share: scheme and host in any case, an empty path or `/`, and anything
    outside RFC 3986 percent-encoded or not (requirement R63)."""
    match = _URI.fullmatch(uri)
    if match is None:
        return _quoted(uri)
    scheme, authority, rest = match.groups()
    if authority is None:
        return f"{scheme.lower()}:{_quoted(rest)}"
    path = rest if rest.startswith("/") else f"/{rest}"
    return f"{scheme.lower()}://{_quoted(_host_lowered(authority))}{_quoted(path)}"


def plain(uri: str) -> str:
    """What a filter's globs, and the URIs they are held against, are compared as.

    Decoded, with scheme and host in lower case and without `..`: no other spelling slips past an exclusion.
    """
    match = _URI.fullmatch(uri)
    if match is None:
        return unquote(uri)
    scheme, authority, rest = match.groups()
    path, tail = _split_path(rest)
    head = f"{scheme.lower()}:" if authority is None else f"{scheme.lower()}://{unquote(_host_lowered(authority))}"
    return head + _without_dots(unquote(path)) + unquote(tail)


def _quoted(text: str) -> str:
    encoded = quote(text, safe=_KEPT, errors="replace")
    return _PERCENT.sub(lambda code: code[0].upper(), encoded)


def _host_lowered(authority: str) -> str:
    user, at, host = authority.rpartition("@")
    return f"{user}{at}{host.lower()}"


def _split_path(rest: str) -> tuple[str, str]:
    end = min((index for index in (rest.find("?"), rest.find("#")) if index >= 0), default=len(rest))
    return rest[:end], rest[end:]


def _without_dots(path: str) -> str:
    """RFC 3986, section 5.2.4, where there is anything to remove."""
    if "/." not in path:
        return path
    kept: list[str] = []
    segments = path.split("/")
    for segment in segments:
        if segment == ".." and len(kept) > 1:
            kept.pop()
        elif segment not in (".", ".."):
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/".join(kept)
