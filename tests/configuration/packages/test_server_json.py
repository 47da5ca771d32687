"""Entries of the MCP Registry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcproxy.configuration.documents.parsing import parse_document
from mcproxy.configuration.expansion import Expansion, referred
from mcproxy.configuration.packages.offer import Input, Values, Variable
from mcproxy.configuration.packages.server_json import offer_of
from mcproxy.configuration.problems import ConfigurationError

STDIO = {"type": "stdio"}


@pytest.mark.parametrize(
    ("document", "values", "expected"),
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
            {"BRAVE_API_KEY": [Variable("KEY")], "REGION": ["eu"]},
            {
                "command": "npx",
                "args": ["-y", "@modelcontextprotocol/server-brave-search@1.0.2"],
                "env": {"BRAVE_API_KEY": "${KEY}", "REGION": "eu"},
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
            {"dir": ["/srv"]},
            {"command": "uvx", "args": ["--python", "3.12", "weather==0.5.0", "serve", "--dir", "/srv"]},
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
            {"token": [Variable("T")]},
            {
                "command": "docker",
                "args": ["run", "-i", "--rm", "-e", "TOKEN", "ghcr.io/x/y:1"],
                "env": {"TOKEN": "${T}"},
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
            {"tenant": ["acme"], "api_key": [Variable("K")]},
            {"url": "https://acme.example/mcp", "type": "http", "headers": {"Authorization": "Bearer ${K}"}},
        ),
    ],
    ids=["npm", "pypi", "oci", "remote"],
)
def test_an_entry_of_the_registry_becomes_a_server_of_that_version(
    document: dict[str, object], values: Values, expected: dict[str, object]
) -> None:
    assert offer_of(document, "server.json").entry(values) == expected


@pytest.mark.parametrize("document", [[], "x", {"packages": "x", "remotes": [1, {"type": "http"}]}])
def test_what_names_nothing_that_runs_here_is_refused(document: object) -> None:
    with pytest.raises(ConfigurationError, match="of npm, pypi, oci"):
        offer_of(document, "server.json")


def test_a_file_of_another_kind_is_told_as_that() -> None:
    with pytest.raises(ConfigurationError, match=r"is no server\.json of the registry"):
        offer_of({"mcpServers": {}}, "server.json")


def test_what_it_asks_for_is_told_with_its_secrecy_default_and_choices() -> None:
    variables = {"api_key": {"description": "yours", "isSecret": True, "default": "ignored"}}
    header = {"name": "Authorization", "value": "Bearer {api_key}", "variables": variables}
    region = {"name": "X-Region", "default": "eu", "choices": ["eu", "us"]}
    remote = {"type": "sse", "url": "https://{tenant}.example", "headers": [header, region, {"name": "X-More"}]}
    assert offer_of({"remotes": [remote]}, "server.json").inputs == (
        Input("tenant", required=True),
        Input("api_key", "yours", secret=True, required=True),
        Input("X-Region", default=("eu",), choices=("eu", "us")),
        Input("X-More"),
    )


@pytest.mark.parametrize("text", ["${AWS_SECRET}", "${env:AWS_SECRET}", "${file:/etc/passwd}", "$${AWS_SECRET}", "${X"])
def test_r90_no_text_of_the_file_refers_to_anything(text: str) -> None:
    package = {
        "registryType": "npm",
        "identifier": text,
        "transport": STDIO,
        "packageArguments": [{"type": "positional", "value": "${x}"}],
        "environmentVariables": [{"name": "A", "default": text}],
    }
    entry = offer_of({"packages": [package]}, "server.json").entry({"A": [text], "x": ["{AWS_SECRET}"]})
    assert list(referred(entry)) == []
    expansion = Expansion(Path("mcproxy.yaml"), {"AWS_SECRET": "secret"})
    assert expansion.apply(parse_document(json.dumps(entry), "x.json")).plain == {
        "command": "npx",
        "args": ["-y", text, "${AWS_SECRET}"],
        "env": {"A": text},
    }


def test_a_package_that_would_be_an_option_is_refused() -> None:
    package = {"registryType": "npm", "identifier": "--package=evil", "transport": STDIO}
    with pytest.raises(ConfigurationError, match="would be an option"):
        offer_of({"packages": [package]}, "server.json")
