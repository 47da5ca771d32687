"""`mcproxy check`: whether the configuration is valid. Connects to nothing."""

from __future__ import annotations

from mcproxy.cli.output import print_json, print_out
from mcproxy.settings import Settings


def validate(settings: Settings, *, as_json: bool) -> None:
    names = [upstream.name for upstream in settings.upstreams if upstream.enabled]
    if as_json:
        print_json({"valid": True, "upstreams": names})
    else:
        print_out(f"valid, {len(names)} upstreams")
