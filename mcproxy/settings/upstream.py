"""What can be said of one server behind the gateway."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mcproxy.settings.forwarding import CredentialSettings
from mcproxy.settings.section import Bytes, Glob, Positive, Prefix, Seconds, SecondsOrNone, Section


class NameFilter(Section):
    """Which of an upstream's entries are shown, by globs on the upstream's own names. Exclude wins."""

    include: tuple[Glob, ...] = ("*",)
    """Globs of what is shown."""
    exclude: tuple[Glob, ...] = ()
    """Globs of what is not."""


class ToolOverride(Section):
    """What a tool is called instead, to hosts and to models."""

    name: str | None = None
    """The name that callers see, after the prefix."""
    title: str | None = None
    """The title that people see."""
    description: str | None = None
    """The description that models see."""


class ToolFilter(NameFilter):
    overrides: dict[str, ToolOverride] = Field(default_factory=dict)
    """By the upstream's own name of the tool."""


class UpstreamTimeouts(Section):
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


class UpstreamCache(Section):
    """How long reads of an upstream's resources are kept; what the upstream itself says of a result goes first."""

    ttl: dict[Glob, SecondsOrNone] = Field(default_factory=dict)
    """By globs on the upstream's own URIs, where the upstream gives no `ttlMs`; the first that matches counts."""
    shared: bool = False
    """This upstream answers everybody alike, so that callers may share what it marks private."""
    coherent: bool = False
    """Watch what is cached, and keep it until the upstream says that it changed, whatever its TTL.

    Only for an upstream that announces every change.
    """
    max_watched: Positive = 1000
    """With `coherent`: how many resources are watched at once; the least used gives way."""
    stale_if_error: SecondsOrNone = 0
    """How long after its time an entry is still served, marked, while the upstream cannot be reached."""
    invalidate_on_tool_calls: bool = False
    """Forget everything of this upstream after each call of a tool that is not annotated `readOnlyHint`."""
    max_bytes: Bytes = 16 * 1024 * 1024
    """What entries of this upstream may take; the least used give way."""


class Content(Section):
    """What reads of an upstream's resources may bring; anything else is an error that names the upstream."""

    types: tuple[Glob, ...] = ("*",)
    """Globs of MIME types; content that says none is allowed by `*` alone."""
    max_bytes: Bytes | None = None
    """The largest content, as a client gets it: a text in UTF-8, a blob decoded."""
    check_blobs: bool = True
    """Whether blobs must be valid Base64."""


class UpstreamSettings(Section):
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
    credentials: CredentialSettings = CredentialSettings()
    """What callers bring for it themselves."""
    prefix: Prefix
    """Exposed tools are `{prefix}__{name}`; the empty prefix passes one upstream through bare."""
    enabled: bool = True
    """A disabled upstream is checked, and not connected."""
    required: bool = False
    """`/readyz` waits for it."""
    connection: Literal["shared", "session"] = "shared"
    """One connection for everybody, or one for each client session."""
    max_connections: Positive = 100
    """With `connection: session`, or with `credentials`: how many may live at once."""
    era: Literal["auto", "modern", "legacy"] = "auto"
    """Which generation of the protocol to speak: `modern` is 2026-07-28, `legacy` all with a handshake."""
    timeouts: UpstreamTimeouts = UpstreamTimeouts()
    """How long this upstream may take."""
    list_poll: SecondsOrNone = 0
    """How often its lists are fetched to see if they changed, where it does not say so itself; 0 for never."""
    max_in_flight: Positive = 256
    """Calls at once; one more is answered `busy`."""
    max_message_bytes: Bytes = 64 * 1024 * 1024
    """The largest message this upstream may send; a larger one fails this upstream alone."""
    stderr_lines: Positive = 20
    """Lines of a child's stderr that debug logs show in a second, at most; of the rest they say how many they were."""
    tools: ToolFilter = ToolFilter()
    """Which tools are shown, and how they are called."""
    resources: NameFilter = NameFilter()
    """Which resources and templates are shown, by URI."""
    prompts: NameFilter = NameFilter()
    """Which prompts are shown."""
    roots: tuple[str, ...] = ()
    """URIs announced where the upstream asks for roots outside of any call."""
    cache: UpstreamCache = UpstreamCache()
    """How long reads of its resources are kept."""
    content: Content = Content()
    """What reads of its resources may bring."""
