"""How other hosts write an MCP server, translated to the words of `settings.Upstream`.

Claude Desktop, Claude Code, Cursor, VS Code, Windsurf, Cline and Gemini CLI all keep a map of servers, and each has
keys of its own. Translates keys and types; judges no value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from mcproxy.configuration.documents import Node, without_nulls

SERVER_MAPS: Final = ("mcpServers", "servers")
"""Where hosts keep their servers; VS Code says `servers`."""

OURS: Final = ("proxy", "access", "endpoints", "admin")
"""The keys that no host has."""

TYPES: Final = dict.fromkeys(("streamable-http", "streamableHttp", "streamable_http", "http-stream"), "http")
"""Other words for the values of `type`."""

RENAMED: Final = {"serverUrl": "url", "httpUrl": "url", "transport": "type", "transportType": "type"}
"""Other words for keys."""

TOOL_LISTS: Final = {"disabledTools": "exclude", "excludeTools": "exclude", "includeTools": "include"}
"""Lists of tools, by the member of `tools` that they are here."""

ENV_FILE: Final = "envFile"

KEYS: Final = {
    ENV_FILE: "A file of NAME=value lines for `env`, relative to this file.",
    "disabled": "The contrary of `enabled`.",
    **{key: f"As `tools.{part}`." for key, part in TOOL_LISTS.items()},
    **{other: f"As `{key}`." for other, key in RENAMED.items()},
}
"""Keys that mean something here, beside those of `Upstream`, and what."""

IGNORED: Final = frozenset(
    {
        *("alwaysAllow", "autoApprove", "trust", "timeout", "description", "displayName", "icon"),
        *("dev", "gallery", "version", "sandbox", "sandboxEnabled", "watchPaths", "registry"),
        *("auth", "oauth", "authProviderType", "targetAudience", "targetServiceAccount"),
    }
)
"""Keys that concern the host alone, or whose unit differs from host to host (`timeout`)."""


def is_hosts(document: Node, suffix: str) -> bool:
    """Whether this is a host's own file: it may hold much that does not concern us."""
    keys = document.members.keys()
    return suffix in {".json", ".jsonc"} and keys.isdisjoint(OURS) and not keys.isdisjoint(SERVER_MAPS)


def translate(server: Node) -> Node:
    """One entry of a map of servers in our words. Where two keys say the same, ours wins."""
    members = {key: node for key, node in without_nulls(server).members.items() if key not in IGNORED}
    for other, key in RENAMED.items():
        if other in members:
            members.setdefault(key, members.pop(other))
    if (disabled := members.pop("disabled", None)) is not None:
        members.setdefault("enabled", replace(disabled, value=disabled.value is not True))
    for other, part in TOOL_LISTS.items():
        if (names := members.pop(other, None)) is not None:
            tools = members.get("tools", replace(names, value={}))
            members["tools"] = replace(tools, value={part: names, **tools.members})
    for key in ("args", "env", "headers"):
        if key in members:
            members[key] = _texts(members[key])
    if "type" in members:
        members["type"] = map_text(members["type"], lambda text: TYPES.get(text, text))
    return replace(server, value=members)


def map_text(node: Node, change: Callable[[str], str]) -> Node:
    """The node with its text changed; one that holds something else stays."""
    return replace(node, value=change(node.value), text=change(node.value)) if isinstance(node.value, str) else node


def _texts(node: Node) -> Node:
    """Items or members as text, the way they were written: people leave out quotes around ports and flags."""
    if isinstance(node.value, dict):
        return replace(node, value={key: _as_text(member) for key, member in node.value.items()})
    if isinstance(node.value, list):
        return replace(node, value=[_as_text(item) for item in node.value])
    return node


def _as_text(node: Node) -> Node:
    return node if isinstance(node.value, (dict, list, str)) else replace(node, value=node.text)
