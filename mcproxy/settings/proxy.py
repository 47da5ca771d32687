"""Settings of the gateway itself (`proxy`): addresses, paths, TLS, limits on peers, timeouts, logging."""

from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from mcproxy.settings.egress import EgressSettings
from mcproxy.settings.embeddings import EmbeddingSettings
from mcproxy.settings.section import Bytes, InvalidKey, Positive, Reload, Seconds, SecondsOrNone, Section, Whole
from mcproxy.settings.tracing import TracingSettings, is_installed


class LimitSettings(Section):
    """Limits on what peers can make grow (`proxy.limits`).

    Callers without authentication count by their address, of IPv6 by its /64; those with a loopback address have no
    limits of their own and share the totals.
    """

    max_body_bytes: Bytes = 16 * 1024 * 1024
    """The largest message that a client may send."""
    max_connections: Positive = 20_000
    """HTTP connections of all clients at once; one more is answered 503 and closed."""
    head_timeout: Seconds = 30
    """Time between the first byte and the end of a request's header block; a later one is answered 408 and closed."""
    max_sessions: Positive = 10_000
    """Handshake sessions at once."""
    max_sessions_per_principal: Positive = 1000
    """Handshake sessions of one caller at once; callers without authentication count by their address."""
    max_credentials_per_principal: Positive = 100
    """Sets of upstream credentials that one caller uses at once."""
    max_streams_per_principal: Positive = 1000
    """Event streams that one caller keeps open at once; all without authentication together, `max_sessions`."""
    max_subscriptions_per_principal: Positive = 10_000
    """Resources that one caller watches at once, in all sessions and streams."""
    max_subscription_bytes_per_principal: Bytes = 4 * 1024 * 1024
    """The same, in bytes of their URIs."""
    session_idle: Seconds = 1800
    """Time after which an unused session ends."""
    session_lifetime: Seconds = 2_592_000
    """Age after which a session id is unknown, however much it is used."""
    max_calls_per_session: Positive = 256
    """Calls of one session at once."""
    max_batch: Annotated[Whole, Field(gt=0, le=1000)] = 100
    """Messages in one JSON-RPC batch (revision 2025-03-26), at most 1000."""
    max_subscriptions_per_session: Positive = 1000
    """Resources that one session may be subscribed to."""
    max_tasks_per_session: Positive = 1000
    """Tasks that one session finds in its list and is notified of; beyond it the oldest are dropped."""
    max_list_pages: Positive = 1000
    """Pages of one list that are fetched from an upstream; further pages are ignored."""
    max_list_entries: Positive = 100_000
    """Entries of one list that are fetched from an upstream; further entries are ignored."""
    replay_events: Positive = 256
    """Events kept per session for a client that resumes with `Last-Event-ID`."""
    replay_bytes: Bytes = 4 * 1024 * 1024
    """Bytes of those events, per session."""
    replay_bytes_per_principal: Bytes = 16 * 1024 * 1024
    """The same, in all sessions of one caller; the session that was sent events longest ago loses its oldest."""
    replay_bytes_total: Bytes = 64 * 1024 * 1024
    """The same, in all sessions."""
    max_queued_messages: Positive = 1024
    """Messages that wait to be written to one client; a response beyond it disconnects the client."""
    max_queued_bytes: Bytes = 64 * 1024 * 1024
    """Bytes of those messages."""
    max_unsent_bytes: Bytes = 256 * 1024 * 1024
    """Bytes of responses that wait on all connections to be taken, and of events that wait behind them; beyond it,
    clients that read slowly are disconnected.
    """
    max_connections_total: Positive = 500
    """Connections to upstreams made for a single session or caller, over all upstreams."""
    max_metric_subjects: Positive = 1000
    """Tools and prompts per upstream with metric series of their own; later ones share the label `other`."""


class CacheLimits(Section):
    """Limits on cached resource reads (`proxy.cache`)."""

    max_bytes: Bytes = 64 * 1024 * 1024
    """Bytes over all upstreams; beyond it the upstream that holds most loses its least recently used entry."""
    max_entry_bytes: Bytes = 1024 * 1024
    """Results larger than this are passed on and not cached."""


class KeptResultLimits(Section):
    """Whole results whose callers were shown a part (`proxy.results`); see `results` of an upstream."""

    max_bytes: Bytes = 64 * 1024 * 1024
    """Bytes over all callers; beyond it the oldest are dropped."""
    max_bytes_per_principal: Bytes = 16 * 1024 * 1024
    """Bytes of one caller; all anonymous callers count as one. A larger result is passed on whole."""
    lifetime: Seconds = 900
    """Time for which each can be read."""


class BridgeSettings(Section):
    """Input that an upstream asks of a client of another protocol revision (`proxy.bridge`)."""

    max_parked: Positive = 1000
    """Calls that wait for their clients' answers at once; one more fails."""
    max_parked_per_principal: Positive = 100
    """Such calls of one caller; callers without authentication count by their address."""
    park_ttl: Seconds = 600
    """Time that a client has to answer; then its call is cancelled."""
    max_rounds: Positive = 8
    """Rounds of input that an upstream may ask for in one call of a handshake client; one more fails the call."""
    max_questions: Positive = 32
    """Unanswered questions of one call at once; one more is refused."""
    max_kept_messages: Positive = 64
    """Progress and log messages kept for a waiting call; beyond it the oldest are dropped."""
    max_kept_bytes: Bytes = 1024 * 1024
    """Bytes of those messages; the last message is kept whatever its size."""
    hold: Seconds = 30
    """Time that a request of a stateless client waits for an operator's approval; then the client is told to retry.

    The official SDKs retry ten times: what approval may take (`access.approvals.timeout`) is to be less than ten times
    that.
    """
    gather: SecondsOrNone = 0.02
    """Time to wait after each question of an upstream for a further one, so that they are asked together."""


class InstructionSettings(Section):
    """The instructions of several servers, joined for one host (`proxy.instructions`)."""

    max_characters: Annotated[Whole, Field(ge=256)] = 2000
    """Characters of them at most: hosts cut at 2048, some at 512.

    Longer ones are cut to a fair share for each server, after a directory of all servers, and are a resource in full.
    """


class Naming(Section):
    """Names and pages in the lists that callers see (`proxy.naming`)."""

    max_name_length: Annotated[Whole, Field(ge=16, le=128)] = 64
    """Longest exposed name; longer ones end in a stable hash. Hosts add prefixes of their own."""
    page_size: Positive = 1000
    """Entries per page of a list."""


class Paths(Section):
    """URL paths of the endpoints (`proxy.paths`)."""

    mcp: str = "/mcp"
    """Streamable HTTP, every revision."""
    sse: str = "/sse"
    """The event stream of revision 2024-11-05 (HTTP+SSE)."""
    messages: str = "/messages"
    """Where clients of revision 2024-11-05 post their messages."""
    servers: str = "/servers"
    """Single upstreams: `/servers/NAME/mcp`."""
    metrics: str = "/metrics"
    """Prometheus metrics."""


class Tls(Section):
    """HTTPS (`proxy.tls`). Files are PEM, relative to the configuration file, and read again when one changes."""

    certificate: str | None = None
    """File with the certificate and its intermediates; the gateway then speaks HTTPS alone."""
    key: str | None = None
    """File with the private key, where the certificate's file does not hold it."""
    minimum_version: Literal["1.2", "1.3"] = "1.2"
    """Oldest TLS version that is accepted."""
    client_ca: str | None = None
    """File with the authorities that sign clients' certificates; see `access.authentication.certificates`."""
    client_certificate: Literal["required", "optional"] = "required"
    """With `client_ca`: whether every connection needs a certificate, health checks included."""

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.certificate is None and (self.key is not None or self.client_ca is not None):
            key = "client_ca" if self.key is None else "key"
            raise InvalidKey("needs a certificate (proxy.tls.certificate)", key)
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


MIN_SECRET_LENGTH: Final = 16
"""Characters of a secret that count: a repeated text counts once."""
MIN_SECRET_VARIETY: Final = 6
"""Different characters of a secret. Of 16 random hexadecimal digits, fewer differ once in ten thousand."""


def _check_secrets(secrets: tuple[str, ...]) -> tuple[str, ...]:
    for index, secret in enumerate(secrets):
        place = (index,) if len(secrets) > 1 else ()
        if len(secret) < MIN_SECRET_LENGTH:
            short = f"is shorter than {MIN_SECRET_LENGTH} characters: make one with `openssl rand -hex 32`"
            raise InvalidKey(short, *place)
        if _repeats_itself(secret):
            raise InvalidKey("repeats itself, and could be guessed: make one with `openssl rand -hex 32`", *place)
    return secrets


def _repeats_itself(secret: str) -> bool:
    repeated = (secret + secret).find(secret, 1)
    return repeated < MIN_SECRET_LENGTH or len(set(secret)) < MIN_SECRET_VARIETY


def _one_or_more(value: object) -> object:
    """A list, where one text stands for a list of it."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else value


_secret_schema: Final = {"type": "string", "minLength": MIN_SECRET_LENGTH}

Secrets = Annotated[
    tuple[str, ...],
    BeforeValidator(_one_or_more),
    AfterValidator(_check_secrets),
    Field(max_length=8),
    WithJsonSchema(
        {"anyOf": [_secret_schema, {"type": "array", "items": _secret_schema, "maxItems": 8}, {"type": "null"}]}
    ),
]
"""One secret or several, as a tuple; empty for none."""


class Proxy(Section):
    """The gateway itself: where it listens, its limits and timeouts (`proxy`)."""

    name: str = "mcproxy"
    """The gateway's name in `serverInfo`."""
    host: Annotated[str, Reload.RESTART] = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[Whole, Field(ge=0, le=65535), Reload.RESTART] = 8000
    """Port to listen on; 0 for any free one."""
    tls: Annotated[Tls, Reload.RESTART] = Tls()
    """HTTPS. Files are PEM, relative to the configuration file, and read again when one changes."""
    egress: EgressSettings = EgressSettings()
    """How everything that the gateway requests leaves it: proxies, and authorities to trust."""
    public_url: Annotated[str, AfterValidator(_check_public)] | None = None
    """URL by which clients reach the gateway through a reverse proxy, such as `https://gw.example/x`.

    The `paths` are below it. It is the audience of tokens (RFC 8707) and the base of OAuth metadata (RFC 9728).
    """
    paths: Annotated[Paths, Reload.RESTART] = Paths()
    """URL paths of the endpoints."""
    allowed_hosts: tuple[str, ...] = ()
    """Values of the Host header accepted beside loopback names and the bound address; `*` for any."""
    allowed_origins: tuple[str, ...] = ()
    """Values of the Origin header accepted beside loopback ones; `*` for any."""
    insecure: bool = False
    """Allow listening on other addresses than loopback without authentication."""
    secret: Secrets = ()
    """Key that signs session ids and cursors, and encrypts request states; long, random, the same on every replica.

    Of several, as in `[new, old]`, the first makes these and each opens them, so that it can be replaced while sessions
    go on. If not set, one is generated and kept in the user's state folder.
    """
    grant_key: Annotated[Literal["secret", "keyring"], Reload.RESTART] = "secret"
    """The key that seals stored logins at upstreams: `secret`, or a key of its own in the system's `keyring`.

    The keyring needs `pip install mcproxy[keyring]`. Replicas, which share their logins, need `secret`.
    """
    limits: LimitSettings = LimitSettings()
    """Limits on what peers can make grow."""
    instructions: InstructionSettings = InstructionSettings()
    """The instructions of several servers, joined for one host."""
    naming: Naming = Naming()
    """Names and pages in the lists that callers see."""
    cache: CacheLimits = CacheLimits()
    """Limits on cached resource reads."""
    results: KeptResultLimits = KeptResultLimits()
    """Whole results whose callers were shown a part."""
    bridge: BridgeSettings = BridgeSettings()
    """Input that an upstream asks of a client of another protocol revision."""
    keep_alive: Seconds = 15
    """Time between comments on an idle event stream."""
    stream_after: Seconds = 5
    """Time after which a POST without a response yet is answered as an event stream."""
    write_timeout: Seconds = 30
    """Time that a client has to accept what is written to it."""
    read_timeout: Seconds = 60
    """Time that a client has to send a whole message."""
    connection_idle: Seconds = 120
    """Time that a client has to send the head of its next request; then the connection is closed."""
    ask_timeout: Seconds = 600
    """Time that a client has to answer sampling, elicitation and roots requests."""
    list_wait: SecondsOrNone = 3
    """Time that a list waits for upstreams that are still making their first connection."""
    list_wait_first: SecondsOrNone = 15
    """Over stdio, the same for the first list of each kind: such a host often asks only once."""
    remember_lists: bool = True
    """Serve the lists of the last run until a server has connected, unless its configuration has changed."""
    grace: SecondsOrNone = 30
    """Time that the entries of a lost upstream stay listed."""
    shutdown_grace: SecondsOrNone = 10
    """Time that running calls have to end when the gateway stops or their upstream is removed."""
    shutdown_delay: SecondsOrNone = 0
    """Time that the gateway still serves, with `/readyz` failing, after it is told to stop."""
    watch: bool = True
    """Reload when the configuration, or a file that it refers to, changes. SIGHUP reloads in any case."""
    strict: bool = False
    """Refuse the whole configuration if one server lacks a variable or a file, or cannot be started as written.

    Otherwise only that server is out of service, and `mcproxy status` says why. `mcproxy check` is always strict.
    """
    log_format: Literal["console", "json", "auto"] = "auto"
    """`auto` is console on a terminal and JSON elsewhere."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged."""
    embeddings: EmbeddingSettings | None = None
    """A service by which `find_tools` also searches by meaning; default: by words alone.

    {url: https://models.example/v1/embeddings, model: small, key: '${EMBEDDINGS_KEY}'}
    """
    tracing: Annotated[TracingSettings, Reload.RESTART] = TracingSettings()
    """Traces of calls (OpenTelemetry)."""

    @field_validator("grant_key")
    @classmethod
    def _keyring_can_be_had(cls, grant_key: str) -> str:
        if grant_key == "keyring" and not is_installed("keyring"):
            raise ValueError("needs a library: pip install 'mcproxy[keyring]'")
        return grant_key
