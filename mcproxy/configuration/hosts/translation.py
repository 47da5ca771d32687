"""Translate an MCP server's entry in a host's file to the keys of `UpstreamSettings`.

Claude Desktop, Claude Code, Cursor, VS Code, Windsurf, Cline and Gemini CLI all have a map of servers, each with keys
of its own. Translates keys and types; validates no value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from mcproxy.configuration.documents.tree import Node, without_nulls

SERVER_MAPS: Final = ("mcpServers", "servers")
"""Keys under which hosts keep their servers; VS Code uses `servers`."""

OURS: Final = ("proxy", "access", "endpoints", "admin", "cluster", "features")
"""Top-level keys of mcproxy that no host has."""

TYPES: Final = {
    **dict.fromkeys(("streamable-http", "streamableHttp", "streamable_http", "http-stream"), "http"),
    "local": "stdio",
}
"""Hosts' values of `type`, with ours."""

RENAMED: Final = {"serverUrl": "url", "httpUrl": "url", "transport": "type", "transportType": "type"}
"""Hosts' keys, with ours."""

TOOL_LISTS: Final = {"disabledTools": "exclude", "excludeTools": "exclude", "includeTools": "include"}
"""Hosts' lists of tools, with the member of `tools` that holds them here."""

ENV_FILE: Final = "envFile"

HEADERS_HELPER: Final = "headersHelper"

_SHELL: Final = re.compile(r"[^\w\s./:=@%+,-]")
"""Characters that a shell may treat in a way of its own."""

KEYS: Final = {
    ENV_FILE: "A file of NAME=value lines for `env`, relative to this file.",
    HEADERS_HELPER: "The same as `headers_command`, as a line for a shell.",
    "disabled": "The opposite of `enabled`.",
    **{key: f"The same as `tools.{part}`." for key, part in TOOL_LISTS.items()},
    **{other: f"The same as `{key}`." for other, key in RENAMED.items()},
}
"""Keys of hosts that are translated, with their meaning."""

IGNORED: Final = frozenset(
    {
        *("alwaysAllow", "autoApprove", "trust", "timeout", "description", "displayName", "icon"),
        *("dev", "gallery", "metadata", "version", "sandbox", "sandboxEnabled", "watchPaths", "registry"),
        *("auth", "authProviderType", "targetAudience", "targetServiceAccount"),
    }
)
"""Keys that concern the host alone, or whose unit differs between hosts (`timeout`)."""


LEFT_OUT: Final = {
    **dict.fromkeys(
        ("alwaysAllow", "autoApprove", "trust"), "what a person is asked before a call is the host's to say"
    ),
    "timeout": "its unit differs between hosts; `timeouts` is the like here",
    **dict.fromkeys(("auth", "authProviderType", "targetAudience", "targetServiceAccount"), "`oauth` is the like here"),
}
"""Why an ignored key that a user may miss is not carried over."""

SANDBOX: Final = "sandboxEnabled"
"""VS Code's switch that has a server run in a sandbox."""

OAUTH_CLIENT: Final = {"clientId": "id", "clientSecret": "secret"}
"""Members of a host's `oauth`, by the member of `oauth.client` that they are here."""

OAUTH_IGNORED: Final = frozenset(
    {
        *("enabled", "callbackPort", "redirectUri", "authorizationUrl", "tokenUrl", "registrationUrl"),
        *("authServerMetadataUrl", "audiences", "tokenParamName"),
    }
)
"""Members of a host's `oauth` that concern the host's own redirect, or that discovery finds out here."""


def is_hosts(document: Node, suffix: str) -> bool:
    """Whether this is a host's own file, in which unknown keys belong to the host."""
    keys = document.members.keys()
    return suffix in {".json", ".jsonc"} and keys.isdisjoint(OURS) and not keys.isdisjoint(SERVER_MAPS)


def left_out(server: Node) -> list[str]:
    """What of an entry is not carried over, a sentence for each key that a user may miss."""
    return [f"`{key}` was left out: {LEFT_OUT[key]}" for key in server.members if key in LEFT_OUT]


def flattened(server: Node) -> Node:
    """One entry, with what Cline and some others write inside `transport` beside its other keys."""
    transport = server.members.get("transport")
    if transport is None or not isinstance(transport.value, dict):
        return server
    rest = {key: node for key, node in server.members.items() if key != "transport"}
    return replace(server, value={**transport.members, **rest})


def translate(server: Node) -> Node:
    """One entry of a map of servers with our keys. Where a host's key and ours are both given, ours wins."""
    members = {key: node for key, node in flattened(without_nulls(server)).members.items() if key not in IGNORED}
    for other, key in RENAMED.items():
        if other in members:
            members.setdefault(key, members.pop(other))
    if (disabled := members.pop("disabled", None)) is not None:
        members.setdefault("enabled", replace(disabled, value=disabled.value is not True))
    if isinstance((tools := members.get("tools", server)).value, list):
        # Copilot's list of the tools that it may use, `*` for all.
        members["tools"] = replace(tools, value={"include": tools})
    for other, part in TOOL_LISTS.items():
        if (names := members.pop(other, None)) is not None:
            tools = members.get("tools", replace(names, value={}))
            members["tools"] = replace(tools, value={part: names, **tools.members})
    if (helper := members.pop(HEADERS_HELPER, None)) is not None and "headers_command" not in members:
        members["headers_command"] = map_words(helper, _command)
        members.setdefault("cwd", replace(helper, value=".", text="."))
    if "oauth" in members:
        members["oauth"] = _translated_oauth(members["oauth"])
    for key in ("args", "env", "headers"):
        if key in members:
            members[key] = _texts(members[key])
    if "type" in members:
        members["type"] = map_text(members["type"], lambda text: TYPES.get(text, text))
    return replace(server, value=members)


def _translated_oauth(oauth: Node) -> Node:
    """A host's `oauth` in our words; ours stays as it is."""
    if not isinstance(oauth.value, dict):
        return oauth
    members = {key: node for key, node in oauth.members.items() if key not in OAUTH_IGNORED | OAUTH_CLIENT.keys()}
    client = {OAUTH_CLIENT[key]: node for key, node in oauth.members.items() if key in OAUTH_CLIENT}
    if client:
        known = members.get("client", replace(oauth, value={}))
        members["client"] = replace(known, value={**client, **known.members})
    scopes = members.get("scopes")
    if scopes is not None:
        members["scopes"] = map_words(scopes, str.split)
    return replace(oauth, value=members)


def _command(line: str) -> list[str]:
    """The words of a line that hosts hand to a shell; handed to one here too where it is more than words."""
    words = line.split()
    return words if words and not _SHELL.search(line) else ["/bin/sh", "-c", line]


def map_words(node: Node, split: Callable[[str], list[str]]) -> Node:
    """The node with its text as a list of texts; a node without a text is returned unchanged."""
    if not isinstance(node.value, str):
        return node
    return replace(node, value=[replace(node, value=word, text=word) for word in split(node.value)])


def map_text(node: Node, change: Callable[[str], str]) -> Node:
    """The node with its text changed; a node without a text is returned unchanged."""
    return replace(node, value=change(node.value), text=change(node.value)) if isinstance(node.value, str) else node


def _texts(node: Node) -> Node:
    """Items or members as texts, as written: quotes around ports and flags are often left out."""
    if isinstance(node.value, dict):
        return replace(node, value={key: _as_text(member) for key, member in node.value.items()})
    if isinstance(node.value, list):
        return replace(node, value=[_as_text(item) for item in node.value])
    return node


def _as_text(node: Node) -> Node:
    return node if isinstance(node.value, (dict, list, str)) else replace(node, value=node.text)
