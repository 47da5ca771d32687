"""OAuth protected resource metadata (RFC 9728), challenges (RFC 6750, section 3) and token audiences (RFC 8707).

Each endpoint is a resource, named by its URL; so is the gateway as a whole. Does not reveal which endpoints exist:
before authentication every name is answered alike. Judges no token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec

from mcproxy.access.identity import Fault, Identity
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.responses import json
from mcproxy.http import server as http
from mcproxy.settings import Paths, Proxy
from mcproxy.settings.access.authentication import Authentication

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_UNQUOTABLE: Final = re.compile(r"[^\x20\x21\x23-\x5B\x5D-\x7E]")


class TargetFacts(Protocol):
    """The facts of a request that name the resource it is for."""

    @property
    def fields(self) -> http.Headers:
        """The header fields."""

    @property
    def path(self) -> str:
        """Decoded."""

    @property
    def raw_path(self) -> str:
        """The path as sent, percent-encoded."""

    @property
    def scheme(self) -> str:
        """`http` or `https`."""

    @property
    def local(self) -> tuple[str, int] | None:
        """The local address and port of the connection; None if it has no IP address."""


def base_url(proxy: Proxy, request: TargetFacts) -> str:
    """The URL to which endpoints' paths are appended: the public URL, else the URL that the request was sent to.

    In the latter case the host name comes from the checked Host header, and the port from the connection.
    """
    if proxy.public_url is not None:
        return proxy.public_url
    usual = _DEFAULT_PORTS[request.scheme]
    port = request.local[1] if request.local is not None else usual
    name = urlsplit(f"//{request.fields.get('host', '')}").hostname or ""
    host = f"[{name}]" if ":" in name else name
    return f"{request.scheme}://{host}" + ("" if port == usual else f":{port}")


def is_audience(proxy: Proxy, request: TargetFacts, audience: str) -> bool:
    """Whether `audience` names the endpoint of a request, or the gateway as a whole (RFC 8707)."""
    base, audience = base_url(proxy, request), audience.removesuffix("/")
    if audience in {base, base + _endpoint(proxy.paths, request)}:
        return True
    # A POST of 2024-11-05 carries the token for its event stream, wherever that is.
    posts = request.path == proxy.paths.messages
    return posts and audience.startswith(base) and _is_events(proxy.paths, audience.removeprefix(base))


def resource_url(proxy: Proxy, request: TargetFacts) -> str:
    """The URL of a request's endpoint: the audience of a token for it."""
    return base_url(proxy, request) + _endpoint(proxy.paths, request)


def metadata_url(proxy: Proxy, request: TargetFacts) -> str:
    """The URL of the metadata of a request's endpoint (RFC 9728, section 3.1)."""
    parts = urlsplit(resource_url(proxy, request))
    return f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{parts.path}"


def challenge(
    context: TransportContext, authentication: Authentication, request: TargetFacts, fault: Fault, sentence: str
) -> str:
    """The `WWW-Authenticate` header of a refusal (basic/authorization, "Protected Resource Metadata Discovery")."""
    parameters = {"realm": context.proxy.name}
    if authentication.oauth.issuers:
        parameters["resource_metadata"] = metadata_url(context.proxy, request)
        if authentication.oauth.required_scopes:
            parameters["scope"] = " ".join(authentication.oauth.required_scopes)
    # RFC 6750, section 3.1: a request without credentials gets no error code.
    if fault is not Fault.MISSING:
        parameters |= {"error": fault.value, "error_description": sentence}
    return "Bearer " + ", ".join(f'{name}="{_UNQUOTABLE.sub("", value)}"' for name, value in parameters.items())


def routes(context: TransportContext, identity: Identity) -> list[http.Route]:
    """The metadata documents, served without identity."""

    async def serve(request: http.Request, _found: Mapping[str, str]) -> http.Response:
        oauth = identity.settings.oauth
        resource = _named(context.proxy, request)
        # R41: without OAuth these are real 404s, or clients would go looking for an authorization server.
        if resource is None or not oauth.issuers:
            raise http.NotFound
        document: dict[str, object] = {
            "resource": resource,
            "authorization_servers": [issuer.issuer for issuer in oauth.issuers],
            "bearer_methods_supported": ["header"],
            "resource_name": context.proxy.name,
        }
        if scopes := sorted({*oauth.required_scopes, *oauth.scopes_supported}):
            document["scopes_supported"] = scopes
        return json(msgspec.json.encode(document))

    paths = (WELL_KNOWN, WELL_KNOWN + "/{rest...}")
    return [http.Route(method, path, serve) for path in paths for method in ("GET", "HEAD")]


def _endpoint(paths: Paths, request: TargetFacts) -> str:
    """The path of a request's endpoint; of a POST of 2024-11-05, that of its event stream."""
    return paths.sse if request.path == paths.messages else request.raw_path.removesuffix("/")


def _named(proxy: Proxy, request: http.Request) -> str | None:
    """The resource whose metadata a request is for; None if no endpoint can have that path."""
    base = base_url(proxy, request)
    tail = request.raw_path.removeprefix(WELL_KNOWN).removesuffix("/")
    path = tail.removeprefix(urlsplit(base).path)
    return base + path if not path or _is_streamable(proxy.paths, path) or _is_events(proxy.paths, path) else None


def _is_streamable(paths: Paths, path: str) -> bool:
    """Whether an endpoint of Streamable HTTP can have this path."""
    return _is_below(paths.mcp, path) or _is_part(paths.servers, "mcp", path)


def _is_events(paths: Paths, path: str) -> bool:
    """Whether an event stream of 2024-11-05 can have this path."""
    return _is_below(paths.sse, path) or _is_part(paths.servers, "sse", path)


def _is_below(whole: str, path: str) -> bool:
    return re.fullmatch(re.escape(whole) + r"(/[^/]+)?", path) is not None


def _is_part(servers: str, end: str, path: str) -> bool:
    return re.fullmatch(rf"{re.escape(servers)}/[^/]+/{end}", path) is not None
