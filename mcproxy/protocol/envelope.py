"""The envelope of a stateless message: version, client, capabilities and tokens in reserved keys of `_meta` (basic).

Reads it from a request, writes it to the next hop's, and adds and removes what results carry beside their own members.
Refuses a request whose envelope is missing or ill-typed; judges nothing else about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.protocol.caching import SCOPE, TTL, repaired_hints
from mcproxy.protocol.eras import (
    HANDSHAKE_VERSIONS,
    HOP_META,
    META_CLIENT_CAPABILITIES,
    META_CLIENT_INFO,
    META_LOG_LEVEL,
    META_PROGRESS_TOKEN,
    META_SERVER_INFO,
    META_VERSION,
    STATELESS_VERSIONS,
)
from mcproxy.protocol.jsonrpc import (
    INVALID_PARAMS,
    UNSUPPORTED_PROTOCOL_VERSION,
    ErrorObject,
    InvalidObject,
    Params,
    RequestId,
    is_null,
    is_object,
    json_of,
    nonnull,
    object_or_empty,
    parse_id,
    parse_object,
    parse_text,
    raw,
)
from mcproxy.protocol.memo import remember_short
from mcproxy.protocol.methods import LOG_LEVELS

META: Final = "_meta"

SERVED_VERSIONS: Final = (*STATELESS_VERSIONS, *reversed(HANDSHAKE_VERSIONS))
"""All versions that an endpoint serves, newest first: the value of `supported` and `supportedVersions`."""


_TOKEN: Final = json_of(META_PROGRESS_TOKEN)


class Envelope(msgspec.Struct, frozen=True):
    """A client's description of itself and of one request."""

    version: str
    capabilities: Params = msgspec.field(default_factory=dict)
    """ClientCapabilities as declared."""
    info: Raw | None = None
    log_level: str | None = None
    progress_token: RequestId | None = None


class InvalidEnvelope(Exception):
    """A request that the specification says to refuse, and the error to refuse it with."""

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.error = error


def set_apart(params: Params) -> tuple[bytes, RequestId | None]:
    """The `_meta` of a request without its progress token, and that: what else it says is mostly what others said.

    Raises InvalidEnvelope (basic, "_meta").
    """
    meta = bytes(_required(params, META))
    if meta.find(_TOKEN) < 0:
        return meta, None
    members = _parsed(META, meta)
    token = _progress_token(members)
    members.pop(META_PROGRESS_TOKEN, None)
    return json_of(members), token


def read_envelope(data: bytes) -> tuple[Envelope, Raw | None]:
    """The envelope in a `_meta`, and what else is in there. Of the same bytes it is always the same.

    A version that is not served passes here, if the rest is as in ours: see `check_version`. Raises InvalidEnvelope.
    """
    meta = _parsed(META, data)
    version = _version(meta)
    try:
        envelope = Envelope(
            version=version,
            capabilities=nonnull(_object(meta, META_CLIENT_CAPABILITIES)),
            info=_info(meta),
            log_level=_log_level(meta),
            progress_token=_progress_token(meta),
        )
    except InvalidEnvelope:
        # versioning: a client of another version is told which are served, whatever its envelopes have in them.
        check_version(version)
        raise
    kept = {key: value for key, value in meta.items() if key not in HOP_META}
    return envelope, raw(kept) if kept else None


LONGEST_REMEMBERED: Final = 2048
"""Bytes of a `_meta` whose meaning is remembered."""


def says_version(params: Params) -> bool:
    """Whether a message names its own protocol version, as every request has since 2026-07-28 (versioning)."""
    if META not in params:
        return False
    return _names_version(bytes(params[META]))


@remember_short(LONGEST_REMEMBERED)
def _names_version(meta: bytes) -> bool:
    return META_VERSION in object_or_empty(meta)


def check_version(version: str) -> None:
    """Raises InvalidEnvelope unless one of our stateless revisions is requested (versioning)."""
    if version not in STATELESS_VERSIONS:
        data = {"supported": SERVED_VERSIONS, "requested": version}
        raise InvalidEnvelope(ErrorObject(UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version", raw(data)))


def wrap(params: Params, envelope: Envelope) -> Params:
    """`params` for the next hop, with `envelope` in their `_meta`."""
    return put_on(params, written(envelope), envelope.progress_token)


def written(envelope: Envelope) -> bytes:
    """The envelope as a JSON object, without its progress token."""
    members: dict[str, object] = {
        META_VERSION: envelope.version,
        META_CLIENT_CAPABILITIES: envelope.capabilities,
    }
    if envelope.info is not None:
        members[META_CLIENT_INFO] = envelope.info
    if envelope.log_level is not None:
        members[META_LOG_LEVEL] = envelope.log_level
    return json_of(members)


def put_on(params: Params, envelope: bytes, token: RequestId | None) -> Params:
    """`params` with the `written` members in their `_meta`, the rest of it unchanged, and a progress token, if any."""
    if token is not None:
        envelope = b"%b,%b:%b}" % (envelope[:-1], _TOKEN, json_of(token))
    if META in params:
        return with_meta(params, parse_object(envelope))
    return {**params, META: Raw(envelope)}


def with_meta(params: Params, members: Mapping[str, object]) -> Params:
    """`params` with `members` set in their `_meta`, the rest of it as it was."""
    given = params.get(META)
    return {**params, META: raw(members if given is None else {**object_or_empty(given), **members})}


def without_hop_meta(params: Params, meta: Params | None = None) -> Params:
    """`params` without the keys of `_meta` that belong to one hop, and without a `_meta` that is then empty.

    `meta` are the members of `_meta`, where the caller has read them. Else a `_meta` that is no object is left out.
    """
    if META not in params:
        return params
    if meta is None:
        meta = object_or_empty(params[META])
    kept = {key: value for key, value in meta.items() if key not in HOP_META}
    if len(kept) == len(meta) and kept:
        return params
    rest = {key: value for key, value in params.items() if key != META}
    return {**rest, META: raw(kept)} if kept else rest


def server_meta(server: Mapping[str, object]) -> Raw:
    """A `_meta` that only names the server of a result, an Implementation object (basic, "_meta")."""
    return raw({META_SERVER_INFO: server})


def dressed(result: Params, absent: Params, own: Params, *, meta: Raw) -> Params:
    """A result as stateless clients get it: with members of `absent` that it lacks, and those of `own` in any case.

    Its `_meta` says what `meta` does as well. Where `absent` has caching hints, those of `result` are made valid.
    """
    if META in result:
        meta = _joined(bytes(result[META]), bytes(meta))
    if TTL in absent and (TTL in result or SCOPE in result):
        own = {**repaired_hints(result), **own}
    return {**absent, **result, META: meta, **own}


# Most results that have a `_meta` have the same as others.
@remember_short(LONGEST_REMEMBERED)
def _joined(meta: bytes, ours: bytes) -> Raw:
    return raw({**object_or_empty(meta), **parse_object(ours)})


def undressed(result: Params) -> Params:
    """`result` as the handshake eras know it: without its type, its caching and the name of its server.

    One that does not say its type is of those eras already. Structured content that is no object is left out: those
    eras have none (2025-11-25, schema, CallToolResult). Where it is all that the result says, it is said as text.
    """
    structured = result.get(STRUCTURED)
    if structured is not None and not is_object(structured):
        result = {key: value for key, value in result.items() if key != STRUCTURED}
        if not bytes(result.get(CONTENT, b"")).strip(b"[] \t\r\n"):
            # tools, Structured Content: servers "SHOULD also return the serialized JSON in a TextContent block".
            result[CONTENT] = raw([{"type": "text", "text": bytes(structured).decode()}])
    if _TYPE not in result:
        return result
    rest = result.copy()
    for member in _OF_EVERY_RESULT:
        rest.pop(member, None)
    if META not in rest:
        return rest
    meta = object_or_empty(rest.pop(META))
    meta.pop(META_SERVER_INFO, None)
    return {**rest, META: raw(meta)} if meta else rest


def untyped(result: Params) -> Params:
    """Returns `result` of a handshake server without a member that stateless clients would read as its type."""
    if _TYPE not in result:
        return result
    return {key: value for key, value in result.items() if key != _TYPE}


_TYPE: Final = "resultType"
CONTENT: Final = "content"
STRUCTURED: Final = "structuredContent"
_OF_EVERY_RESULT: Final = (_TYPE, TTL, SCOPE)


def _version(meta: Params) -> str:
    version = parse_text(_required(meta, META_VERSION))
    if version is None:
        raise _invalid(f"{META_VERSION} must be a string")
    return version


def _info(meta: Params) -> Raw | None:
    info = _optional(meta, META_CLIENT_INFO)
    if info is not None:
        _parsed(META_CLIENT_INFO, info)
    return info


def _log_level(meta: Params) -> str | None:
    said = _optional(meta, META_LOG_LEVEL)
    if said is None:
        return None
    level = parse_text(said)
    if level not in LOG_LEVELS:
        raise _invalid(f"{META_LOG_LEVEL} must be one of: {', '.join(LOG_LEVELS)}")
    return level


def _progress_token(meta: Params) -> RequestId | None:
    said = _optional(meta, META_PROGRESS_TOKEN)
    if said is None:
        return None
    token = parse_id(said)
    if token is None:
        raise _invalid(f"{META_PROGRESS_TOKEN} must be a string or an integer")
    return token


def _object(members: Params, key: str) -> Params:
    return _parsed(key, _required(members, key))


def _parsed(key: str, data: bytes | Raw) -> Params:
    try:
        return parse_object(data)
    except InvalidObject as error:
        raise _invalid(f"{key} {error.flaw}") from error


def _optional(members: Params, key: str) -> Raw | None:
    """The value; None for null as well."""
    value = members.get(key)
    return None if value is None or is_null(value) else value


def _required(members: Params, key: str) -> Raw:
    if key not in members:
        raise _invalid(f"the request lacks {key}, which every request must carry")
    return members[key]


def _invalid(reason: str) -> InvalidEnvelope:
    return InvalidEnvelope(ErrorObject(INVALID_PARAMS, reason))
