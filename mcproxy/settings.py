"""The settings as a frozen, validated tree: what a configuration file can say. Reads no file itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0)]
Glob = str
Prefix = Annotated[str, Field(pattern=r"^([a-z][a-z0-9-]*)?$", max_length=32)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Filter(_Settings):
    """Which of an upstream's entries are shown, by globs on the upstream's own names. Exclude wins."""

    include: tuple[Glob, ...] = ("*",)
    exclude: tuple[Glob, ...] = ()


class ToolOverride(_Settings):
    """What a tool is called instead, to hosts and to models."""

    name: str | None = None
    title: str | None = None
    description: str | None = None


class ToolFilter(Filter):
    overrides: dict[str, ToolOverride] = Field(default_factory=dict)


class UpstreamTimeouts(_Settings):
    """In seconds."""

    connect: Seconds = 30
    """From starting to a finished handshake."""
    list: Seconds = 30
    """For each page of a list."""
    idle: Seconds = 60
    """For a call without a sign of life; progress renews it."""
    total: Seconds = 3600
    """For a call, whatever its progress."""
    shutdown: Seconds = 3
    """Between closing a child's stdin, SIGTERM and SIGKILL, each."""


class Upstream(_Settings):
    """One server behind the gateway: `command` (a child over stdio) or `url` (HTTP)."""

    name: str
    type: Literal["auto", "stdio", "http", "sse"] = "auto"
    """`http` is Streamable HTTP. `auto`: stdio for a command; for a URL found out by the specification's rules."""
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    prefix: Prefix
    """Exposed tools are `{prefix}__{name}`; the empty prefix passes one upstream through bare."""
    enabled: bool = True
    required: bool = False
    """`/readyz` waits for it."""
    connection: Literal["shared", "session"] = "shared"
    max_connections: Annotated[int, Field(gt=0)] = 100
    """With `connection: session`: how many may live at once."""
    era: Literal["auto", "modern", "legacy"] = "auto"
    timeouts: UpstreamTimeouts = UpstreamTimeouts()
    max_in_flight: Annotated[int, Field(gt=0)] = 256
    """Calls at once; one more is answered `busy`."""
    max_message_bytes: Annotated[int, Field(gt=0)] = 64 * 1024 * 1024
    """The largest message this upstream may send; a larger one fails this upstream alone."""
    tools: ToolFilter = ToolFilter()
    resources: Filter = Filter()
    prompts: Filter = Filter()
    roots: tuple[str, ...] = ()
    """URIs announced where the upstream asks for roots outside of any call."""


class Limits(_Settings):
    """What peers can make grow."""

    max_body_bytes: Annotated[int, Field(gt=0)] = 16 * 1024 * 1024
    max_sessions: Annotated[int, Field(gt=0)] = 10_000
    max_sessions_per_principal: Annotated[int, Field(gt=0)] = 10_000
    session_idle: Seconds = 1800
    max_calls_per_session: Annotated[int, Field(gt=0)] = 256
    max_batch: Annotated[int, Field(gt=0)] = 100
    max_subscriptions_per_session: Annotated[int, Field(gt=0)] = 1000
    replay_events: Annotated[int, Field(gt=0)] = 256
    """Events kept for `Last-Event-ID`, per session."""
    replay_bytes: Annotated[int, Field(gt=0)] = 4 * 1024 * 1024
    max_connections_total: Annotated[int, Field(gt=0)] = 500
    """Links of `connection: session` upstreams, all together."""


class Naming(_Settings):
    max_name_length: Annotated[int, Field(ge=16, le=128)] = 64
    """Hosts add prefixes of their own; longer names end in a stable hash."""
    page_size: Annotated[int, Field(gt=0)] = 1000
    """Entries a page in the lists that clients get."""


class Paths(_Settings):
    mcp: str = "/mcp"
    sse: str = "/sse"
    messages: str = "/messages"
    servers: str = "/servers"
    metrics: str = "/metrics"


class Proxy(_Settings):
    """The gateway's own side."""

    name: str = "mcproxy"
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    paths: Paths = Paths()
    allowed_hosts: tuple[str, ...] = ()
    """Host headers accepted beside loopback names and the bound address; `*` for any."""
    allowed_origins: tuple[str, ...] = ()
    """Origins accepted beside loopback ones; `*` for any."""
    insecure: bool = False
    """Allows binding elsewhere than to loopback without authentication."""
    secret: str | None = None
    """Seals session ids; the same on every replica. Made and kept in the user's state folder where not given."""
    limits: Limits = Limits()
    naming: Naming = Naming()
    keep_alive: Seconds = 15
    """Between comments on an idle event stream."""
    stream_after: Seconds = 5
    """A POST without an answer for so long is answered as an event stream."""
    write_timeout: Seconds = 30
    """For a client to take what is written to it."""
    ask_timeout: Seconds = 600
    """For a client to answer sampling, elicitation and roots."""
    list_wait: Annotated[float, Field(ge=0)] = 3
    """How long a list waits for upstreams that still make their first attempt to connect."""
    grace: Annotated[float, Field(ge=0)] = 30
    """How long what a lost upstream offered stays listed."""
    shutdown_grace: Annotated[float, Field(ge=0)] = 10
    log_format: Literal["console", "json", "auto"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class Settings(_Settings):
    proxy: Proxy = Proxy()
    upstreams: tuple[Upstream, ...] = ()
