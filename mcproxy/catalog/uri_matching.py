"""Match URIs against globs, by every reading that a server may give a URI.

Servers disagree on which resource a URI names: they decode it once or twice, resolve `..` before or after, take a
backslash for a slash, or the authority for the first folder of a path. A caller may use a URI only if a glob allows
each of its readings, and may not if a glob denies one of them. A URI whose readings cannot all be told is unreadable:
no caller may use it. Sans-I/O; the work and the number of readings are bounded.

In a glob `*`, `?` and `[...]` stay in the part of the URI that they stand in: those of the scheme and of the
authority match no `/`, `?` or `#`. A `*` that ends the glob matches all that follows. A glob without `://` is held
against the whole URI as a text.
"""

from __future__ import annotations

import fnmatch
import re
import socket
import unicodedata
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote

from mcproxy.catalog.uris import MAX_URI

MAX_READINGS: Final = 128
"""Readings of one URI. One with more is unreadable."""
_MAX_STATES: Final = 64
"""Steps of decoding and resolving that lead to the readings of a path."""

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/?#]*))?(.*)", re.DOTALL)
_USUAL: Final = re.compile(
    r"([a-z][a-z0-9+.-]*)://([a-z0-9_-]+(?:\.[a-z0-9_-]+)*)?((?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9_.~!$&'()*+,=:@{}-]+)+)"
)
"""URIs with one reading as text, and one as a path, as most are."""

_WEB_SCHEMES: Final = frozenset({"http", "https", "ws", "wss", "ftp"})
"""Schemes whose authority is a host in every server."""
_WEB: Final = re.compile(r"(https?|wss?|ftp):/*", re.IGNORECASE)
_PORTS: Final = {"http": ":80", "ws": ":80", "https": ":443", "wss": ":443", "ftp": ":21"}

_PORT: Final = re.compile(r":[0-9*?]*\Z")
"""The port of a URI's authority, or of a glob's."""
_MAX_DECODINGS: Final = 3
"""How often an authority may be percent-encoded."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_UNICODE_ESCAPE: Final = re.compile(r"%u[0-9a-fA-F]{4}", re.IGNORECASE)
_DELIMITER: Final = re.compile(r"(%(?:2F|3F|23|5C))", re.IGNORECASE)
"""`/`, `?`, `#` and a backslash, percent-encoded: delimiters to some servers, plain text to others."""
_SLASHES: Final = re.compile("/{2,}")
_DOTS: Final = re.compile(r"(?:^|/)\.\.?(?:/|$)")
_PARAMETERS: Final = re.compile(r";[^/]*")
_TAIL: Final = re.compile("[?#]")
_PIECES: Final = re.compile(r"([?&=;#])")

_LOOKALIKES: Final = {
    0x2024: ".", 0x3002: ".", 0xFE52: ".", 0xFF0E: ".", 0xFF61: ".", 0x2025: "..", 0xFE30: "..",
    0x2044: "/", 0x2215: "/", 0xFF0F: "/", 0xFE68: "\\", 0xFF3C: "\\", 0xFE6A: "%", 0xFF05: "%",
    0xFE56: "?", 0xFF1F: "?", 0xFE5F: "#", 0xFF03: "#", 0x037E: ";", 0xFE54: ";", 0xFF1B: ";",
    0xFE55: ":", 0xFF1A: ":", 0xFE6B: "@", 0xFF20: "@",
}  # fmt: skip
"""Full-width dots, slashes and the like, by code point, which compatibility normalization turns into delimiters."""
_LOOKALIKE: Final = re.compile(f"[{''.join(map(chr, _LOOKALIKES))}]")

_AS_PATH: Final = "\x00"
"""Begins readings in which the authority is the first folder of a path. No readable URI holds the character."""
_BARE: Final = "\x01"
"""Begins readings without the `;parameters` of the path's segments, after `_AS_PATH`."""
_ANY_MARKS: Final = r"\x00?\x01?"

_WILDCARD: Final = re.compile(r"%(?:2A|3F|5B)", re.IGNORECASE)
"""`*`, `?` and `[`, percent-encoded: no wildcards in a glob."""
_GLOB: Final = re.compile(r"([^:/]*)://([^/#]*)(.*)", re.DOTALL)
_GLOB_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?!//)(.*)", re.DOTALL)


class _Unreadable(Exception):
    """The readings of a URI cannot all be determined. The text is a phrase that continues `the URI`."""


class _Parts(NamedTuple):
    """A URI taken apart. `scheme` is in lower case; `tail` is query and fragment with their delimiters."""

    scheme: str
    authority: str | None
    path: str
    tail: str


class _State(NamedTuple):
    """Path and tail of a URI after some of the steps that servers take."""

    path: str
    tail: str
    decoded: bool = False
    bare: bool = False


def readings(uri: str) -> tuple[str, ...]:
    """Each reading of `uri`, for the matchers of globs; none if it is unreadable."""
    return _read(uri)[0] if len(uri) <= MAX_URI else ()


def uri_flaw(uri: str) -> str | None:
    """Why a URI is refused to every caller, as a phrase that continues `the URI`; None if it is readable."""
    if len(uri) > MAX_URI:
        return f"has more than {MAX_URI} characters"
    if _USUAL.fullmatch(uri):
        return None
    return _read(uri)[1] if _URI.fullmatch(uri) else "has no scheme"


@lru_cache(1024)
def matcher(globs: tuple[str, ...]) -> Callable[[str], object]:
    """A function that returns whether one of `globs` matches a reading."""
    return re.compile("|".join(map(pattern, globs)) or "(?!)").match


def pattern(glob: str) -> str:
    """The regular expression for a glob of URIs: it matches readings from their beginning to their end."""
    structured = _GLOB.fullmatch(glob)
    if structured is not None:
        return "|".join(dict.fromkeys(_structured(*structured.groups())))
    opaque = _GLOB_SCHEME.fullmatch(glob)
    if opaque is not None:
        return "|".join(dict.fromkeys(_opaque(*opaque.groups())))
    return "|".join(dict.fromkeys(_ANY_MARKS + _expression([*_tokens(text, ".")]) for text in _glob_spellings(glob)))


@lru_cache(4)  # a URI is asked about several times in a row; each entry is at most MAX_URI * MAX_READINGS
def _read(uri: str) -> tuple[tuple[str, ...], str | None]:
    """The readings, and the reason if there are none."""
    usual = _USUAL.fullmatch(uri)
    if usual is not None:
        scheme, authority, path = usual[1], usual[2] or "", usual[3]
        if scheme in _WEB_SCHEMES and authority and not authority[0].isdigit():
            return (uri,), None
        if scheme not in _WEB_SCHEMES and not (authority and scheme == "file"):
            return (uri, f"{_AS_PATH}{scheme}:{(authority + path).lstrip('/')}"), None
    try:
        found = _readings(uri)
    except _Unreadable as why:
        return (), str(why)
    except UnicodeDecodeError:
        return (), "is no UTF-8 once it is decoded"
    return tuple(found), None


def _readings(uri: str) -> dict[str, None]:
    """Raises _Unreadable, and UnicodeDecodeError."""
    if uri != uri.strip() or _CONTROL.search(uri):
        raise _Unreadable("has control characters in it, or white space around it")
    found: dict[str, None] = {}
    slashed = uri.replace("\\", "/")
    for spelling in dict.fromkeys((uri, slashed, _WEB.sub(r"\1://", slashed))):
        parts = _split(spelling)
        for reading in (*_as_text(parts), *_as_path(parts)):
            found[reading] = None
            if len(found) > MAX_READINGS:
                raise _Unreadable("can be read in too many ways")
    return found


def _as_text(parts: _Parts) -> Iterator[str]:
    """The readings in which the authority is an authority."""
    path, tail = parts.path, parts.tail
    starts = [_State(path, tail), _State(path + tail, "")]
    if parts.authority is not None and not path:
        # RFC 3986, section 6.2.3: an empty path after a host is `/`.
        rooted = [_State("/", tail), _State("/" + tail, "")]
        starts = rooted if parts.scheme in _WEB_SCHEMES else [starts[0], *rooted] if tail else starts[:1]
    rests = _rests(starts)
    for head in dict.fromkeys(_heads(parts)):
        for rest, bare in rests:
            yield f"{_BARE if bare else ''}{head}{rest}"


def _as_path(parts: _Parts) -> Iterator[str]:
    """The readings in which the authority is the first folder of a path, as in `notes://folder/page.md`."""
    if not parts.scheme or parts.scheme in _WEB_SCHEMES:
        return
    path = (parts.authority or "") + parts.path
    for rest, bare in _rests([_State(path, parts.tail), _State(path + parts.tail, "")]):
        yield f"{_AS_PATH}{_BARE if bare else ''}{parts.scheme}:{rest.lstrip('/')}"


def _rests(starts: Collection[_State]) -> Collection[tuple[str, bool]]:
    """What path, query and fragment are after any of the steps that servers take, in any order.

    Each server decodes at least once, but perhaps not what would be a delimiter then. Raises _Unreadable.
    """
    seen = dict.fromkeys(starts)
    todo = list(seen)
    for state in todo:
        for after in _steps(state):
            if after not in seen:
                seen[after] = None
                todo.append(after)
        if len(seen) > _MAX_STATES:
            raise _Unreadable("can be read in too many ways")
    return dict.fromkeys((state.path + state.tail, state.bare) for state in seen if state.decoded)


def _steps(state: _State) -> Iterator[_State]:
    path, tail, decoded, bare = state
    yield _State(_decoded_in_place(path), _decoded_in_place(tail), True, bare)
    yield _State(_decoded(path), _decoded(tail), True, bare)
    if "\\" in path or "\\" in tail:
        yield _State(path.replace("\\", "/"), tail.replace("\\", "/"), decoded, bare)
    if "//" in path:
        yield _State(_SLASHES.sub("/", path), tail, decoded, bare)
    if _DOTS.search(path):
        yield _State(_without_dots(path), tail, decoded, bare)
    if "." in tail:
        yield _State(path, "".join(_without_dots(piece, clamp=True) for piece in _PIECES.split(tail)), decoded, bare)
    if ";" in path:
        # Servlet containers take `;name=value` off each segment: to them `..;` is `..`.
        yield _State(_PARAMETERS.sub("", path), tail, decoded, True)
    if not (path.isascii() and tail.isascii()) and _LOOKALIKE.search(path + tail):
        yield _State(path.translate(_LOOKALIKES), tail.translate(_LOOKALIKES), decoded, bare)


def _decoded(text: str) -> str:
    if "%" not in text:
        return text
    if _UNICODE_ESCAPE.search(text):
        raise _Unreadable("has an escape of the form %uXXXX, which RFC 3986 does not know")
    decoded = unquote(text, errors="strict")
    if _CONTROL.search(decoded):
        raise _Unreadable("has control characters in it, percent-encoded")
    return decoded


def _decoded_in_place(text: str) -> str:
    """Decoded, but for what would be a delimiter then."""
    if "%" not in text:
        return text
    parts = _DELIMITER.split(text)
    return "".join(part.upper() if index % 2 else _decoded(part) for index, part in enumerate(parts))


def _without_dots(path: str, *, clamp: bool = False) -> str:
    """`path` with `.` and `..` resolved (RFC 3986, section 5.2.4).

    Raises _Unreadable where `..` climbs above the beginning; with `clamp` it stays there.
    """
    if not _DOTS.search(path):
        return path
    kept: list[str] = []
    root = int(path.startswith("/"))
    segments = path.split("/")
    for segment in segments:
        if segment == "..":
            if len(kept) > root:
                kept.pop()
            elif not clamp:
                raise _Unreadable("climbs above its root with `..`")
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/".join(kept)


def _heads(parts: _Parts) -> Iterator[str]:
    """Scheme and authority, as written and as servers read them that decode the authority or ignore a part of it."""
    scheme, authority = parts.scheme, parts.authority
    if authority is None:
        yield f"{scheme}:" if scheme else ""
        return
    for name in _names(authority):
        hosts = [name, name.rpartition("@")[2]]
        if scheme not in _WEB_SCHEMES:
            # To `urlsplit(uri).hostname` a port is none of the name; on the web it is another server's.
            hosts.append(_PORT.sub("", hosts[-1]))
        for host in dict.fromkeys(hosts):
            yield f"{scheme}://{_host(scheme, host)}"
            if scheme in _WEB_SCHEMES and (address := _address(_host(scheme, host))) is not None:
                yield f"{scheme}://{address}"
    if scheme == "file":
        yield "file://"


def _names(authority: str) -> list[str]:
    """An authority as written, and as it is after each decoding; a backslash ends it as a slash does.

    Raises _Unreadable where it was encoded more than _MAX_DECODINGS times.
    """
    names = [authority]
    while (decoded := unquote(names[-1])) != names[-1]:
        if len(names) > _MAX_DECODINGS:
            raise _Unreadable("has a host that is percent-encoded again and again")
        names.append(decoded)
    if not names[-1].isascii():
        names.append(_mapped(names[-1]))
    return [name.replace("\\", "/") for name in names]


def _host(scheme: str, authority: str) -> str:
    """An authority in lower case, without the scheme's default port."""
    user, at, host = authority.rpartition("@")
    return f"{user}{at}{host.lower()}".removesuffix(":").removesuffix(_PORTS.get(scheme, ":")).removesuffix(".")


def _mapped(authority: str) -> str:
    """An authority as a server looks it up that maps its letters to ASCII ones (UTS #46)."""
    folded = unicodedata.normalize("NFKC", authority.translate(_LOOKALIKES)).lower()
    return "".join(letter for letter in folded if unicodedata.category(letter) not in {"Cf", "Mn"})


def _address(host: str) -> str | None:
    """The IPv4 address that a host is as a number: `0x7f.1` and `2130706433` are `127.0.0.1`."""
    name, _, port = host.partition(":")
    if not name[:1].isdigit():
        return None
    try:
        address = socket.inet_ntoa(socket.inet_aton(name))
    except (OSError, ValueError):
        return None
    return f"{address}:{port}" if port else address


def _split(uri: str) -> _Parts:
    """What is no URI is all path."""
    match = _URI.fullmatch(uri)
    if match is None:
        return _Parts("", None, uri, "")
    scheme, authority, rest = match[1].lower(), match[2], match[3]
    tail = _TAIL.search(rest)
    end = len(rest) if tail is None else tail.start()
    path, tail_text = rest[:end], rest[end:]
    if scheme == "file" and (authority is None or authority.lower() == "localhost"):
        # RFC 8089, section 2 and appendix B: `file:/a` and `file://localhost/a` are `file:///a`.
        return _Parts(scheme, "", path if path.startswith("/") else f"/{path}", tail_text)
    return _Parts(scheme, authority, path, tail_text)


def _structured(scheme: str, authority: str, rest: str) -> Iterator[str]:
    """The expressions for a glob with `://`."""
    scheme = scheme.lower()
    if not rest and authority.endswith("*"):
        authority, rest = authority[:-1], "*"
    elif not rest and scheme in _WEB_SCHEMES:
        rest = "/"
    host = "" if scheme == "file" and authority.lower() == "localhost" else _host(scheme, authority)
    hosts = [host] if scheme in _WEB_SCHEMES else dict.fromkeys((host, _PORT.sub("", host)))
    for each in hosts:
        head = [*_tokens(scheme, "[^:/?#]"), *map(re.escape, "://"), *_tokens(_unquoted_glob(each), "[^/?#]")]
        for spelling in _glob_spellings(rest):
            yield from _expressions("", head, spelling)
    if scheme in _WEB_SCHEMES:
        return
    folder = "" if scheme == "file" and authority.lower() == "localhost" else authority
    head = [*_tokens(scheme, "[^:/?#]"), ":", *_tokens(_unquoted_glob(folder), "[^/?#]")]
    for spelling in _glob_spellings(rest):
        yield from _expressions(_AS_PATH, head, spelling if folder else spelling.lstrip("/"))


def _opaque(scheme: str, rest: str) -> Iterator[str]:
    """The expressions for a glob with a scheme and no authority."""
    scheme = scheme.lower()
    if scheme == "file":
        yield from _structured(scheme, "", rest if rest.startswith("/") else f"/{rest}")
        return
    if scheme in _WEB_SCHEMES and rest.strip("*/"):
        # A web URL without `//` is read as one with it: what stands first is its host, which no `*` leaves.
        authority, slash, path = rest.lstrip("/").partition("/")
        yield from _structured(scheme, authority, slash + path)
        return
    head = [*map(re.escape, scheme), ":"]
    for spelling in _glob_spellings(rest):
        yield from _expressions("", head, spelling)
        if scheme not in _WEB_SCHEMES:
            yield from _expressions(_AS_PATH, head, spelling.lstrip("/"))


def _expressions(mark: str, head: list[str], rest: str) -> Iterator[str]:
    """For readings with the path's parameters, and for those without."""
    if ";" not in rest:
        yield f"{re.escape(mark)}{_BARE}?{_expression([*head, *_tokens(rest, '.')])}"
        return
    yield f"{re.escape(mark)}{_expression([*head, *_tokens(rest, '.')])}"
    yield f"{re.escape(mark)}{_BARE}{_expression([*head, *_tokens(_PARAMETERS.sub('', rest), '.')])}"


def _glob_spellings(rest: str) -> Iterator[str]:
    """The spellings of a glob's path and tail that are held against decoded ones."""
    tail = _TAIL.search(rest)
    end = len(rest) if tail is None else tail.start()
    yield _without_dots(_unquoted_glob(rest[:end]), clamp=True) + _unquoted_glob(rest[end:])
    parts = _DELIMITER.split(rest)
    yield "".join(part.upper() if index % 2 else _unquoted_glob(part) for index, part in enumerate(parts))


def _unquoted_glob(glob: str) -> str:
    return unquote(_WILDCARD.sub(lambda code: f"[{unquote(code[0])}]", glob))


_STAR: Final = "*"


def _tokens(glob: str, one: str) -> Iterator[str]:
    """A glob as expressions of one character each, and for `*` the expression of what it may repeat, after `_STAR`."""
    index = 0
    while index < len(glob):
        letter = glob[index]
        index += 1
        match letter:
            case "*":
                yield _STAR + one
            case "?":
                yield one
            case "[" if (end := _end_of_class(glob, index)) > 0:
                letters = fnmatch.translate(glob[index - 1 : end])
                yield (f"(?!{one.replace('^', '')})" if one != "." else "") + letters[4 : letters.rindex(")")]
                index = end
            case _:
                yield re.escape(letter)


def _end_of_class(glob: str, index: int) -> int:
    """Where a `[...]` ends that began before `index`; 0 where it does not."""
    begin = index + 1 if glob[index : index + 1] == "!" else index
    return glob.find("]", begin + 1) + 1


def _expression(tokens: list[str]) -> str:
    """One expression of a glob's tokens.

    Each `*` but the last is content with the shortest text before what follows it, for good: the time that a match
    takes grows with the text, and not with its power.
    """
    pieces: list[list[str]] = [[]]
    stars: list[str] = []
    for token in tokens:
        if token.startswith(_STAR):
            stars.append(token[1:])
            pieces.append([])
        else:
            pieces[-1].append(token)
    fixed = ["".join(piece) for piece in pieces]
    if not stars:
        return rf"(?s:{fixed[0]})\Z"
    middle = "".join(f"(?>{star}*?{piece})" for star, piece in zip(stars[:-1], fixed[1:-1], strict=True))
    return rf"(?s:{fixed[0]}{middle}{stars[-1]}*{fixed[-1]})\Z"
