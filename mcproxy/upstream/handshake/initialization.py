"""Initialization of a server of the handshake era: what it is told of us, and what it says that it is.

Implements lifecycle, Initialization (2024-11-05 to 2025-11-25), but for the `notifications/initialized` that ends it.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import Final

from msgspec import Raw

from mcproxy import __version__
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.pending_requests import PeerGone, PendingRequests, RequestTimeout, Send, Timeouts
from mcproxy.protocol.eras import HANDSHAKE_VERSIONS, LATEST_HANDSHAKE, Era
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    NULL,
    ErrorResponse,
    InvalidMessage,
    Params,
    Request,
    RequestId,
    Response,
    is_null,
    parse_object,
    parse_text,
    raw,
)
from mcproxy.protocol.tasks import without_tasks
from mcproxy.upstream.answers import read_capabilities
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.identity import identified
from mcproxy.upstream.leniency import has_parts, may_be_about_versions, next_version, speaks_of_versions
from mcproxy.upstream.link import NotAccepted, Refused, Rejected
from mcproxy.upstream.oddities import Oddities

SHARED_CAPABILITIES: Final[Params] = {
    "roots": Raw(b'{"listChanged":true}'),
    "sampling": Raw(b'{"tools":{},"context":{}}'),
    "elicitation": Raw(b'{"form":{},"url":{}}'),
}
"""All capabilities that the gateway can bridge: some servers offer tools according to these (requirement R61)."""

UNREADABLE: Final = frozenset({400, 406, 409, 415, 422, 426, 500, 501})
"""HTTP statuses with which servers refuse an `initialize` that they cannot read."""
INITIALIZE_ID: Final = 0
INITIALIZE_AGAIN_ID: Final = 2**31 - 1
"""The ids of `initialize`, said once and again: numbers that every server can read. Later ones count down. No
conversation mints any of them, so a late answer is never taken for that of a call."""

_ELICITATION: Final = "elicitation"
_PARTED: Final = frozenset({"sampling", _ELICITATION})


class Initialization:
    """Says `initialize` to one server, and once more, plainer, where it is refused."""

    def __init__(self, context: LinkContext, requests: PendingRequests, send: Send) -> None:
        self._context = context
        self._requests = requests
        self._send = send
        self._introduction: Params | None = None
        """The parameters of the `initialize` that was sent last."""

    async def identity(self) -> ServerIdentity:
        """What the server says that it is. Raises NotAccepted, PeerGone, RequestTimeout, Refused or Rejected."""
        return _identity(await self._shake_hands(), self._context.oddities)

    def is_echo(self, request: Request) -> bool:
        """Whether a request of the server is our own `initialize`, sent back by what repeats all that it reads."""
        return request.params == self._introduction

    async def _shake_hands(self) -> Response:
        """The answer to `initialize`, which is said in other words to a server that refuses it.

        Some refuse what they do not know of our capabilities, as many on the Java SDK do; others every version that
        they do not know, though they should answer with one of theirs (lifecycle, Version Negotiation).
        """
        capabilities, hints = _capabilities(self._context), self._context.hints
        version = hints.version or LATEST_HANDSHAKE
        try:
            return await self._initialize(version, capabilities, INITIALIZE_ID)
        except (Refused, Rejected) as refusal:
            if not _may_be_said_otherwise(refusal):
                raise
            with suppress(NotAccepted, PeerGone, RequestTimeout):
                answer = await self._in_other_words(version, capabilities, refusal)
                if answer is not None:
                    return answer
            raise

    async def _in_other_words(self, version: str, capabilities: Params, refusal: Refused | Rejected) -> Response | None:
        """The answer to `initialize` said more plainly, then with other versions, each at most once."""
        ids, plain, refused = count(INITIALIZE_AGAIN_ID, -1), _plain(capabilities), {version}
        if plain != capabilities and not speaks_of_versions(refusal.said):
            with suppress(Refused, Rejected):
                return await self._initialize(version, plain, next(ids))
        while may_be_about_versions(refusal.said, _code(refusal)):
            another = next_version(refusal.said, refused)
            if another is None:
                return None
            refused.add(another)
            try:
                answer = await self._initialize(another, capabilities if has_parts(another) else plain, next(ids))
            except (Refused, Rejected) as further:
                refusal = further
                continue
            self._context.hints.version = another
            self._context.oddities.note(
                "version_refused", f"refuses versions that it does not know; {another} was accepted"
            )
            return answer
        return None

    async def _initialize(self, version: str, capabilities: Params, id: RequestId) -> Response:
        connect = self._context.spec.timeouts.connect
        self._introduction = {
            "protocolVersion": raw(version),
            "capabilities": raw(capabilities),
            "clientInfo": raw({"name": "mcproxy", "version": __version__}),
        }
        # cancellation: "The initialize request MUST NOT be cancelled by clients"; hence no `send_cancel`.
        answer = await self._requests.exchange(
            "initialize", self._introduction, self._send, Timeouts(connect, connect), id=id
        )
        if isinstance(answer, ErrorResponse):
            error = answer.error
            said = f"{error.message} {bytes(error.data or b'').decode(errors='replace')}"
            raise Refused(f"initialize was refused: {error.message} ({error.code})", said, error.code)
        return answer


def _may_be_said_otherwise(refusal: Refused | Rejected) -> bool:
    """Whether a refusal may be due to how `initialize` was said."""
    return isinstance(refusal, Refused) or refusal.status in UNREADABLE


def _code(refusal: Refused | Rejected) -> int | None:
    """The JSON-RPC code of a refusal; of one that has none, its HTTP status."""
    return refusal.code if isinstance(refusal, Refused) else refusal.status


def _capabilities(context: LinkContext) -> Params:
    if context.session is None:
        return SHARED_CAPABILITIES
    # Tasks that a server requests of its client are not passed on.
    return without_tasks(context.session.capabilities)


def _plain(capabilities: Params) -> Params:
    """The same without the parts of `sampling` and `elicitation`, which have none before 2025-11-25.

    Elicitation without parts is by a form, and left out for a client that opens URLs alone.
    """
    return {
        name: EMPTY_OBJECT if name in _PARTED else said
        for name, said in capabilities.items()
        if name != _ELICITATION or not _is_by_url_alone(said)
    }


def _is_by_url_alone(elicitation: Raw) -> bool:
    try:
        modes = parse_object(elicitation)
    except InvalidMessage:
        return False
    return "url" in modes and "form" not in modes


def _identity(answer: Response, oddities: Oddities) -> ServerIdentity:
    version = parse_text(answer.result.get("protocolVersion", b""))
    if version is None and is_null(answer.result.get("protocolVersion", NULL)):
        oddities.note("protocol_version", f"names no protocol version; {LATEST_HANDSHAKE} is assumed")
        version = LATEST_HANDSHAKE
    if version not in HANDSHAKE_VERSIONS:
        raise Refused(f"it speaks protocol version {version}; known are {', '.join(HANDSHAKE_VERSIONS)}")
    capabilities = read_capabilities(answer.result.get("capabilities"), oddities)
    instructions = parse_text(answer.result.get("instructions", b""))
    return identified(Era.HANDSHAKE, version, capabilities, answer.result.get("serverInfo"), instructions)
