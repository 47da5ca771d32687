"""Entries of the MCP Registry."""

from __future__ import annotations

import pytest

from mcproxy.configuration.packages.server_json import server_of
from mcproxy.configuration.problems import ConfigurationError

STDIO = {"type": "stdio"}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            {
                "packages": [
                    {
                        "registryType": "npm",
                        "identifier": "@modelcontextprotocol/server-brave-search",
                        "version": "1.0.2",
                        "transport": STDIO,
                        "environmentVariables": [
                            {"name": "BRAVE_API_KEY", "isRequired": True, "isSecret": True},
                            {"name": "OPTIONAL"},
                            {"name": "REGION", "default": "eu"},
                        ],
                    }
                ]
            },
            {
                "command": "npx",
                "args": ["-y", "@modelcontextprotocol/server-brave-search@1.0.2"],
                "env": {"BRAVE_API_KEY": "${BRAVE_API_KEY}", "REGION": "eu"},
            },
        ),
        (
            {
                "packages": [
                    {
                        "registryType": "pypi",
                        "identifier": "weather",
                        "version": "0.5.0",
                        "transport": STDIO,
                        "runtimeArguments": [{"type": "named", "name": "--python", "value": "3.12"}],
                        "packageArguments": [
                            {"type": "positional", "value": "serve"},
                            {"type": "named", "name": "--dir", "valueHint": "folder", "isRequired": True},
                            {"type": "positional", "valueHint": "not needed"},
                        ],
                    }
                ]
            },
            {"command": "uvx", "args": ["--python", "3.12", "weather==0.5.0", "serve", "--dir", "${DIR}"]},
        ),
        (
            {
                "packages": [
                    {"registryType": "nuget", "identifier": "x", "transport": STDIO},
                    {
                        "registryType": "oci",
                        "identifier": "ghcr.io/x/y",
                        "version": "1",
                        "transport": STDIO,
                        "environmentVariables": [{"name": "TOKEN", "value": "{token}"}],
                    },
                ]
            },
            {
                "command": "docker",
                "args": ["run", "-i", "--rm", "-e", "TOKEN", "ghcr.io/x/y:1"],
                "env": {"TOKEN": "${TOKEN}"},
            },
        ),
        (
            {
                "remotes": [
                    {
                        "type": "streamable-http",
                        "url": "https://{tenant}.example/mcp",
                        "headers": [{"name": "Authorization", "value": "Bearer {api_key}"}],
                    }
                ]
            },
            {"url": "https://${TENANT}.example/mcp", "type": "http", "headers": {"Authorization": "Bearer ${API_KEY}"}},
        ),
    ],
    ids=["npm", "pypi", "oci", "remote"],
)
def test_an_entry_of_the_registry_becomes_a_server_of_that_version(
    document: dict[str, object], expected: dict[str, object]
) -> None:
    assert server_of(document, "server.json") == expected


@pytest.mark.parametrize("document", [[], "x", {"packages": "x", "remotes": [1, {"type": "http"}]}])
def test_what_names_nothing_that_runs_here_is_refused(document: object) -> None:
    with pytest.raises(ConfigurationError, match="of npm, pypi, oci"):
        server_of(document, "server.json")


def test_a_file_of_another_kind_is_told_as_that() -> None:
    with pytest.raises(ConfigurationError, match=r"is no server\.json of the registry"):
        server_of({"mcpServers": {}}, "server.json")
