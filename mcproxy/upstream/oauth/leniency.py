"""Deviations of authorization servers that have exactly one reasonable reading, each with a report of it.

Every function here returns what the server meant, and tells `note` if the server said it in another way than the
specification does. What is ambiguous or unsafe is refused by the modules that call these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, urljoin

import msgspec

from mcproxy.settings.issuers import is_same_issuer

Note = Callable[[str, str], None]
"""Takes the kind of a deviation, a fixed word, and a sentence about it that completes "the server ...": `Oddities`."""
Members = Mapping[str, object]
"""A JSON object of a peer, before its members have been read."""

MAX_RETRY_AFTER: Final = 3600.0
"""The most seconds that `Retry-After` may delay the next request."""
_WORD_ENDS: Final = re.compile(r"[\s'\"`,;()\[\]<>=]+")
_BOM: Final = b"\xef\xbb\xbf"
_BOUND_TYPES: Final = frozenset({"dpop", "mac", "pop", "n_a"})
"""Token types that a request cannot carry as a Bearer token: they want a proof, or are not access tokens."""


def unnoted(_kind: str, _words: str) -> None:
    """A `Note` that forgets."""


def json_object(body: bytes, note: Note = unnoted) -> Members | None:
    """The JSON object in a body; None if it is something else.

    A byte order mark is skipped, as RFC 8259, section 8.1, allows: github.com/typicode/json-server/pull/1666.
    """
    if body.startswith(_BOM):
        note("bom", "begins JSON with a byte order mark; skipped")
        body = body.removeprefix(_BOM)
    try:
        read = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


def token_members(body: bytes, note: Note) -> Members | None:
    """The members of a token endpoint's answer, which GitHub writes as a form: github.com/vercel/ai/issues/10899.

    Also github.com/modelcontextprotocol/python-sdk/issues/1523. Which of the two it is shows in the body.
    """
    members = json_object(body, note)
    if members is not None or b"=" not in body or body.lstrip()[:1] in {b"{", b"[", b"<"}:
        return members
    try:
        form = dict(parse_qsl(body.decode(), max_num_fields=64))
    except (UnicodeDecodeError, ValueError):
        return None
    if not {"access_token", "error"} & form.keys():
        return None
    note("form_answer", "answers token requests with a form instead of JSON; accepted")
    return form


def text(value: object) -> str | None:
    """A member that should be a text; None for anything else, and for an empty text, which means the same."""
    return value if isinstance(value, str) and value else None


def texts(value: object, note: Note = unnoted) -> tuple[str, ...] | None:
    """A member that should be a list of texts; a text alone is a list of its words, and null is no list.

    The mirror image of `granted_scopes`, where lists are reported in place of a text.
    """
    if isinstance(value, list):
        return tuple(each for each in value if isinstance(each, str))
    if isinstance(value, str):
        note("list_as_text", "writes a list in its metadata as a text; accepted")
        return tuple(value.split())
    return None


def granted_scopes(value: object, note: Note) -> tuple[str, ...] | None:
    """The scopes of a token answer: words of a text (RFC 6749, section 3.3), commas between them, or a list.

    A list: github.com/IBM/mcp-context-forge/pull/4594. Slack's commas, and other members as its own:
    github.com/redhat-data-and-ai/template-agent/issues/265.
    """
    if isinstance(value, list):
        note("scope", "lists the granted scopes instead of writing them as a text; accepted")
        return tuple(each for each in value if isinstance(each, str))
    if not isinstance(value, str):
        return None
    if "," in value and " " not in value:
        note("scope", "separates the granted scopes by commas; accepted")
        return tuple(filter(None, value.split(",")))
    return tuple(value.split())


def seconds(value: object, kind: str, note: Note = unnoted) -> float | None:
    """A number of seconds, which Entra ID writes as a text: github.com/modelcontextprotocol/typescript-sdk/pull/1111.

    None if it says nothing usable: null, a word, less than nothing, more than 10 digits.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not 0 <= number < 10**10:
        return None
    if isinstance(value, str):
        note(kind, f"writes {kind} as a text; accepted")
    return number


def token_type(value: object, note: Note) -> str:
    """The type of an access token: Bearer if it is missing, null, or a name that says nothing of how to send it.

    Slack's is "user"; a missing one: github.com/dust-tt/dust/pull/22773. Types that want a proof keep their name, and
    are refused by name: sent as Bearer, such a token would only be refused by the server.
    """
    name = value.lower() if isinstance(value, str) else ""
    if name in _BOUND_TYPES or name == "bearer":
        return name
    shown = repr(value[:20]) if isinstance(value, str) else "no token_type"
    note("token_type", f"gives tokens of type {shown}; taken for Bearer" if name else f"names {shown}; Bearer")
    return "bearer"


def access_token(members: Members, note: Note) -> str | None:
    """The access token; Slack nests that of a person in `authed_user`: github.com/coder/coder/pull/26150."""
    own = text(members.get("access_token"))
    if own is not None:
        return own
    user = members.get("authed_user")
    nested = text(user.get("access_token")) if isinstance(user, dict) else None
    if nested is not None:
        note("nested_token", "nests the access token in authed_user; accepted")
    return nested


def error_code(members: Members) -> str | None:
    """OAuth's name for a refusal; None if there is none. An `ok` that is false is one, as Slack's."""
    error = members.get("error")
    if isinstance(error, dict):
        error = error.get("code") or error.get("type") or error.get("message")
    named = str(error) if isinstance(error, str | int) and error and error is not True else None
    return named or ("unnamed_error" if members.get("ok") is False or error is True else None)


def is_refusal_status(status: int, note: Note) -> bool:
    """Whether an answer with an error decides something: 4xx, and 2xx of those that always answer 200.

    GitHub: github.com/modelcontextprotocol/typescript-sdk/issues/1342. A 429 and a 408 decide nothing.
    """
    if 200 <= status < 300:
        note("refusal_status", f"refuses token requests with HTTP {status}; read as a refusal")
        return True
    return 400 <= status < 500 and status not in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUEST_TIMEOUT}


def is_success(status: int, what: str, note: Note) -> bool:
    """Whether a status is of success: Supabase answers 201, github.com/modelcontextprotocol/python-sdk/issues/1502."""
    if 200 < status < 300:
        note(f"{what}_status", f"answers the {what} request with HTTP {status}; accepted")
    return 200 <= status < 300


def noted_issuer(named: str, found: str, note: Note) -> bool:
    """Whether metadata is of the issuer that was asked for, which Google and others write with a slash in one place.

    github.com/modelcontextprotocol/python-sdk/issues/1919, github.com/expo/expo/issues/49053.
    """
    if named != found and is_same_issuer(named, found):
        note("issuer_slash", "names its issuer with a final slash in one place and without it in another; accepted")
    return is_same_issuer(named, found)


def resource_metadata_url(named: str, url: str, note: Note) -> str:
    """The absolute URL of a challenge's `resource_metadata`, relative to the server at `url`.

    Relative, plain http behind a proxy, or unreachable: github.com/agentgateway/agentgateway/issues/545.
    """
    try:
        absolute = urljoin(url, named)
    except ValueError:
        return named
    if absolute != named and "://" not in named:
        note("relative_metadata_url", "names its metadata by a relative URL; resolved")
    return absolute


def retry_after(header: str | None) -> float | None:
    """Seconds that `Retry-After` asks for (RFC 9110, section 10.2.3), an hour at most; None without a number of them.

    github.com/bayesimpact/bayes-platform/pull/710: a limit's answer must cost nobody a login.
    """
    wait = seconds(header, "retry_after")
    return None if wait is None else min(wait, MAX_RETRY_AFTER)


def without_refused(
    scopes: tuple[str, ...], words: str, smaller: Sequence[Collection[str]], note: Note
) -> tuple[str, ...] | None:
    """The scopes to ask for after `scopes` were refused (invalid_scope); None if none were asked for.

    Those that `words`, the refusal, names are left out. If it names none, only those in the first of `smaller` that
    leaves some and drops some are asked for; in the end none, which means the server's default (RFC 6749, section 3.3).
    Cognito lists `phone` for clients that may not ask for it: github.com/openchoreo/openchoreo/issues/3217.
    """
    if not scopes:
        return None
    named = {word.rstrip(".:") for word in _WORD_ENDS.split(words)}
    candidates = [tuple(scope for scope in scopes if scope not in named)]
    candidates += [tuple(scope for scope in scopes if scope in some) for some in smaller]
    left = next((some for some in candidates if some and len(some) < len(scopes)), ())
    note("refused_scope", "lists scopes that its authorization server refuses; asked without them")
    return left
