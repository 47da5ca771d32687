"""What the audit says of one call, as one line of ASCII JSON: whatever a peer wrote, it begins no line of its own.

No secret is in it (requirement R44): arguments are hashed, or shown without what has the name or the look of one;
URIs lose their user and the values of their query. Writes nothing itself.
"""

from __future__ import annotations

import fnmatch
import json
import random
import re
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Final, Literal, assert_never

import msgspec
from msgspec import Raw

from mcproxy.access.policy import Decision
from mcproxy.call import Call, Caller, Complete, Failed, InputRequired, Outcome
from mcproxy.logs import MIN_SECRET, REDACTED
from mcproxy.protocol.envelope import META
from mcproxy.protocol.jsonrpc import InvalidMessage, RequestId, parse_object, parse_text, size_of

MAX_TEXT: Final = 256
"""Characters of a text that a peer chose; a longer one is cut."""
MAX_READ: Final = 4096
"""Characters of it that are looked at."""
REMEMBERED: Final = 1024
"""Texts that need not be looked at again: most records name the same callers and tools."""
MAX_SHOWN: Final = 4096
"""Bytes of arguments that are shown; of larger ones there is the hash alone."""

_NAMES: Final = re.compile(
    r"pass(word|wd|phrase|code)|secret|token|api[-_]?key|auth|credential|cookie|session|private|signature|\bpin\b|otp",
    re.IGNORECASE,
)
"""Names of arguments whose values are secrets."""

_LOOKS: Final = re.compile(
    r"(?:Bearer|Basic)\s+[\w.~+/=-]+"
    r"|eyJ[\w-]+\.[\w-]+(?:\.[\w-]*)*"
    r"|(?:gh[pousr]|github_pat|glpat|sk|pk|rk|xox[abprs]|mcp\w*|hf|npm)[-_][\w-]{16,}"
    r"|A(?:KI|SI)A[0-9A-Z]{16}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END|$)",
    re.DOTALL | re.IGNORECASE,
)
"""What looks like a token or a key wherever it stands."""

_USER: Final = re.compile(r"(?<=://)[^/?#\s@]*@")
_QUERY: Final = re.compile(r"(?<=[?&;])([^=&;#\s]{1,200})=[^&;#\s]+")
_TRACE: Final = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")

SESSION: Final = "audit session"
"""What the digest of a session's key is for."""

_encoder = msgspec.json.Encoder()

Clean = Callable[[str], str]
Digest = Callable[[str, bytes], str]
"""A text for a payload and a purpose, which only who has the gateway's key can make."""


class Seen(msgspec.Struct, frozen=True):
    """What a call was about."""

    upstream: str
    subject: str
    """In the upstream's own names."""
    decision: Decision | None
    upstream_seconds: float


class End(msgspec.Struct, frozen=True):
    """How a call went."""

    at: float
    """When it came."""
    seconds: float
    label: str
    outcome: Outcome | None
    """None where it was cancelled."""


class Record(msgspec.Struct, frozen=True):
    """One call that is over. Times are in seconds, sizes in bytes."""

    at: float
    """When it came: a Unix time."""
    trace: str
    id: RequestId | None
    caller: Caller
    session: str | None
    """A digest of the session's key."""
    method: str
    seen: Seen
    outcome: str
    code: int | None
    """Of the error."""
    seconds: float
    size_in: int
    size_out: int
    arguments_hash: str | None = None
    arguments: Raw | None = None


def recorded(
    call: Call, seen: Seen, end: End, arguments: Literal["hash", "redacted", "none"], digest: Digest
) -> Record:
    """What there is to say of a call; `arguments` is how much is told of them."""
    given = call.params.get("arguments") if arguments != "none" else None
    session = call.caller.session
    return Record(
        at=end.at,
        trace=call.notes.trace or trace_id(call.params) or f"{random.getrandbits(128):032x}",  # an id, and no secret
        id=call.id,
        caller=call.caller,
        session=None if session is None else digest(SESSION, session.encode()),
        method=call.method,
        seen=seen,
        outcome=end.label,
        code=end.outcome.error.code if isinstance(end.outcome, Failed) else None,
        seconds=end.seconds,
        size_in=sum(map(len, call.params.values())),
        size_out=0 if end.outcome is None else _size(end.outcome),
        arguments_hash=None if given is None else digest("audit arguments", bytes(given)),
        # Without the copy a short text would keep the whole message that it came in.
        arguments=given.copy() if arguments == "redacted" and given is not None and len(given) <= MAX_SHOWN else None,
    )


def remembering(digest: Digest) -> Digest:
    """`digest`, which remembers those of the latest sessions: each has many calls."""
    known = lru_cache(REMEMBERED)(partial(digest, SESSION))
    return lambda purpose, payload: known(payload) if purpose == SESSION else digest(purpose, payload)


def trace_id(params: dict[str, Raw]) -> str | None:
    """The trace that a call says to belong to (W3C Trace Context, in `_meta` as 2026-07-28 has it)."""
    if META not in params:
        return None
    try:
        parent = parse_text(parse_object(params[META]).get("traceparent", b""))
    except InvalidMessage:
        return None
    match = _TRACE.fullmatch(parent or "")
    return match[1] if match else None


def cleaning(secrets: Iterable[str]) -> Clean:
    """Takes `secrets` out of a text, and what looks like one; and cuts it. Remembers the latest texts."""
    known = sorted({secret for secret in secrets if len(secret) >= MIN_SECRET}, key=len, reverse=True)
    by_value = re.compile("|".join(map(re.escape, known)) or r"(?!)")

    @lru_cache(REMEMBERED)
    def clean(text: str) -> str:
        text = _QUERY.sub(rf"\1={REDACTED}", _USER.sub(f"{REDACTED}@", text))
        text = _LOOKS.sub(REDACTED, by_value.sub(REDACTED, text))
        return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."

    return lambda text: clean(text[:MAX_READ])


class _Line(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What is written of a record: what is None, there is no word of."""

    time: str
    trace: str
    id: RequestId | None = None
    principal: str
    roles: list[str] | None = None
    session: str | None = None
    client: str | None = None
    version: str
    endpoint: str | None = None
    method: str
    upstream: str | None = None
    subject: str | None = None
    allowed: bool | None = None
    rule: str | None = None
    outcome: str
    code: int | None = None
    ms: float
    upstream_ms: float
    bytes_in: int
    bytes_out: int
    arguments_hash: str | None = None
    arguments: object = None


def line(record: Record, clean: Clean, redact: Collection[str] = ()) -> bytes:
    """The record as it is written, its line end included. `redact` are globs of names of arguments."""
    caller, seen = record.caller, record.seen
    roles, decision = caller.principal.roles, seen.decision
    written = _Line(
        time=_moment(record.at),
        trace=record.trace,
        id=clean(record.id) if isinstance(record.id, str) else record.id,
        principal=clean(caller.principal.name),
        roles=sorted(map(clean, roles)) if roles else None,
        session=record.session,
        client=None if caller.info is None else clean(_said(caller.info)) or None,
        version=clean(caller.version),
        endpoint=clean(caller.endpoint) or None,
        method=clean(record.method),
        upstream=seen.upstream or None,
        subject=clean(seen.subject) or None,
        allowed=None if decision is None else decision.allowed,
        rule=None if decision is None or decision.rule is None else str(decision.rule),
        outcome=record.outcome,
        code=record.code,
        ms=_milliseconds(record.seconds),
        upstream_ms=_milliseconds(seen.upstream_seconds),
        bytes_in=record.size_in,
        bytes_out=record.size_out,
        arguments_hash=record.arguments_hash,
        arguments=None if record.arguments is None else _shown(record.arguments, clean, _hidden(redact)),
    )
    return _ascii(written) + b"\n"


def _ascii(written: _Line) -> bytes:
    """JSON that holds nothing but what is printed as it is."""
    try:
        data = _encoder.encode(written)
    except UnicodeEncodeError:
        data = None  # half a surrogate pair, which only the slower way can write
    if data is not None and data.isascii():
        return data.replace(b"\x7f", b"\\u007f")
    return json.dumps(msgspec.to_builtins(written)).replace("\x7f", "\\u007f").encode()


def _milliseconds(seconds: float) -> float:
    """To the microsecond."""
    return round(seconds * 1_000_000) / 1000


def _moment(at: float) -> str:
    seconds = int(at)
    return f"{_second(seconds)}.{int((at - seconds) * 1000):03}+00:00"


@lru_cache(1)
def _second(at: int) -> str:
    """Most records are of the same second as the one before."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _size(outcome: Outcome) -> int:
    match outcome:
        case Complete(result=result) | InputRequired(result=result):
            return size_of(result)
        case Failed(error=error):
            return len(error.message) + len(error.data or b"")
        case _:
            assert_never(outcome)


class _Info(msgspec.Struct):
    name: object = None
    version: object = None


_info = msgspec.json.Decoder(_Info)


def _said(info: Raw) -> str:
    """What a client calls itself: anybody may call itself anything."""
    try:
        members = _info.decode(info)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    return " ".join(text for text in (members.name, members.version) if isinstance(text, str) and text)


def _hidden(redact: Collection[str]) -> Callable[[str], bool]:
    globs = re.compile("|".join(map(fnmatch.translate, redact)) or r"(?!)")
    return lambda name: _NAMES.search(name) is not None or globs.match(name) is not None


def _shown(arguments: Raw, clean: Clean, hides: Callable[[str], bool]) -> object:
    def show(value: object) -> object:
        match value:
            case str():
                return clean(value)
            case dict():
                return {clean(key): REDACTED if hides(key) else show(member) for key, member in value.items()}
            case list():
                return [show(item) for item in value]
            case _:
                return value

    try:
        return show(msgspec.json.decode(arguments))
    except (msgspec.MsgspecError, RecursionError):
        return None
