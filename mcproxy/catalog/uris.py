"""Spellings of one URI: how first-generation SDKs respell what they were given, and what servers may take one for.

Names nothing and resolves nothing; `naming` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final
from urllib.parse import quote, unquote

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/?#]*))?(.*)", re.DOTALL)
_SPELT_SO: Final = re.compile(
    r"[a-z][a-z0-9+.-]*:(?://[a-z0-9_.~:\[\]@!$&'()*+,;=-]*/|(?!//))[A-Za-z0-9_.~:/?#\[\]@!$&'()*+,;=-]*"
)
"""What is `canonical` as it is: most URIs are."""
_PERCENT: Final = re.compile(r"%[0-9a-fA-F]{2}")
_KEPT: Final = "%:/?#[]@!$&'()*+,;=~"
"""What RFC 3986 reserves, and what is encoded already."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_ODD: Final = re.compile(r"[%\x00-\x20\x7f-\xa0\\]")
"""What only some URIs have that need a closer look to be legal."""
_DELIMITER: Final = re.compile(r"(%(?:2F|3F|23|5C))", re.IGNORECASE)
"""`/`, `?`, `#` and a backslash, encoded: to some servers they are no delimiters, to some they are."""
_SLASHES: Final = re.compile("/{2,}")
_PIECES: Final = re.compile(r"([?&=;#])")
_WEB: Final = re.compile(r"(https?|wss?|ftp):/*", re.IGNORECASE)
_PORTS: Final = {"http": ":80", "ws": ":80", "https": ":443", "wss": ":443", "ftp": ":21"}

MAX_READINGS: Final = 64
"""What takes more to be understood is no legal URI."""
MAX_URI: Final = 8192
"""Characters; a longer URI is read past the cache, cannot be watched, and is compared no further than this."""
MAX_PARTS: Final = 128
"""Of a URI's `/`, `?` and `#` that are looked at; a resource with more of them is read past the cache."""
_PART: Final = re.compile("[/?#]")


def canonical(uri: str) -> str:
    """The one spelling that all of these share: scheme and host in any case, an empty path or `/`, and anything
    outside RFC 3986 percent-encoded or not (requirement R63)."""
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


def is_legal(uri: str) -> bool:
    """Whether it is a URI, of which can be said what a server takes it for."""
    return _URI.fullmatch(uri) is not None and (not _ODD.search(uri) or bool(readings(uri)))


def plain(uri: str) -> str:
    """The likeliest reading: decoded, with scheme and host in lower case and without `..`."""
    head, path, tail = _parted(uri)
    return head + _without_dots(unquote(path)) + unquote(tail)


def spellings(glob: str) -> tuple[str, ...]:
    """The spellings of a glob that are held against `readings`."""
    head, path, tail = _parted(glob)
    return tuple(dict.fromkeys((plain(glob), head + _decoded_in_place(path) + _decoded_in_place(tail))))


def readings(uri: str) -> tuple[str, ...]:
    """Each thing that some server may take `uri` for, `plain` first; none where that cannot be told, and it is no legal
    URI. Who may read `uri` must be allowed all of them: then no spelling of it leads out of what is allowed.
    """
    if uri != uri.strip() or _CONTROL.search(uri):
        return ()
    found: dict[str, None] = {plain(uri): None}
    slashed = uri.replace("\\", "/")
    try:
        for spelt in dict.fromkeys((uri, slashed, _WEB.sub(r"\1://", slashed))):
            _, path, tail = _parted(spelt)
            rests = _rests(path, tail)
            found.update(dict.fromkeys(head + rest for head in _heads(spelt) for rest in rests))
    except ValueError:
        return ()
    return tuple(found)


def _rests(path: str, tail: str) -> list[str]:
    """What path, query and fragment are after any of the things that servers do to them, in any order.

    All decode at least once, but perhaps not what would be a delimiter then. Raises ValueError where that makes no
    text, or no end.
    """
    # Some take all of it for the path.
    todo = [(path, tail, False), (path + tail, "", False)]
    seen = dict.fromkeys(todo)
    for path, tail, decoded in todo:
        slashed = path.replace("\\", "/"), tail.replace("\\", "/")
        for state in (
            (_decoded_in_place(path), _decoded_in_place(tail), True),
            (_decoded(path), _decoded(tail), True),
            (*slashed, decoded),
            (_SLASHES.sub("/", path), tail, decoded),
            (_without_dots(path), tail, decoded),
            (path, _without_dots_in_pieces(tail), decoded),
        ):
            if state not in seen:
                seen[state] = None
                todo.append(state)
        if len(seen) > MAX_READINGS:
            raise ValueError("it can be read in too many ways")
    return [path + tail for path, tail, decoded in seen if decoded]


def _decoded(text: str) -> str:
    if "%" not in text:
        return text
    decoded = unquote(text, errors="strict")
    if _CONTROL.search(decoded):
        raise ValueError("control characters are encoded in it")
    return decoded


def _decoded_in_place(text: str) -> str:
    """Decoded, but for what would read as a delimiter then."""
    if "%" not in text:
        return text
    parts = _DELIMITER.split(text)
    return "".join(part.upper() if index % 2 else unquote(part) for index, part in enumerate(parts))


def _heads(uri: str) -> Iterator[str]:
    """Scheme and authority, and as who decodes the one, or ignores a part of it, has them."""
    head, _, _ = _parted(uri)
    yield head
    scheme, slashes, authority = head.partition("://")
    if slashes:
        yield f"{scheme}://{unquote(authority)}"
        yield f"{scheme}://{authority.rpartition('@')[2]}"
    if scheme == "file":
        yield "file://"


def _parted(uri: str) -> tuple[str, str, str]:
    """Scheme and authority, in lower case and without what goes without saying; the path; and what follows it.

    An authority is not decoded: it might read as another then. What is no URI is all path.
    """
    match = _URI.fullmatch(uri)
    if match is None:
        return "", uri, ""
    scheme, authority, rest = match[1].lower(), match[2], match[3]
    end = min((index for index in (rest.find("?"), rest.find("#")) if index >= 0), default=len(rest))
    path, tail = rest[:end], rest[end:]
    if scheme == "file" and (authority is None or authority.lower() == "localhost"):
        # RFC 8089, section 2 and appendix B: `file:/a` and `file://localhost/a` are `file:///a`.
        return "file://", path if path.startswith("/") else f"/{path}", tail
    if authority is None:
        return f"{scheme}:", path, tail
    host = _host_lowered(authority).removesuffix(":").removesuffix(_PORTS.get(scheme, ":")).removesuffix(".")
    return f"{scheme}://{host}", path, tail


def _quoted(text: str) -> str:
    encoded = quote(text, safe=_KEPT, errors="replace")
    return _PERCENT.sub(lambda code: code[0].upper(), encoded)


def _host_lowered(authority: str) -> str:
    user, at, host = authority.rpartition("@")
    return f"{user}{at}{host.lower()}"


def _without_dots(path: str) -> str:
    """RFC 3986, section 5.2.4, where there is anything to remove."""
    if "." not in path:
        return path
    kept: list[str] = []
    rooted = path.startswith("/")
    segments = path.split("/")
    for segment in segments:
        if segment == "..":
            del kept[max(rooted, len(kept) - 1) :]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/".join(kept)


def _without_dots_in_pieces(tail: str) -> str:
    """Of a query or fragment: a path may be in any of its pieces."""
    return "".join(map(_without_dots, _PIECES.split(tail))) if "." in tail else tail


def has_many_parts(uri: str) -> bool:
    """Whether a URI has more parts than `wholes` looks at."""
    return len(uri) > MAX_PARTS and len(_PART.findall(uri)) > MAX_PARTS


def wholes(uri: str) -> Iterator[str]:
    """`uri`, and each resource that it may be a sub-resource of: all that it begins with, up to a `/`, `?` or `#`."""
    yield uri
    for part in islice(_PART.finditer(uri), MAX_PARTS):
        yield uri[: part.start()]
        yield uri[: part.end()]
