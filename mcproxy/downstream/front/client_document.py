"""The gateway's own Client ID Metadata Document, for the authorization servers of its upstreams. Served to anyone.

Contains only what a login shows: a name, and redirect URIs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.responses import json
from mcproxy.http import server as http

DocumentFor = Callable[[str | None], dict[str, object] | None]
"""The document for a public URL; None if that cannot have one."""

_MAX_AGE: Final = "max-age=300"


def routes(context: TransportContext, path: str, document: DocumentFor) -> list[http.Route]:
    """Serves the document at `path`; 404 where `proxy.public_url` is no https URL."""

    async def serve(_request: http.Request, _found: Mapping[str, str]) -> http.Response:
        published = document(context.proxy.public_url)
        if published is None:
            raise http.NotFound
        return json(msgspec.json.encode(published), headers={"Cache-Control": _MAX_AGE})

    return [http.Route(method, path, serve) for method in ("GET", "HEAD")]
