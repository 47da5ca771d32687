"""What the upstream of the benchmark says, as bytes, in both eras. Knows no transport and keeps no state.

Answers any tool, resource and session: it judges nobody, so that it costs next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.protocol.eras import LATEST, META_SUBSCRIPTION, negotiate
from mcproxy.protocol.methods import ACKNOWLEDGED, LISTEN_URIS, PROGRESS, RESOURCE_UPDATED

MARK: Final = "bench:"
"""Every text begins so: by this the load generator knows an answer."""
PAGE_BYTES: Final = 4096
KEPT: Final = "bench://kept/"
"""Resources below it may be kept for an hour, all others not at all."""


class Arguments(msgspec.Struct):
    size: int = 100
    """Bytes of text in the result."""
    steps: int = 0
    """Reports of progress before it."""


class Meta(msgspec.Struct, rename={"token": "progressToken"}):
    token: Raw = Raw()


class Filter(msgspec.Struct, rename={"uris": LISTEN_URIS}):
    uris: list[str] = []


class Params(msgspec.Struct, rename={"meta": "_meta", "version": "protocolVersion"}):
    name: str = ""
    uri: str = ""
    version: str = ""
    arguments: Arguments = msgspec.field(default_factory=Arguments)
    meta: Meta = msgspec.field(default_factory=Meta)
    notifications: Filter = msgspec.field(default_factory=Filter)


class Message(msgspec.Struct):
    method: str = ""
    id: Raw = Raw()
    """Empty for a notification."""
    params: Params = msgspec.field(default_factory=Params)


@dataclass(frozen=True, slots=True)
class Whole:
    """One JSON-RPC response."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Stepwise:
    """Messages of one event stream, the response last."""

    bodies: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Listening:
    """A stream that stays open and tells of these resources."""

    first: bytes
    uris: tuple[str, ...]
    tag: bytes
    """What each notification on it carries in `_meta`."""


@dataclass(frozen=True, slots=True)
class Watching:
    """An answer that also begins, or ends, a subscription of the session."""

    body: bytes
    uri: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class Silence:
    """A notification, or an answer to something: nothing is said to it."""


Reply = Whole | Stepwise | Listening | Watching | Silence

read = msgspec.json.Decoder(Message).decode


def reply(message: Message, tools: int) -> Reply:
    """The answer of a server that lists so many tools."""
    if not message.id or not message.method:
        return Silence()
    id, params = bytes(message.id), message.params
    match message.method:
        case "tools/call" if params.arguments.steps:
            return Stepwise((*_progress(params), response(id, text_result(params.arguments.size))))
        case "tools/call":
            return Whole(response(id, text_result(params.arguments.size)))
        case "resources/read":
            return Whole(response(id, page(params.uri)))
        case "subscriptions/listen":
            return _listening(id, tuple(params.notifications.uris))
        case "resources/subscribe" | "resources/unsubscribe":
            return Watching(response(id, b"{}"), params.uri, message.method == "resources/subscribe")
        case "initialize":
            return Whole(response(id, greeting(params.version)))
        case method:
            return Whole(_listed(id, method, tools))


def response(id: bytes, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id, result)


def updated(uri: str, tag: bytes = b"") -> bytes:
    """A notification that a resource changed; `tag` is the content of its `_meta`."""
    meta = b',"_meta":{%b}' % tag if tag else b""
    return b'{"jsonrpc":"2.0","method":"%b","params":{"uri":%b%b}}' % (
        RESOURCE_UPDATED.encode(),
        msgspec.json.encode(uri),
        meta,
    )


@lru_cache(16)
def text_result(size: int) -> bytes:
    text = MARK + "x" * (size - len(MARK))
    return b'{"resultType":"complete","content":[{"type":"text","text":"%b"}]}' % text.encode()


@lru_cache(1)
def _page_text() -> bytes:
    return (MARK + "y" * (PAGE_BYTES - len(MARK))).encode()


def page(uri: str) -> bytes:
    ttl, scope = (3_600_000, b"public") if uri.startswith(KEPT) else (0, b"private")
    return b'{"resultType":"complete","ttlMs":%d,"cacheScope":"%b","contents":[{"uri":%b,"text":"%b"}]}' % (
        ttl,
        scope,
        msgspec.json.encode(uri),
        _page_text(),
    )


def _progress(params: Params) -> tuple[bytes, ...]:
    token = params.meta.token
    if not token:
        return ()
    return tuple(
        b'{"jsonrpc":"2.0","method":"%b","params":{"progressToken":%b,"progress":%d}}'
        % (PROGRESS.encode(), bytes(token), step)
        for step in range(1, params.arguments.steps + 1)
    )


def _listening(id: bytes, uris: tuple[str, ...]) -> Listening:
    tag = b'"%b":%b' % (META_SUBSCRIPTION.encode(), id)
    agreed = msgspec.json.encode({LISTEN_URIS: uris})
    first = b'{"jsonrpc":"2.0","method":"%b","params":{"notifications":%b,"_meta":{%b}}}' % (
        ACKNOWLEDGED.encode(),
        agreed,
        tag,
    )
    return Listening(first, uris, tag)


_CAPABILITIES: Final = b'{"tools":{},"resources":{"subscribe":true}}'
_INFO: Final = b'{"name":"bench","version":"1"}'


def greeting(version: str) -> bytes:
    return b'{"protocolVersion":"%b","capabilities":%b,"serverInfo":%b}' % (
        negotiate(version).encode(),
        _CAPABILITIES,
        _INFO,
    )


_DISCOVERED: Final = (
    b'{"resultType":"complete","ttlMs":0,"cacheScope":"public","supportedVersions":["%b"],"capabilities":%b,'
    b'"_meta":{"io.modelcontextprotocol/serverInfo":%b}}' % (LATEST.encode(), _CAPABILITIES, _INFO)
)


VERBS: Final = "create update cancel list approve export archive".split()  # noqa: SIM905  # one line each is longer
THINGS: Final = [
    "invoice",
    "order",
    "ticket",
    "meeting",
    "report",
    "branch",
    "deployment",
    "account",
    "message",
    "holiday",
    "contract",
    "shipment",
    "photo",
    "budget",
    "recipe",
]
PLACES: Final = [
    "a customer",
    "a project",
    "a team",
    "a server",
    "a warehouse",
    "a city",
    "a school",
    "a bank",
    "a shop",
    "a song",
]


@lru_cache(4)
def _tools(count: int) -> bytes:
    names = ["echo", *(f"tool-{number:04}" for number in range(1, count))]
    described = cycle(f"{verb} the {thing} of {where}" for thing in THINGS for verb in VERBS for where in PLACES)
    schema = {"type": "object", "properties": {"size": {"type": "integer", "description": "Bytes of text."}}}
    tools = [
        {"name": name, "description": f"{MARK} {does}, as {name}.", "inputSchema": schema}
        for name, does in zip(names, described, strict=False)
    ]
    return msgspec.json.encode({"resultType": "complete", "ttlMs": 0, "cacheScope": "public", "tools": tools})


def _empty(member: str) -> bytes:
    return b'{"resultType":"complete","ttlMs":0,"cacheScope":"public","%b":[]}' % member.encode()


_FIXED: Final = {
    "ping": b"{}",
    "server/discover": _DISCOVERED,
    "resources/list": _empty("resources"),
    "resources/templates/list": _empty("resourceTemplates"),
    "prompts/list": _empty("prompts"),
}


def _listed(id: bytes, method: str, tools: int) -> bytes:
    if method == "tools/list":
        return response(id, _tools(tools))
    if method in _FIXED:
        return response(id, _FIXED[method])
    return b'{"jsonrpc":"2.0","id":%b,"error":{"code":-32601,"message":"Method not found"}}' % id
