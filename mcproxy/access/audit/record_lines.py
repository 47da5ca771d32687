"""Audit records as lines of JSON: of a call, refused credentials, a login at an upstream or what an operator did.

Writes no file. A line holds no secret (requirement R44): arguments are hashed, or shown without values whose name or
form is that of a secret; URIs lose their user and the values of their query. A line is ASCII, and no text of a peer can
begin a new line.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from mcproxy.access.audit.grant_records import GrantRecord
from mcproxy.access.audit.operator_records import OperatorRecord
from mcproxy.access.audit.records import REMEMBERED, Record
from mcproxy.access.refusals import RefusedCredentials
from mcproxy.call.calls import Decision, HookVerdict
from mcproxy.protocol.jsonrpc import RequestId, parse_text
from mcproxy.settings.secret_values import names_secret
from mcproxy.telemetry.logs import REDACTED, encodable, masking

if TYPE_CHECKING:
    import re2

AuditRecord = Record | RefusedCredentials | GrantRecord | OperatorRecord
Clean = Callable[[str], str]

MAX_TEXT: Final = 256
"""Characters of a peer's text that are kept; a longer one is cut."""
MAX_READ: Final = 4096
"""Characters of a peer's text that are searched."""

_LOOKS: Final = (
    r"(?is)(?:Bearer|Basic)\s+[\w.~+/=-]+"
    r"|eyJ[\w-]+\.[\w-]+(?:\.[\w-]*)*"
    r"|(?:gh[pousr]|github_pat|glpat|sk|pk|rk|xox[abprs]|mcp\w*|hf|npm)[-_][\w-]{16,}"
    r"|A(?:KI|SI)A[0-9A-Z]{16}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END|$)"
)
"""Patterns of tokens and keys, wherever they stand in a text."""

_HIDDEN: Final = (
    (r"://[^/?#\s@]*@", f"://{REDACTED}@"),
    (r"([?&;])([^=&;#?\s]+)=[^&;#\s]+", rf"\1\2={REDACTED}"),
    (_LOOKS, REDACTED),
)
"""Patterns of what no line shows: the user of a URI, the values of its query, secrets; and what stands in its place."""

REFUSED: Final = "credentials refused"
"""The `event` of a record of refused credentials."""
OAUTH: Final = "oauth"
"""The prefix of the `event` of a record of a login at an upstream."""

OPERATOR: Final = "operator"
"""The prefix of the `event` of a record of an operator's action."""

_FRACTIONS: Final = tuple(f".{thousandth:03}+00:00" for thousandth in range(1000))
"""The fraction of a formatted time, by its milliseconds."""

_encoder = msgspec.json.Encoder()


def cleaning(secrets: Iterable[str]) -> Clean:
    """A function that redacts `secrets`, and what looks like one, and shortens the text. Remembers recent texts."""
    mask = masking(secrets)

    @lru_cache(REMEMBERED)
    def clean(text: str) -> str:
        whole = encodable(text)
        cleaned = mask(whole)
        for pattern, mark in _hidden():
            cleaned = pattern.sub(mark, cleaned)
        text = text if cleaned == whole else cleaned
        return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."

    return lambda text: clean(text[:MAX_READ])


@cache
def _hidden() -> tuple[tuple[re2._Regexp, str], ...]:
    """Compiled for the first line: RE2 takes time linear in the text, which callers choose, and 2 MiB."""
    import re2

    return tuple((re2.compile(pattern), mark) for pattern, mark in _HIDDEN)


class _Own(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The members of one record's line that it shares with no other; None is left out."""

    time: str
    trace: str
    id: RequestId | None = None
    outcome: str
    code: int | None = None
    ms: float
    upstream_ms: float
    bytes_in: int
    bytes_out: int
    via: str | None = None
    arguments_hash: str | None = None
    arguments: object = None
    hooks: list[str] | None = None


class _Who(msgspec.Struct, omit_defaults=True, kw_only=True):
    principal: str
    roles: list[str] | None = None
    session: str | None = None
    client: str | None = None
    version: str
    endpoint: str | None = None


class _What(msgspec.Struct, omit_defaults=True):
    method: str
    upstream: str | None = None
    subject: str | None = None
    tool: str | None = None
    """Of a task: the tool whose call became it."""
    allowed: bool | None = None
    rule: str | None = None


class _Refused(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The line of refused credentials."""

    time: str
    event: str
    reason: str
    why: str
    peer: str | None = None
    unwritten: int = 0
    """Refusals for the same reason since the last one that was written."""


class _OfGrant(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The line of an action on a grant."""

    time: str
    event: str
    outcome: str
    upstream: str
    principal: str | None = None
    issuer: str
    subject: str | None = None
    why: str | None = None


class _OfOperator(msgspec.Struct, kw_only=True):
    """The line of an operator's action."""

    time: str
    event: str
    principal: str
    subject: str


class Lines:
    """Encodes records as lines. What many records have in common, caller and subject, is encoded once and remembered.

    `redact` are globs of names of arguments.
    """

    def __init__(self, secrets: Iterable[str], redact: Collection[str] = ()) -> None:
        self._clean = cleaning(secrets)
        self._hides = _hiding(redact)
        self._who = lru_cache(REMEMBERED)(self._of_caller)
        self._what = lru_cache(REMEMBERED)(self._of_subject)

    def line(self, record: AuditRecord) -> bytes:
        """The line of a record, with its line end."""
        match record:
            case Record():
                return self._of_call(record)
            case RefusedCredentials():
                return b"{%b}\n" % _members(self._of_refusal(record))
            case GrantRecord():
                return b"{%b}\n" % _members(self._of_grant(record))
            case OperatorRecord():
                return b"{%b}\n" % _members(self._of_operator(record))

    def _of_call(self, record: Record) -> bytes:
        caller, seen, id = record.caller, record.seen, record.id
        own = _Own(
            time=_moment(record.at),
            trace=record.trace,
            id=self._clean(id) if isinstance(id, str) else id,
            outcome=record.outcome,
            code=record.code,
            ms=round(record.seconds * 1_000_000) / 1000,
            upstream_ms=round(record.upstream_seconds * 1_000_000) / 1000,
            bytes_in=record.size_in,
            bytes_out=record.size_out,
            via=record.via,
            arguments_hash=record.arguments_hash,
            arguments=None if record.arguments is None else _shown(record.arguments, self._clean, self._hides),
            hooks=self._said_by_hooks(record.verdicts) if record.verdicts else None,
        )
        principal, client = caller.principal, b"" if caller.info is None else bytes(caller.info)
        # Remembered texts are limited in bytes too, as a peer's text is cut before.
        who = self._who if len(client) <= MAX_READ else self._of_caller
        return b"{%b,%b,%b}\n" % (
            _members(own),
            who(principal.name, principal.roles, record.session, client, caller.version[:MAX_READ], caller.endpoint),
            self._what(
                record.method[:MAX_READ], seen.upstream, seen.own[:MAX_READ], seen.tool[:MAX_READ], seen.decision
            ),
        )

    def _said_by_hooks(self, verdicts: Iterable[HookVerdict]) -> list[str]:
        return [self._clean(_said_by_hook(verdict)) for verdict in verdicts]

    def _of_refusal(self, refused: RefusedCredentials) -> _Refused:
        return _Refused(
            time=_moment(refused.at),
            event=REFUSED,
            reason=refused.reason.value,
            why=self._clean(refused.sentence),
            peer=refused.peer,
            unwritten=refused.unwritten,
        )

    def _of_grant(self, record: GrantRecord) -> _OfGrant:
        return _OfGrant(
            time=_moment(record.at),
            event=f"{OAUTH} {record.action.value}",
            outcome=record.outcome.value,
            upstream=record.upstream,
            principal=self._clean(record.principal) or None,
            issuer=self._clean(record.issuer),
            subject=None if record.subject is None else self._clean(record.subject),
            why=None if record.why is None else self._clean(record.why),
        )

    def _of_operator(self, record: OperatorRecord) -> _OfOperator:
        return _OfOperator(
            time=_moment(record.at),
            event=f"{OPERATOR} {record.action}",
            principal=self._clean(record.principal),
            subject=self._clean(record.subject),
        )

    def _of_caller(
        self, name: str, roles: frozenset[str], session: str | None, client: bytes, version: str, endpoint: str
    ) -> bytes:
        return _members(
            _Who(
                principal=self._clean(name),
                roles=sorted(map(self._clean, roles)) if roles else None,
                session=session,
                client=self._clean(_said(client)) or None,
                version=self._clean(version),
                endpoint=self._clean(endpoint) or None,
            )
        )

    def _of_subject(self, method: str, upstream: str, own: str, tool: str, decision: Decision | None) -> bytes:
        return _members(
            _What(
                method=self._clean(method),
                upstream=upstream or None,
                subject=self._clean(own) or None,
                tool=self._clean(tool) or None,
                allowed=None if decision is None else decision.allowed,
                rule=None if decision is None or decision.rule is None else str(decision.rule),
            )
        )


def _said_by_hook(verdict: HookVerdict) -> str:
    reason = f": {verdict.reason}" if verdict.reason else ""
    return f"{verdict.phase}, {verdict.mode}: {verdict.decision}{reason}"


def _members(part: _Own | _Who | _What | _Refused | _OfGrant | _OfOperator) -> bytes:
    """The members of its JSON, in nothing but what is printed as it is."""
    try:
        data = _encoder.encode(part)
    except UnicodeEncodeError:
        data = None  # half a surrogate pair, which only the slower way can write
    if data is None or not data.isascii():
        data = json.dumps(msgspec.to_builtins(part)).encode()
    return data[1:-1].replace(b"\x7f", b"\\u007f")


def _moment(at: float) -> str:
    seconds = int(at)
    return _second(seconds) + _FRACTIONS[int((at - seconds) * 1000)]


@lru_cache(1)
def _second(at: int) -> str:
    """Remembers one result: most records are of the same second as the one before."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class _Info(msgspec.Struct):
    name: Raw = Raw(b"null")
    version: Raw = Raw(b"null")


_info = msgspec.json.Decoder(_Info)


def _said(info: bytes) -> str:
    """Name and version that a client declares, not verified."""
    try:
        members = _info.decode(info)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    return " ".join(filter(None, (parse_text(members.name), parse_text(members.version))))


def _hiding(redact: Collection[str]) -> Callable[[str], bool]:
    globs = re.compile("|".join(map(fnmatch.translate, redact)) or r"(?!)")
    return lambda name: names_secret(name) or globs.match(name) is not None


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
        pass
    try:
        # A number that is too large stays the text that it is.
        return show(json.loads(bytes(arguments), parse_int=str, parse_float=str))
    except (ValueError, RecursionError):
        return None
