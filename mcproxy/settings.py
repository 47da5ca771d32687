"""The settings as a frozen, validated tree: what a configuration file can say. Reads no file itself."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

_UNITS: Final[dict[str, dict[str, float]]] = {
    "seconds": {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400},
    "bytes": {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9},
}


def parse_quantity(value: object, measure: Literal["seconds", "bytes"]) -> object:
    """`"5m"` as 300 seconds, `"16MiB"` as bytes; what is no text is passed on. Raises ValueError."""
    if not isinstance(value, str):
        return value
    units = _UNITS[measure]
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value, re.ASCII)
    if match is None or (match[2] and match[2] not in units):
        example = '"30s" or "5m"' if measure == "seconds" else '"16MiB"'
        raise ValueError(f"should be a number of {measure}, or a text such as {example}; units: {', '.join(units)}")
    number = float(match[1]) * units.get(match[2], 1)
    return int(number) if number.is_integer() else number


def _seconds(value: object) -> object:
    return parse_quantity(value, "seconds")


def _bytes(value: object) -> object:
    return parse_quantity(value, "bytes")


Seconds = Annotated[
    float,
    BeforeValidator(_seconds),
    Field(gt=0),
    WithJsonSchema({"type": ["number", "string"], "exclusiveMinimum": 0, "examples": [30, "30s", "5m"]}),
]
SecondsOrNone = Annotated[
    float,
    BeforeValidator(_seconds),
    Field(ge=0),
    WithJsonSchema({"type": ["number", "string"], "minimum": 0, "examples": [0, 30, "30s"]}),
]
Bytes = Annotated[
    int,
    BeforeValidator(_bytes),
    Field(gt=0),
    WithJsonSchema({"type": ["integer", "string"], "exclusiveMinimum": 0, "examples": [65536, "16MiB"]}),
]
Count = Annotated[int, Field(gt=0)]
Glob = str
Prefix = Annotated[str, Field(pattern=r"^([a-z][a-z0-9-]*)?$", max_length=32)]


class _Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class Filter(_Settings):
    """Which of an upstream's entries are shown, by globs on the upstream's own names. Exclude wins."""

    include: tuple[Glob, ...] = ("*",)
    """Globs of what is shown."""
    exclude: tuple[Glob, ...] = ()
    """Globs of what is not."""


class ToolOverride(_Settings):
    """What a tool is called instead, to hosts and to models."""

    name: str | None = None
    """The name that callers see, after the prefix."""
    title: str | None = None
    """The title that people see."""
    description: str | None = None
    """The description that models see."""


class ToolFilter(Filter):
    overrides: dict[str, ToolOverride] = Field(default_factory=dict)
    """By the upstream's own name of the tool."""


class UpstreamTimeouts(_Settings):
    """In seconds."""

    connect: Seconds = 30
    """From starting to a finished handshake."""
    probe: Seconds = 5
    """For the answer that tells its era, before it is taken for an older one; see `era`."""
    list: Seconds = 30
    """For each page of a list."""
    idle: Seconds = 60
    """For a call without a sign of life; progress renews it."""
    total: Seconds = 3600
    """For a call, whatever its progress."""
    shutdown: Seconds = 3
    """Between closing a child's stdin, SIGTERM and SIGKILL, each."""


class UpstreamCache(_Settings):
    """How long reads of an upstream's resources are kept; what the upstream itself says of a result goes first."""

    ttl: dict[Glob, SecondsOrNone] = Field(default_factory=dict)
    """By globs on the upstream's own URIs, where the upstream gives no `ttlMs`; the first that matches counts."""
    shared: bool = False
    """This upstream answers everybody alike, so that callers may share what it marks private."""
    coherent: bool = False
    """Watch what is cached, and keep it until the upstream says that it changed, whatever its TTL.

    Only for an upstream that announces every change.
    """
    max_watched: Count = 1000
    """With `coherent`: how many resources are watched at once; the least used gives way."""
    stale_if_error: SecondsOrNone = 0
    """How long after its time an entry is still served, marked, while the upstream cannot be reached."""
    invalidate_on_tool_calls: bool = False
    """Forget everything of this upstream after each call of a tool that is not annotated `readOnlyHint`."""
    max_bytes: Bytes = 16 * 1024 * 1024
    """What entries of this upstream may take; the least used give way."""


class Upstream(_Settings):
    """One server behind the gateway: `command` (a child over stdio) or `url` (HTTP)."""

    name: str
    """The key in `mcpServers`: any text."""
    type: Literal["auto", "stdio", "http", "sse"] = "auto"
    """`http` is Streamable HTTP. `auto`: stdio for a command; for a URL found out by the specification's rules."""
    command: str | None = None
    """The program of a child that speaks over stdio; no shell reads it."""
    args: tuple[str, ...] = ()
    """The arguments of `command`."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables for the child, beside those that the gateway passes on."""
    cwd: str | None = None
    """The child's working folder, relative to the configuration file."""
    url: str | None = None
    """The endpoint of a server over HTTP."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers sent with every request to `url`."""
    prefix: Prefix
    """Exposed tools are `{prefix}__{name}`; the empty prefix passes one upstream through bare."""
    enabled: bool = True
    """A disabled upstream is checked, and not connected."""
    required: bool = False
    """`/readyz` waits for it."""
    connection: Literal["shared", "session"] = "shared"
    """One connection for everybody, or one for each client session."""
    max_connections: Count = 100
    """With `connection: session`: how many may live at once."""
    era: Literal["auto", "modern", "legacy"] = "auto"
    """Which generation of the protocol to speak: `modern` is 2026-07-28, `legacy` all with a handshake."""
    timeouts: UpstreamTimeouts = UpstreamTimeouts()
    """How long this upstream may take."""
    list_poll: SecondsOrNone = 0
    """How often its lists are fetched to see if they changed, where it does not say so itself; 0 for never."""
    max_in_flight: Count = 256
    """Calls at once; one more is answered `busy`."""
    max_message_bytes: Bytes = 64 * 1024 * 1024
    """The largest message this upstream may send; a larger one fails this upstream alone."""
    tools: ToolFilter = ToolFilter()
    """Which tools are shown, and how they are called."""
    resources: Filter = Filter()
    """Which resources and templates are shown, by URI."""
    prompts: Filter = Filter()
    """Which prompts are shown."""
    roots: tuple[str, ...] = ()
    """URIs announced where the upstream asks for roots outside of any call."""
    cache: UpstreamCache = UpstreamCache()
    """How long reads of its resources are kept."""


class Limits(_Settings):
    """What peers can make grow."""

    max_body_bytes: Bytes = 16 * 1024 * 1024
    """The largest message that a client may send."""
    max_sessions: Count = 10_000
    """Handshake sessions that live at once."""
    max_sessions_per_principal: Count = 10_000
    """Of one caller; everybody unauthenticated is one."""
    session_idle: Seconds = 1800
    """A session unused for so long ends."""
    session_lifetime: Seconds = 2_592_000
    """A session id older than this is unknown, however much it is used."""
    max_calls_per_session: Count = 256
    """Calls of one session at once."""
    max_batch: Count = 100
    """Messages in a JSON-RPC batch (2025-03-26)."""
    max_subscriptions_per_session: Count = 1000
    """Resources that one session may watch."""
    max_list_pages: Count = 1000
    """Pages of one list that are taken from an upstream; the rest is left."""
    max_list_entries: Count = 100_000
    """The same, in entries."""
    replay_events: Count = 256
    """Events kept for `Last-Event-ID`, per session."""
    replay_bytes: Bytes = 4 * 1024 * 1024
    """The same, in bytes."""
    max_queued_messages: Count = 1024
    """Messages that wait to be written to one client; an answer over it disconnects the client."""
    max_queued_bytes: Bytes = 64 * 1024 * 1024
    """The same, in bytes."""
    max_connections_total: Count = 500
    """Links of `connection: session` upstreams, all together."""


class CacheLimits(_Settings):
    """What cached reads may take."""

    max_bytes: Bytes = 64 * 1024 * 1024
    """All upstreams together; the least used entry of the one that holds most gives way."""
    max_entry_bytes: Bytes = 1024 * 1024
    """A larger result is passed on, and not kept."""


class Bridge(_Settings):
    """Calls of stateless clients that wait upstream for input, and input that is asked for in rounds."""

    max_parked: Count = 1000
    """Calls that wait for their clients at once; one more fails."""
    max_parked_per_principal: Count = 100
    """Of one caller; everybody unauthenticated is one."""
    park_ttl: Seconds = 600
    """For a client to come back with its answers; then the call is cancelled."""
    max_rounds: Count = 8
    """How often an upstream may need more input before one call for a client of an older revision fails."""
    max_questions: Count = 32
    """Of one call, unanswered at once; one more is refused."""
    max_kept_messages: Count = 64
    """Progress and log messages of a call that are kept while it waits; the oldest give way."""
    max_kept_bytes: Bytes = 1024 * 1024
    """The same, in bytes; the last is kept in any case."""
    gather: SecondsOrNone = 0.02
    """How long more questions of an upstream are waited for, to be asked together."""


class Naming(_Settings):
    max_name_length: Annotated[int, Field(ge=16, le=128)] = 64
    """Hosts add prefixes of their own; longer names end in a stable hash."""
    page_size: Count = 1000
    """Entries a page in the lists that clients get."""


class Paths(_Settings):
    mcp: str = "/mcp"
    """Streamable HTTP, every revision."""
    sse: str = "/sse"
    """The event stream of 2024-11-05."""
    messages: str = "/messages"
    """Where clients of 2024-11-05 post."""
    servers: str = "/servers"
    """`/servers/NAME/mcp` is one upstream alone."""
    metrics: str = "/metrics"
    """Prometheus metrics."""


class Proxy(_Settings):
    """The gateway's own side."""

    name: str = "mcproxy"
    """What the gateway calls itself to clients."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """The port to listen on; 0 for any free one."""
    paths: Paths = Paths()
    """Where each endpoint is."""
    allowed_hosts: tuple[str, ...] = ()
    """Host headers accepted beside loopback names and the bound address; `*` for any."""
    allowed_origins: tuple[str, ...] = ()
    """Origins accepted beside loopback ones; `*` for any."""
    insecure: bool = False
    """Allows binding elsewhere than to loopback without authentication."""
    secret: Annotated[str, Field(min_length=16)] | None = None
    """Seals what clients carry for us: session ids, cursors, request states. The same on every replica, and random.

    Made and kept in the user's state folder where not given.
    """
    limits: Limits = Limits()
    """Bounds on what peers can make grow."""
    naming: Naming = Naming()
    """What callers see upstreams' entries as."""
    cache: CacheLimits = CacheLimits()
    """What cached reads of resources may take."""
    bridge: Bridge = Bridge()
    """Input that upstreams ask for, between the revisions of the protocol."""
    keep_alive: Seconds = 15
    """Between comments on an idle event stream."""
    stream_after: Seconds = 5
    """A POST without an answer for so long is answered as an event stream."""
    write_timeout: Seconds = 30
    """For a client to take what is written to it."""
    read_timeout: Seconds = 60
    """For a client to send the whole of a message."""
    connection_idle: Seconds = 120
    """For a client to send the head of a request; a connection without one is closed."""
    ask_timeout: Seconds = 600
    """For a client to answer sampling, elicitation and roots."""
    list_wait: SecondsOrNone = 3
    """How long a list waits for upstreams that still make their first attempt to connect."""
    grace: SecondsOrNone = 30
    """How long what a lost upstream offered stays listed."""
    shutdown_grace: SecondsOrNone = 10
    """How long calls in flight may take to end once the gateway is told to stop."""
    log_format: Literal["console", "json", "auto"] = "auto"
    """`auto` is console on a terminal, JSON elsewhere."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe level that is logged."""


class Settings(_Settings):
    proxy: Proxy = Proxy()
    """The gateway's own side."""
    upstreams: tuple[Upstream, ...] = ()
    """Everything behind the gateway, in the order of the file."""
