"""The table of MCP methods: who answers each, which parameter names its subject, and what may happen on the way.

Routing, rewriting, policy, cache, headers and metric labels read the row; no code compares the name of a method that
has one. A method without a row is unknown, and is answered so.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from mcproxy.protocol.eras import Era

SKILLS: Final = "io.modelcontextprotocol/skills"
"""The extension by which servers publish Agent Skills: directories of files, each of them a resource (SEP-2640)."""
DIRECTORY_READ: Final = "directoryRead"
"""The setting of that extension by which a server offers `resources/directory/read`."""


class Kind(Enum):
    """The five lists that a server publishes."""

    TOOLS = "tools"
    RESOURCES = "resources"
    TEMPLATES = "resourceTemplates"
    PROMPTS = "prompts"
    SKILLS = "skills"

    __hash__ = object.__hash__  # Enum's own is Python, and kinds are keys everywhere

    @property
    def member(self) -> str:
        """The key of the list in its result."""
        return self.value

    @property
    def key(self) -> str:
        """The member of an entry that identifies it."""
        return _KEYS[self]

    @property
    def list_method(self) -> str:
        """The method that fetches it, page by page."""
        return _LISTS[self]

    @property
    def capability(self) -> str:
        """The server capability to which this list belongs."""
        return "resources" if self in URI_KINDS else self.value

    @property
    def extension(self) -> str | None:
        """The extension that has this list; None for those of MCP itself."""
        return SKILLS if self is Kind.SKILLS else None

    @property
    def changed(self) -> str:
        """The notification that says this list changed; for skills that of resources, of which they are made."""
        return f"notifications/{self.capability}/list_changed"


URI_KINDS: Final = frozenset({Kind.RESOURCES, Kind.TEMPLATES, Kind.SKILLS})
"""The lists whose entries are identified by a URI, or by a template of one."""

_KEYS: Final = {
    Kind.TOOLS: "name",
    Kind.RESOURCES: "uri",
    Kind.TEMPLATES: "uriTemplate",
    Kind.PROMPTS: "name",
    Kind.SKILLS: "uri",
}
_LISTS: Final = {
    Kind.TOOLS: "tools/list",
    Kind.RESOURCES: "resources/list",
    Kind.TEMPLATES: "resources/templates/list",
    Kind.PROMPTS: "prompts/list",
    Kind.SKILLS: "skills/list",
}


class Subject(Enum):
    """What a request is about: the thing whose name decides which upstream gets it."""

    TOOL = "tool"
    PROMPT = "prompt"
    RESOURCE = "resource"
    REFERENCE = "reference"
    """A completion's `ref`: a prompt's name or a resource template's URI."""
    TASK = "task"
    """Work that outlives its call, by the id that its client knows (`gateway.tasks.relay`)."""

    __hash__ = object.__hash__  # as for kinds


class Answerer(Enum):
    """The party that answers a method."""

    EDGE = "edge"
    """The transport that the client speaks to: the handshake and the session."""
    GATEWAY = "gateway"
    """The gateway, from what it knows of all upstreams."""
    UPSTREAM = "upstream"
    """The upstream that owns the subject; of a method that no table has, the only one behind the endpoint."""


class Shape(Enum):
    """Where URIs sit in a result (requirement R27)."""

    PLAIN = "plain"
    CONTENT = "content"
    """`content[]`: blocks of type `resource` and `resource_link`."""
    CONTENTS = "contents"
    """`contents[].uri`."""
    RESOURCES = "resources"
    """`resources[].uri`."""
    SKILL = "skill"
    """`skill.uri` and `skill.resources[].uri`: one entry of `skills/list`."""
    MESSAGES = "messages"
    """`messages[].content`: one block or several."""
    TASK = "task"
    """A task: of the extension, with `result`, which is a tool's, and `inputRequests`, which hold messages."""

    __hash__ = object.__hash__  # as for kinds


class Method(msgspec.Struct, frozen=True):
    """One method of MCP with all that the gateway needs to know about it: a row of the table `METHODS`."""

    name: str
    answerer: Answerer
    subject: Subject | None = None
    subject_key: str | None = None
    """The member of `params` that holds the subject."""
    named_in: Kind | None = None
    """The list in which its subject is found by name."""
    lists: Kind | None = None
    """The list that it fetches."""
    shape: Shape = Shape.PLAIN
    may_ask: bool = False
    """Whether the upstream may ask the client for input before it answers."""
    cacheable: bool = False
    capability: str | None = None
    """The server capability that this method needs."""
    extension: str | None = None
    """The extension of a server that this method needs."""
    extension_setting: str | None = None
    """The setting of that extension that must be true."""
    names_subject: bool = True
    """Whether its subject is mirrored as `Mcp-Name` on stateless HTTP."""
    safe_to_repeat: bool = False
    """Whether a lost request may be sent again without a second effect (requirement R4)."""
    notification: bool = False
    """Whether it is a notification: sent on as one, and never answered."""
    opens: bool = False
    """Whether it opens a handshake session."""
    era: Era | None = None
    """The only era in which clients may send it; None for both."""
    deferrable: bool = False
    """Whether it may be answered by a task, which gives the result later."""
    waits: bool = False
    """Whether its answer may come late, once other work is done, with no progress before."""
    may_fail: bool = False
    """Whether its result may say that a tool failed (`isError`)."""
    per_link: bool = False
    """Whether it sets a state of the link that carries it, so that each link to a server needs it."""
    subscribes: bool | None = None
    """True where it begins a subscription to its subject, False where it ends one."""
    hinted: bool = False
    """Whether its stateless result says how long it may be cached, and by whom (2026-07-28, caching)."""
    unlimited: bool = False
    """Whether it counts towards no limit of callers: it has no server do anything, or may not be lost."""

    known: bool = True
    """Whether the method is in the table: only then may its name be a metric label (requirement R52)."""


_E, _G, _U = Answerer.EDGE, Answerer.GATEWAY, Answerer.UPSTREAM
_H, _S = Era.HANDSHAKE, Era.STATELESS

METHODS: Final[dict[str, Method]] = {
    row.name: row
    for row in (
        Method("initialize", _E, opens=True, era=_H),
        Method("ping", _E, safe_to_repeat=True, era=_H),
        Method("server/discover", _G, safe_to_repeat=True, era=_S, hinted=True, unlimited=True),
        Method("subscriptions/listen", _E, era=_S),
        Method("tools/list", _G, lists=Kind.TOOLS, capability="tools", safe_to_repeat=True, hinted=True),
        Method(
            "resources/list", _G, lists=Kind.RESOURCES, capability="resources", safe_to_repeat=True, hinted=True
        ),
        Method(
            "resources/templates/list", _G, lists=Kind.TEMPLATES, capability="resources", safe_to_repeat=True,
            hinted=True,
        ),
        Method("prompts/list", _G, lists=Kind.PROMPTS, capability="prompts", safe_to_repeat=True, hinted=True),
        Method(
            "tools/call", _U, Subject.TOOL, "name", Kind.TOOLS, shape=Shape.CONTENT, may_ask=True, capability="tools",
            deferrable=True, may_fail=True,
        ),
        Method(
            "resources/read", _U, Subject.RESOURCE, "uri", shape=Shape.CONTENTS, may_ask=True, cacheable=True,
            capability="resources", safe_to_repeat=True, hinted=True,
        ),
        Method(
            "prompts/get", _U, Subject.PROMPT, "name", Kind.PROMPTS, shape=Shape.MESSAGES, may_ask=True,
            capability="prompts", safe_to_repeat=True,
        ),
        Method(
            "completion/complete", _U, Subject.REFERENCE, "ref", capability="completions", names_subject=False,
            safe_to_repeat=True,
        ),
        Method(
            "resources/subscribe", _G, Subject.RESOURCE, "uri", capability="resources", safe_to_repeat=True, era=_H,
            subscribes=True,
        ),
        Method(
            "resources/unsubscribe", _G, Subject.RESOURCE, "uri", capability="resources", safe_to_repeat=True, era=_H,
            subscribes=False,
        ),
        Method(
            "resources/directory/read", _U, Subject.RESOURCE, "uri", shape=Shape.RESOURCES, capability="resources",
            extension=SKILLS, extension_setting=DIRECTORY_READ, names_subject=False, safe_to_repeat=True, hinted=True,
        ),
        Method(
            "skills/list", _G, lists=Kind.SKILLS, capability="resources", extension=SKILLS, safe_to_repeat=True,
            hinted=True,
        ),
        Method(
            "skills/get", _U, Subject.RESOURCE, "uri", shape=Shape.SKILL, capability="resources", extension=SKILLS,
            names_subject=False, safe_to_repeat=True, hinted=True,
        ),
        Method("tasks/get", _U, Subject.TASK, "taskId", shape=Shape.TASK, safe_to_repeat=True),
        Method(
            "tasks/result", _U, Subject.TASK, "taskId", shape=Shape.CONTENT, may_ask=True, safe_to_repeat=True,
            waits=True, may_fail=True, era=_H,
        ),
        Method("tasks/update", _U, Subject.TASK, "taskId", era=_S),
        Method("tasks/cancel", _U, Subject.TASK, "taskId", shape=Shape.TASK),
        Method("tasks/list", _G, capability="tasks", safe_to_repeat=True, era=_H),
        Method("logging/setLevel", _G, capability="logging", safe_to_repeat=True, era=_H, per_link=True),
        Method("notifications/roots/list_changed", _G, notification=True, era=_H, unlimited=True),
    )
}  # fmt: skip
"""Every method that a client may send as a call, by name."""


def row_of(method: str) -> Method:
    """The row of a request's method; a method without a row may belong to an unknown extension."""
    return METHODS.get(method) or Method(method, Answerer.UPSTREAM, may_ask=True, known=False)


def row_of_notification(method: str) -> Method:
    """The same of a notification."""
    return METHODS.get(method) or Method(method, Answerer.UPSTREAM, notification=True, known=False)


INPUT_CAPABILITIES: Final = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}
"""What an upstream may ask a client, and the client capability that allows it."""

DISCOVER: Final = "server/discover"
LISTEN: Final = "subscriptions/listen"
SUBSCRIBE: Final = "resources/subscribe"
UNSUBSCRIBE: Final = "resources/unsubscribe"
SET_LEVEL: Final = "logging/setLevel"
PROGRESS: Final = "notifications/progress"
CANCELLED: Final = "notifications/cancelled"
LOG_MESSAGE: Final = "notifications/message"
INITIALIZED: Final = "notifications/initialized"
RESOURCE_UPDATED: Final = "notifications/resources/updated"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
ELICITATION_COMPLETE: Final = "notifications/elicitation/complete"
ROOTS_CHANGED: Final = "notifications/roots/list_changed"

CHANGED: Final[dict[str, tuple[Kind, ...]]] = {
    "notifications/tools/list_changed": (Kind.TOOLS,),
    "notifications/resources/list_changed": (Kind.RESOURCES, Kind.TEMPLATES, Kind.SKILLS),
    "notifications/prompts/list_changed": (Kind.PROMPTS,),
}
"""The lists that each `list_changed` notification speaks of."""

LISTEN_FLAGS: Final[dict[str, tuple[Kind, ...]]] = {
    "toolsListChanged": (Kind.TOOLS,),
    "resourcesListChanged": (Kind.RESOURCES, Kind.TEMPLATES, Kind.SKILLS),
    "promptsListChanged": (Kind.PROMPTS,),
}
"""The lists that each flag of a `subscriptions/listen` filter speaks of."""

LISTEN_URIS: Final = "resourceSubscriptions"
"""The member of such a filter that names resources."""

LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""RFC 5424 severities, least severe first."""

DEFAULT_LOG_LEVEL: Final = "info"
"""What a client of a handshake era hears from where it set no level: the specification leaves it to the server."""


def is_audible(level: str, least: str | None) -> bool:
    """Whether a log message of `level` goes to a client that set the level `least`; None for no messages at all."""
    if level not in LOG_LEVELS or least not in LOG_LEVELS:
        return False
    return LOG_LEVELS.index(level) >= LOG_LEVELS.index(least)
