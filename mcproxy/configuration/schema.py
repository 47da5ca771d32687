"""The JSON Schema of a configuration file, for completion and checks in editors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mcproxy.configuration.descriptions import key_descriptions
from mcproxy.configuration.hosts import translation
from mcproxy.settings import Section, Settings, UpstreamSettings

SERVER = "Server"


def schema() -> dict[str, Any]:
    """The schema of `Settings` as a file has them: servers by name, prefixes optional, hosts' keys allowed."""
    root = Settings.model_json_schema()
    definitions = root["$defs"]
    for section in _sections(Section):
        if section is Settings or section.__name__ in definitions:
            _describe(section, root if section is Settings else definitions[section.__name__])
    server = definitions[SERVER] = definitions.pop(UpstreamSettings.__name__)
    del server["properties"]["name"], server["required"]
    server["properties"] |= {key: {"description": text} for key, text in translation.KEYS.items()}
    server["properties"] |= {
        key: {"description": "A key of hosts, ignored here."} for key in sorted(translation.IGNORED)
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mcproxy",
        "description": "A configuration file of mcproxy.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "$schema": {"type": "string"},
            "mcpServers": _servers(
                "The servers behind the gateway, by name. Entries of hosts (Claude, Cursor, ...) work unchanged."
            ),
            "servers": _servers("The same as `mcpServers`, as VS Code calls it."),
            "inputs": {
                "type": "array",
                "description": "Inputs of VS Code; `${input:ID}` reads the variable ID.",
            },
            "proxy": root["properties"]["proxy"],
            "access": root["properties"]["access"],
            "endpoints": root["properties"]["endpoints"],
            "admin": root["properties"]["admin"],
            "cluster": root["properties"]["cluster"],
            "features": {"type": "object", "additionalProperties": {"type": ["object", "null"]}},
        },
        "$defs": definitions,
    }


def _sections(extended: type[Section]) -> Iterator[type[Section]]:
    for section in extended.__subclasses__():
        yield section
        yield from _sections(section)


def _describe(section: type[Section], definition: dict[str, Any]) -> None:
    for key, text in key_descriptions(section).items():
        definition["properties"][key] = dict(sorted({**definition["properties"][key], "description": text}.items()))


def _servers(description: str) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "additionalProperties": {"$ref": f"#/$defs/{SERVER}"},
    }
