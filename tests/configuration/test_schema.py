"""The JSON Schema of the configuration, and the examples in config/ that must agree with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from mcproxy.configuration.loading import load
from mcproxy.configuration.schema import schema
from mcproxy.settings import Endpoint, Settings, ToolOverride, UpstreamSettings
from mcproxy.settings.access.policy import Condition, Rule
from tests.configuration.reference import rendered

CONFIG = Path(__file__).parents[2] / "config"


@pytest.mark.parametrize("path", sorted(CONFIG.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_loads(path: Path) -> None:
    assert load(path, {}).upstreams


def test_the_reference_says_the_defaults() -> None:
    settings = load(CONFIG / "reference.yaml", {})
    assert settings == Settings(
        upstreams=(UpstreamSettings(name="example", prefix="example", command="example-server"),)
    )


def test_the_reference_names_every_key() -> None:
    text = (CONFIG / "reference.yaml").read_text()
    document = yaml.safe_load(text)
    assert missing(Settings(), document) == ["upstreams"]
    example = UpstreamSettings(name="example", prefix="example")
    assert missing(example, document["mcpServers"]["example"]) == ["name"]
    for section in (ToolOverride, Rule, Condition, Endpoint):
        assert [key for key in section.model_fields if f"{key}: " not in text] == []


def test_the_reference_explains_each_key_as_the_schema_does() -> None:
    text = (CONFIG / "reference.yaml").read_text()
    assert text == rendered(text), "write it anew: python -m tests.configuration.reference"


def missing(model: BaseModel, document: dict[str, Any]) -> list[str]:
    """The keys of a model, and of the models in it, that a document does not name."""
    keys = [key for key in type(model).model_fields if key not in document]
    inner = {key: value for key, value in model if isinstance(value, BaseModel) and key in document}
    return keys + [f"{key}.{deep}" for key, value in inner.items() for deep in missing(value, document[key])]


def test_every_key_of_the_schema_is_described() -> None:
    definitions = schema()["$defs"]
    undescribed = [
        f"{name}.{key}"
        for name, definition in definitions.items()
        for key, property in definition["properties"].items()
        if "description" not in property
    ]
    assert undescribed == []


def test_the_schema_takes_what_a_host_writes() -> None:
    server = schema()["$defs"]["Server"]
    assert server["additionalProperties"] is False
    assert "required" not in server
    assert {"command", "url", "prefix", "serverUrl", "envFile", "disabled", "alwaysAllow"} <= set(server["properties"])
    assert "name" not in server["properties"]


def test_the_schema_allows_texts_with_units() -> None:
    definitions = schema()["$defs"]
    assert definitions["Proxy"]["properties"]["keep_alive"]["type"] == ["number", "string"]
    assert definitions["LimitSettings"]["properties"]["max_body_bytes"]["type"] == ["integer", "string"]
