"""The twin of `mcproxy.settings.upstreams.forwarding`; and what a file may not forward (R40)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from mcproxy.configuration.loading import load
from mcproxy.configuration.problems import ConfigurationError
from mcproxy.settings import Settings
from mcproxy.settings.upstreams.forwarding import CredentialSettings

KEYS = {"authentication": {"keys": {"ann": [{"sha256": "0" * 64}]}, "key_header": "X-API-Key"}}


def loaded(folder: Path, forward: dict[str, str], access: object = None, **server: Any) -> Settings:
    spec = {"url": "http://127.0.0.1:1/mcp", **server, "credentials": {"forward": forward}}
    file = folder / "mcproxy.yaml"
    file.write_text(yaml.safe_dump({"mcpServers": {"up": spec}, **({"access": access} if access else {})}))
    return load(file, {})


def test_a_value_goes_on_alone_or_in_a_template() -> None:
    credentials = CredentialSettings(forward={"X-Token": "Authorization: Bearer {}", "X-Org": "X-Tenant"})
    assert credentials.fields({"x-token": "t{}", "x-org": "o"}) == {"Authorization": "Bearer t{}", "X-Tenant": "o"}


def test_what_is_missing_is_named_as_it_is_configured() -> None:
    credentials = CredentialSettings(forward={"X-Token": "Authorization", "X-Org": "X-Tenant"})
    assert credentials.missing(["x-token"]) == ["X-Org"]
    assert credentials.missing(["x-token", "x-org"]) == []


@pytest.mark.parametrize(
    "forward",
    [
        {"Cookie": "Cookie"},
        {"Proxy-Authorization": "Authorization"},
        {"Mcp-Session-Id": "X-Session"},
        {"X-Token": "Mcp-Session-Id"},
        {"X-Token": "Host"},
        {"X-Token": "Content-Length"},
        {"X-Token": "Authorization", "x-token": "X-Other"},
        {"X-Token": "Authorization", "X-Other": "authorization"},
        {"X-Token": "Authorization: Bearer"},
        {"X-Token": "Authorization: {}\r\nX-Evil: 1"},
        {"X Token": "Authorization"},
    ],
)
def test_r40_what_may_not_go_on_is_refused(forward: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        CredentialSettings(forward=forward)


@pytest.mark.parametrize("header", ["Authorization", "authorization", "X-API-Key"])
def test_r40_what_authenticates_a_caller_to_the_gateway_goes_no_further(tmp_path: Path, header: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be forwarded"):
        loaded(tmp_path, {header: "X-Theirs"}, KEYS)


def test_authorization_may_go_on_where_the_gateway_has_no_use_for_it(tmp_path: Path) -> None:
    settings = loaded(tmp_path, {"Authorization": "Authorization"})
    assert settings.upstreams[0].credentials.forward == {"Authorization": "Authorization"}


def test_credentials_are_for_servers_over_http_and_make_connections_by_themselves(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no effect"):
        loaded(tmp_path, {"X-Token": "Authorization"}, connection="session")
    file = tmp_path / "child.yaml"
    file.write_text("mcpServers: {up: {command: x, credentials: {forward: {X-Token: Authorization}}}}")
    with pytest.raises(ConfigurationError, match="is for a server with a url"):
        load(file, {})
