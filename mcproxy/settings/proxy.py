"""What can be said of the gateway's own side: where it listens, what it bounds, and how long it waits."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from mcproxy.settings.section import Bytes, Positive, Seconds, SecondsOrNone, Section
from mcproxy.settings.tracing import TracingSettings


class LimitSettings(Section):
    """What peers can make grow."""

    max_body_bytes: Bytes = 16 * 1024 * 1024
    """The largest message that a client may send."""
    max_connections: Positive = 20_000
    """Connections of clients over HTTP at once; one more is told so, and closed."""
    max_sessions: Positive = 10_000
    """Handshake sessions that live at once."""
    max_sessions_per_principal: Positive = 10_000
    """Of one caller; everybody unauthenticated is one."""
    max_credentials_per_principal: Positive = 100
    """Sets of credentials for upstreams that one caller has in use; everybody unauthenticated is one."""
    max_streams_per_principal: Positive = 10_000
    """Event streams that one caller keeps open to be told of changes; everybody unauthenticated is one."""
    session_idle: Seconds = 1800
    """A session unused for so long ends."""
    session_lifetime: Seconds = 2_592_000
    """A session id older than this is unknown, however much it is used."""
    max_calls_per_session: Positive = 256
    """Calls of one session at once."""
    max_batch: Positive = 100
    """Messages in a JSON-RPC batch (2025-03-26)."""
    max_subscriptions_per_session: Positive = 1000
    """Resources that one session may watch."""
    max_tasks_per_session: Positive = 1000
    """Tasks of which one session is told, and which it finds in its list; the oldest give way."""
    max_list_pages: Positive = 1000
    """Pages of one list that are taken from an upstream; the rest is left."""
    max_list_entries: Positive = 100_000
    """The same, in entries."""
    replay_events: Positive = 256
    """Events kept for `Last-Event-ID`, per session."""
    replay_bytes: Bytes = 4 * 1024 * 1024
    """The same, in bytes."""
    max_queued_messages: Positive = 1024
    """Messages that wait to be written to one client; an answer over it disconnects the client."""
    max_queued_bytes: Bytes = 64 * 1024 * 1024
    """The same, in bytes."""
    max_connections_total: Positive = 500
    """Links that are a session's or a caller's own, of all upstreams together."""
    max_metric_subjects: Positive = 1000
    """Tools and prompts of one upstream that have metrics of their own; those called later are `other`, together."""


class CacheLimits(Section):
    """What cached reads may take."""

    max_bytes: Bytes = 64 * 1024 * 1024
    """All upstreams together; the least used entry of the one that holds most gives way."""
    max_entry_bytes: Bytes = 1024 * 1024
    """A larger result is passed on, and not kept."""


class BridgeSettings(Section):
    """Calls of stateless clients that wait upstream for input, and input that is asked for in rounds."""

    max_parked: Positive = 1000
    """Calls that wait for their clients at once; one more fails."""
    max_parked_per_principal: Positive = 100
    """Of one caller; everybody unauthenticated is one."""
    park_ttl: Seconds = 600
    """For a client to come back with its answers; then the call is cancelled."""
    max_rounds: Positive = 8
    """How often an upstream may need more input before one call for a client of an older revision fails."""
    max_questions: Positive = 32
    """Of one call, unanswered at once; one more is refused."""
    max_kept_messages: Positive = 64
    """Progress and log messages of a call that are kept while it waits; the oldest give way."""
    max_kept_bytes: Bytes = 1024 * 1024
    """The same, in bytes; the last is kept in any case."""
    gather: SecondsOrNone = 0.02
    """How long more questions of an upstream are waited for, to be asked together."""


class Naming(Section):
    max_name_length: Annotated[int, Field(ge=16, le=128)] = 64
    """Hosts add prefixes of their own; longer names end in a stable hash."""
    page_size: Positive = 1000
    """Entries a page in the lists that clients get."""


class Paths(Section):
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


class Tls(Section):
    """HTTPS. Files are PEM, relative to the configuration file, and read again when one of them changes."""

    certificate: str | None = None
    """The certificate, and those that lead to its authority. Where it is given, the gateway speaks HTTPS alone."""
    key: str | None = None
    """The private key, where the certificate's file does not hold it."""
    minimum_version: Literal["1.2", "1.3"] = "1.2"
    """The oldest TLS that is spoken."""
    client_ca: str | None = None
    """Whose signatures make clients' certificates good; see `access.authentication.certificates`."""
    client_certificate: Literal["required", "optional"] = "required"
    """With `client_ca`: whether nobody connects without one, health checks included."""

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Tls:
        if self.certificate is None and (self.key is not None or self.client_ca is not None):
            raise ValueError("needs a certificate")
        return self


def _check_public(url: str) -> str:
    try:
        parts = urlsplit(url)
        complete = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        complete = False
    if not complete or "@" in parts.netloc:
        raise ValueError("should be an http or https URL of a host")
    if parts.query or parts.fragment:
        raise ValueError("should have neither query nor fragment")
    return url.rstrip("/")


class Proxy(Section):
    """The gateway's own side."""

    name: str = "mcproxy"
    """What the gateway calls itself to clients."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """The port to listen on; 0 for any free one."""
    tls: Tls = Tls()
    """HTTPS."""
    public_url: Annotated[str, AfterValidator(_check_public)] | None = None
    """What clients reach the gateway by, where a proxy is in front: what `paths` are below, as https://a.example/x.

    It is what tokens are for (RFC 8707), and where clients are sent for metadata (RFC 9728).
    """
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
    limits: LimitSettings = LimitSettings()
    """Bounds on what peers can make grow."""
    naming: Naming = Naming()
    """What callers see upstreams' entries as."""
    cache: CacheLimits = CacheLimits()
    """What cached reads of resources may take."""
    bridge: BridgeSettings = BridgeSettings()
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
    """How long calls in flight may take to end once the gateway is told to stop, or their upstream is taken out."""
    shutdown_delay: SecondsOrNone = 0
    """How long the gateway still serves, while `/readyz` says no more, once it is told to stop."""
    watch: bool = True
    """Reload when the configuration changes, or a file that it reads; a SIGHUP does so in any case."""
    log_format: Literal["console", "json", "auto"] = "auto"
    """`auto` is console on a terminal, JSON elsewhere."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe level that is logged."""
    tracing: TracingSettings = TracingSettings()
    """Traces of calls."""
