"""The gateway put together: what a reload leaves untouched, since nothing that it goes by differs."""

from __future__ import annotations

import sys

import pytest

from mcproxy.app import running
from mcproxy.settings import Settings

pytestmark = pytest.mark.anyio


def settings_of(idle: float = 60, **sections: object) -> Settings:
    upstream = {"name": "up", "prefix": "up", "command": sys.executable, "args": ["-c", ""], "timeouts": {"idle": idle}}
    return Settings.model_validate({"upstreams": [upstream], **sections})


async def test_r49_what_was_found_out_about_clients_stays_valid_where_an_upstream_alone_differs() -> None:
    async with running(settings_of()) as app:
        generation = app.context.generation
        app.reconfigure(settings_of(idle=30))
        assert app.context.generation is generation


@pytest.mark.parametrize(
    "sections",
    [
        {"proxy": {"allowed_hosts": ["elsewhere"]}},
        {"access": {"policy": {"default": "deny"}}},
        {"endpoints": {"one": {"upstreams": ["up"]}}},
    ],
)
async def test_r49_what_was_found_out_about_clients_is_found_out_anew_where_more_differs(sections: object) -> None:
    async with running(settings_of()) as app:
        generation = app.context.generation
        app.reconfigure(settings_of(**sections))  # type: ignore[arg-type]  # a dict, by its parameters
        assert app.context.generation is not generation


async def test_r49_a_header_that_goes_on_to_an_upstream_from_now_on_is_found_out_anew() -> None:
    bringing = {
        "name": "up",
        "prefix": "up",
        "url": "http://127.0.0.1:9",
        "credentials": {"forward": {"X-Token": "X-T"}},
    }
    async with running(settings_of()) as app:
        app.reconfigure(Settings.model_validate({"upstreams": [bringing]}))
        assert app.context.forwarded == {"x-token"}
