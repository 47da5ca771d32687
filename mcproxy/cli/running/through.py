"""Requests through a running gateway, instead of one of the command's own that would start every server again."""

from __future__ import annotations

import os
from typing import Final

from mcproxy.cli.running.client import NotRunning, RefusedByGateway, RunningGateway
from mcproxy.configuration.loading import Configuration
from mcproxy.settings import Proxy, Settings, UpstreamSettings

THE_GATEWAY: Final = "mcproxy"
"""The name of the gateway that runs, as the only server of the command's own."""
KEY_VARIABLE: Final = "MCPROXY_KEY"
"""The environment variable with the API key for commands."""


def settings_for(configuration: Configuration, url: str | None, key: str | None) -> Settings:
    """The settings for a request: of a gateway whose only server is the one that runs, with its names unchanged.

    Those of the configuration where none runs, or where it wants a key and there is none: then the servers are started.
    """
    settings = configuration.settings
    key = _key(key)
    if url is None and (key or not settings.access.authentication.required):
        url = _running_at(configuration)
    if url is None:
        return settings
    return settings_at(url, key, settings.access.authentication.key_header)


def settings_at(url: str, key: str | None, header: str | None = None) -> Settings:
    """The settings of a gateway whose only server is the one at `url`, which takes a key in `header`."""
    key = _key(key)
    value = {} if key is None else {header: key} if header else {"Authorization": f"Bearer {key}"}
    return Settings(proxy=Proxy(), upstreams=(UpstreamSettings(name=THE_GATEWAY, prefix="", url=url, headers=value),))


def _key(key: str | None) -> str | None:
    return key or os.environ.get(KEY_VARIABLE)


def _running_at(configuration: Configuration) -> str | None:
    """The URL of the gateway that runs with this configuration, where one serves HTTP without encryption."""
    try:
        url = RunningGateway(configuration.path).get("/status")["url"]
    except (NotRunning, RefusedByGateway):
        return None
    return url if isinstance(url, str) and url.startswith("http://") else None
