"""By way of which gateway a request goes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from mcproxy.cli.running.through import settings_for
from mcproxy.configuration.loading import Configuration, load_configuration

KEYS = "access: {authentication: {keys: {me: [{sha256: %s}]}%s}}\n"


def configured(folder: Path, text: str = "") -> Configuration:
    path = folder / "mcproxy.yaml"
    path.write_text("mcpServers: {a: {command: x}}\n" + text)
    return load_configuration(path, {})


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("MCPROXY_KEY", raising=False)


def test_where_no_gateway_runs_the_servers_are_started(tmp_path: Path) -> None:
    configuration = configured(tmp_path)
    assert settings_for(configuration, None, None) is configuration.settings


def test_a_url_is_used_as_it_is_with_the_names_that_it_shows(tmp_path: Path) -> None:
    (spec,) = settings_for(configured(tmp_path), "http://x.example/mcp", None).upstreams
    assert (spec.url, spec.prefix, spec.headers) == ("http://x.example/mcp", "", {})


def test_the_key_goes_into_the_header_that_the_gateway_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(b"k").hexdigest()
    plain = configured(tmp_path, KEYS % (digest, ""))
    assert settings_for(plain, "http://x/mcp", "k").upstreams[0].headers == {"Authorization": "Bearer k"}
    monkeypatch.setenv("MCPROXY_KEY", "from the environment")
    named = configured(tmp_path, KEYS % (digest, ", key_header: X-Key"))
    assert settings_for(named, "http://x/mcp", None).upstreams[0].headers == {"X-Key": "from the environment"}
