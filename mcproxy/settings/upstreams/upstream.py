"""Settings of one upstream: a server behind the gateway (an entry of `mcpServers`)."""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from msgspec import structs
from pydantic import Field, JsonValue, PrivateAttr, WithJsonSchema, model_validator
from yarl import URL

from mcproxy.egress.egress import Egress, Endpoint, ProxyChoice, ServerTls, endpoint
from mcproxy.settings.egress import Leaving, ProxyUrl, ServerTlsSettings
from mcproxy.settings.section import (
    Bytes,
    Glob,
    InvalidKey,
    Positive,
    Prefix,
    Reload,
    Seconds,
    SecondsOrNone,
    Section,
    worded,
)
from mcproxy.settings.upstreams.forwarding import CredentialSettings
from mcproxy.settings.upstreams.oauth import OAuthSettings

AnyJson = Annotated[JsonValue, WithJsonSchema({})]


class NameFilter(Section):
    """Which of an upstream's entries are exposed: globs on the upstream's own names; `exclude` wins."""

    include: tuple[Glob, ...] = ("*",)
    """Globs of the entries that are exposed."""
    exclude: tuple[Glob, ...] = ()
    """Globs of the entries that are hidden."""


class ArgumentOverride(Section):
    """What callers are shown of one argument of a tool, and what its upstream gets."""

    value: AnyJson = None
    """The value that the upstream always gets. Callers are not shown the argument, and may not send it.

    Texts may hold `${caller.name}` and `${caller.attributes.NAME}`.
    """
    hide: bool = False
    """Callers are not shown the argument, and may not send it; the upstream gets `default`, or nothing."""
    default: AnyJson = None
    """With `hide`: the value that the upstream gets, as with `value`."""
    rename: Annotated[str, Field(min_length=1)] | None = None
    """The name that callers are shown, and send."""
    description: str | None = None
    """The description that models see."""

    @property
    def is_fixed(self) -> bool:
        """Whether the upstream always gets the same value, apart from the caller's own facts in it."""
        return self.constant is not None

    @property
    def constant(self) -> JsonValue:
        """That value."""
        return self.default if self.hide else self.value

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if self.default is not None and not self.hide:
            raise InvalidKey("is for an argument with `hide: true`", "default")
        if self.value is not None and self.hide:
            raise InvalidKey("and `hide` exclude each other: use `default`, or `value` alone", "value")
        if (self.value is not None or self.hide) and (self.rename or self.description):
            key = "rename" if self.rename else "description"
            raise InvalidKey("has no effect: callers are not shown the argument", key)
        return self


class ResultLimit(Section):
    """How large results of tools may be (`results`)."""

    max_bytes: Bytes | None = None
    """Bytes of a result that callers get whole. Default: no limit.

    Of a larger one, long texts and many blocks are cut to head and tail, and arrays in the structured content to their
    start, as far as the tool's output schema allows. The whole is a resource of the gateway, for its caller alone
    (`proxy.results`).
    """


class ToolOverride(Section):
    """Another name, title or description for a tool, and other arguments."""

    name: str | None = None
    """The name that callers see, after the prefix."""
    title: str | None = None
    """The title that people see."""
    description: str | None = None
    """The description that models see."""
    arguments: dict[str, ArgumentOverride] = Field(default_factory=dict)
    """Arguments that are fixed, hidden, renamed or described anew, by the upstream's own names."""
    results: ResultLimit = ResultLimit()
    """How large its results may be; `max_bytes` here takes precedence over that of the upstream."""


class ToolFilter(NameFilter):
    """Which tools are exposed (`tools` of an upstream)."""

    overrides: dict[str, ToolOverride] = Field(default_factory=dict)
    """Other names, descriptions and arguments, by the upstream's own name of the tool: {search: {name: find,
    title: Find, description: Finds things., arguments: {path: {value: '/srv/${caller.name}'}, verbose: {hide: true,
    default: false}, q: {rename: query, description: What to look for.}}, results: {max_bytes: 8KiB}}}.

    A tool whose `inputSchema` cannot be changed so is not shown, and `mcproxy check --connect` says why.
    """


class UpstreamTimeouts(Section):
    """How long the upstream may take, in seconds."""

    connect: Seconds = 30
    """From starting the connection to a finished handshake."""
    probe: Seconds = 5
    """For the answer that shows the server's era; then it is taken for a handshake server. See `era`."""
    list: Seconds = 30
    """For each page of a list."""
    idle: Seconds = 60
    """For a call without progress; each progress notification starts it anew.

    A child that says nothing at all for as long after such a call, and then does not answer a question in this time, or
    in `connect` if that is longer, hangs, and is started anew.
    """
    total: Seconds = 3600
    """For a call, whatever its progress."""
    shutdown: Seconds = 3
    """Between closing a child's stdin and SIGTERM, and again between SIGTERM and SIGKILL."""


class UpstreamCache(Section):
    """How long reads of the upstream's resources are cached. The upstream's own `ttlMs` takes precedence."""

    ttl: dict[Glob, SecondsOrNone] = Field(default_factory=dict)
    """Time to live by globs on the upstream's URIs, where it gives no `ttlMs`; the first match counts."""
    shared: bool = False
    """The upstream gives every caller the same answers: callers share what it marks private."""
    coherent: bool = False
    """Subscribe to cached resources and keep them until the upstream says that they changed, whatever their TTL.

    Only for an upstream that announces every change.
    """
    max_watched: Positive = 1000
    """With `coherent`: resources subscribed to at once; beyond it the least recently used is dropped."""
    stale_if_error: SecondsOrNone = 0
    """Time after its expiry that an entry is still served, marked stale, while the upstream is unreachable."""
    invalidate_on_tool_calls: bool = False
    """Drop this upstream's entries after each call of a tool that is not annotated `readOnlyHint`."""
    max_bytes: Bytes = 16 * 1024 * 1024
    """Bytes of this upstream's entries; beyond it the least recently used are dropped."""


class Content(Section):
    """What the contents of the upstream's resources may be; others are errors that name the upstream."""

    types: tuple[Glob, ...] = ("*",)
    """Globs of MIME types. Contents without a type are allowed by `*` alone."""
    max_bytes: Bytes | None = None
    """Bytes of the largest content as a client receives it: text as UTF-8, a blob decoded. Default: no limit."""
    check_blobs: bool = True
    """Require blobs to be valid Base64."""


InheritedName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\*?$", max_length=256),
    worded("should be the name of a variable, or its start with a * behind it"),
]


class UpstreamSettings(Leaving):
    """One server behind the gateway: `command` (a child process over stdio) or `url` (HTTP)."""

    name: str
    """The key in `mcpServers`: visible text that does not begin with `/`, and is not `.` or `..`."""
    type: Literal["auto", "stdio", "http", "sse"] = "auto"
    """Transport: `stdio`, `http` (Streamable HTTP) or `sse` (HTTP+SSE).

    `auto` is stdio for a command; for a URL it is determined as the specification describes.
    """
    command: str | None = None
    """Program to start as a child process that speaks over stdio, without arguments; no shell is involved."""
    args: tuple[str, ...] = ()
    """Arguments of `command`, one item each."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables for the child or `headers_command`, beside those that the gateway passes on."""
    inherit: tuple[InheritedName, ...] = ()
    """Further variables of the gateway's environment that the child or `headers_command` gets: names, or prefixes such
    as `AWS_*`.
    """
    cwd: str | None = None
    """Working folder of the child or `headers_command`, relative to the configuration file."""
    url: str | None = None
    """Endpoint of a server over HTTP; `http+unix:///run/x.sock:/mcp` for one that listens on a Unix socket."""
    egress: ProxyUrl | None = None
    """The proxy by which `url` is reached, or `direct`. Default: `proxy.egress`."""
    tls: ServerTlsSettings = ServerTlsSettings()
    """TLS toward `url`: a private authority, a client certificate. Default: the system's authorities."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers sent with every request to `url`."""
    headers_command: tuple[str, ...] = ()
    """A program and its arguments, whose output is further headers for `url`: a JSON object of texts, or lines
    `Name: value`. Run before the first request, and again after a 401; no shell is involved.
    """
    oauth: OAuthSettings | None = None
    """How the gateway gets OAuth tokens for `url`: `oauth: {}` discovers everything; `mcproxy login NAME` logs in."""
    credentials: CredentialSettings = CredentialSettings()
    """Credentials that callers bring for this upstream themselves (HTTP alone)."""
    prefix: Annotated[Prefix, Reload.VIEW]
    """Tools and prompts are exposed as `{prefix}__{name}`; the empty prefix leaves the names of one upstream unchanged.

    Default: made of the server's name, in lower case with `-` for other characters: `my_server` becomes `my-server`.
    """
    enabled: bool = True
    """A disabled upstream is validated and not connected."""
    start: Literal["always", "on_demand"] = "always"
    """When `command` is started: `always` with the gateway; `on_demand` by the first call that needs it.

    Its lists come from `mcproxy.lock` until then. If that has none of it, it is started once to learn them.
    """
    idle_stop: SecondsOrNone = 0
    """Time without a call, task or subscription after which `command` is stopped until a call needs it; 0 for never."""
    placement: Literal["each", "one"] = "each"
    """With `cluster`: whether `command` runs at `each` replica, or at `one`, which serves the others.

    Where that replica ends, another one starts it.
    """
    required: Annotated[bool, Reload.LINK] = False
    """`/readyz` fails until the upstream is connected, or idle (`start`, `idle_stop`)."""
    connection: Literal["shared", "principal", "session"] = "shared"
    """`shared`: one connection for all callers; `principal`: one for each principal; `session`: one for each session.

    A server that asks for input (sampling, elicitation, roots) over stdio needs one of the latter two where several
    principals call it.
    """
    max_connections: Annotated[Positive, Reload.LINK] = 100
    """With `connection: principal` or `session`, or with `credentials`: connections at once."""
    era: Literal["auto", "modern", "legacy"] = "auto"
    """Protocol generation to speak: `modern` is 2026-07-28, `legacy` any revision with a handshake."""
    timeouts: Annotated[UpstreamTimeouts, Reload.LINK] = UpstreamTimeouts()
    """How long this upstream may take."""
    list_poll: Annotated[SecondsOrNone, Reload.CACHE] = 0
    """Interval at which its lists are fetched to detect changes, if it does not announce them.

    With 0 they are fetched anew only when a client asks for them: once their `ttlMs` is over, or a minute without one.
    """
    max_in_flight: Annotated[Positive, Reload.VIEW] = 256
    """Calls at once; one more is answered `busy`."""
    max_in_flight_per_principal: Annotated[Positive | None, Reload.VIEW] = None
    """Calls at once of one caller, or address without authentication. Default: three quarters of `max_in_flight`."""
    max_message_bytes: Bytes = 64 * 1024 * 1024
    """The largest message that this upstream may send; a larger one fails this upstream alone."""
    stderr_lines: Annotated[Positive, Reload.LINK] = 20
    """Lines of a child's stderr per second in debug logs; the number of further ones is logged."""
    tools: Annotated[ToolFilter, Reload.VIEW] = ToolFilter()
    """Which tools are exposed, and under which names and descriptions."""
    resources: Annotated[NameFilter, Reload.VIEW] = NameFilter()
    """Which resources and resource templates are exposed, by URI."""
    prompts: Annotated[NameFilter, Reload.VIEW] = NameFilter()
    """Which prompts are exposed."""
    roots: tuple[str, ...] = ()
    """URIs given to the upstream if it asks for roots outside any call."""
    cache: Annotated[UpstreamCache, Reload.CACHE] = UpstreamCache()
    """How long reads of its resources are cached."""
    content: Annotated[Content, Reload.VIEW] = Content()
    """What the contents of its resources may be."""
    results: Annotated[ResultLimit, Reload.VIEW] = ResultLimit()
    """How large results of its tools may be."""

    _fault: str | None = PrivateAttr(default=None)

    @property
    def endpoint(self) -> Endpoint:
        """The URL to request, and the Unix socket to connect to, if `url` names one."""
        return endpoint(self.url or "")

    @property
    def leaving(self) -> Egress:
        """How requests to `url`, and to the authorization servers of this upstream, leave."""
        only = None if self.egress is None else ProxyChoice(self.egress, f"mcpServers.{self.name}.egress")
        parts = urlsplit(self.endpoint.url)
        origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        return structs.replace(
            super().leaving,
            only=only,
            tls=ServerTls(**self.tls.model_dump()),
            origin=origin,
            socket=self.endpoint.socket,
        )

    @property
    def fault(self) -> str | None:
        """Why the server cannot run as its configuration is written; None if it can."""
        return self._fault

    def out_of_service(self, fault: str) -> Self:
        """The same server, which is not started for this reason."""
        marked = self.model_copy()
        marked._fault = fault
        return marked

    @property
    def way(self) -> str:
        """How `url` is reached, in words; empty for a command."""
        return "" if self.url is None else self.leaving.described(URL(self.endpoint.url))

    def inherits(self, variable: str) -> bool:
        """Whether `inherit` names an environment variable."""
        return any(variable.startswith(each[:-1]) if each[-1] == "*" else variable == each for each in self.inherit)

    @property
    def limits_results(self) -> bool:
        """Whether results of any of its tools have a limit."""
        own = (override.results.max_bytes for override in self.tools.overrides.values())
        return self.results.max_bytes is not None or any(own)

    @property
    def may_idle(self) -> bool:
        """Whether its child is stopped, or not started yet, while nothing needs it."""
        return self.start == "on_demand" or self.idle_stop > 0

    @property
    def has_own_logins(self) -> bool:
        """Whether each principal has its own login there, and so its own connection."""
        return self.oauth is not None and self.oauth.per == "principal"

    @property
    def exchanges_tokens(self) -> bool:
        """Whether the tokens with which callers authenticate to the gateway are exchanged for its own."""
        return self.oauth is not None and self.oauth.exchanges

    @property
    def share_of_principal(self) -> int:
        """Calls that one caller may have in flight at once."""
        return self.max_in_flight_per_principal or max(1, self.max_in_flight * 3 // 4)
