"""Operators: callers with the operators' role, or any caller where callers are not authenticated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from mcproxy.access.identity import Identified
from mcproxy.call.identity import Principal
from mcproxy.downstream.io.responses import Refusal
from mcproxy.http import server as http
from mcproxy.protocol.jsonrpc import INVALID_REQUEST
from mcproxy.settings import Settings


def missing_role(settings: Settings, principal: Principal) -> str | None:
    """The reason why a principal is no operator; None if it is one, or where callers are not authenticated."""
    role = settings.admin.role
    granted = settings.access.policy.principals.get(principal.name, ())
    if not settings.access.authentication.required or role in principal.roles or role in granted:
        return None
    return f"{principal.name} lacks the role {role!r} (admin.role)"


def for_operators(
    handler: http.RoutedHandler,
    identify: Callable[[http.Request], Awaitable[Identified]],
    settings: Callable[[], Settings],
) -> http.RoutedHandler:
    """Wraps `handler` on the callers' listener: admits operators alone, where callers are authenticated."""

    async def guarded(request: http.Request, path: Mapping[str, str]) -> http.Answered:
        found = await identify(request)
        lack = missing_role(settings(), found.principal)
        if lack is not None:
            raise Refusal(403, INVALID_REQUEST, lack)
        return await handler(request, path)

    return guarded
