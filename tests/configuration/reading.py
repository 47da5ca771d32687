"""A configuration written to a folder and read again: what it becomes, or its problems as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcproxy.configuration.loading import Configuration, load_configuration
from mcproxy.configuration.problems import ConfigurationError
from mcproxy.settings import UpstreamSettings

SENTINEL = "s3ntinel-value-of-a-secret"
"""A value that no message may show."""


def configure(
    folder: Path, text: str, environ: dict[str, str] | None = None, name: str = "mcproxy.yaml"
) -> Configuration:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return load_configuration(path, environ or {})


def upstream(
    folder: Path, text: str, environ: dict[str, str] | None = None, name: str = "mcproxy.yaml"
) -> UpstreamSettings:
    (only,) = configure(folder, text, environ, name).settings.upstreams
    return only


def problems(folder: Path, text: str, environ: dict[str, str] | None = None, name: str = "mcproxy.yaml") -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        configure(folder, text, environ, name)
    return [str(problem).removeprefix(f"{folder}/") for problem in caught.value.problems]
