"""Everything that wraps a call, as a gateway with every feature on has it, for the page on the architecture."""

from __future__ import annotations

import anyio

from mcproxy.app import running
from mcproxy.gateway.feature import PipelineRow
from mcproxy.settings import Settings

EVERYTHING = {
    "proxy": {"tracing": {"enabled": True}},
    "admin": {"port": 0},
    "cluster": {"redis": "redis://127.0.0.1:9"},
    "access": {
        "pins": {"mode": "enforce"},
        "limits": {"rules": {"calls": {"rate": "10/s"}}},
        "hooks": [
            {"url": "http://127.0.0.1:9", "phase": phase, "on": ["tools/call"], "secret": "s" * 32}
            for phase in ("before", "after")
        ],
    },
    "endpoints": {"all": {"discovery": "search", "upstreams": ["notes"]}},
    "upstreams": [{"name": "notes", "prefix": "notes", "command": "notes", "results": {"max_bytes": 4096}}],
}


def stages(_: str) -> str:
    """The pipeline as a table, from the client to the server."""
    rows = [f"| {row.side} | `{row.place}` | {row.feature} | {row.about} |" for row in anyio.run(_pipeline)]
    return "\n".join(["| side | place | feature | what it does |", "|---|---|---|---|", *rows])


async def _pipeline() -> list[PipelineRow]:
    async with running(Settings.model_validate(EVERYTHING), connects=False) as app:
        return app.gateway.pipeline()
