"""The page behind a link of the operators' webhook: shows one call that waits for an operator, and takes the decision.

The link itself authorizes the decision: visitors are not authenticated. GET decides nothing, as link previews send it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from mcproxy.access.approval_links import PATH, ApprovalLinks
from mcproxy.admin.pages import Pages, decided
from mcproxy.admin.status_page import HEADERS, html_response

ELSEWHERE: Final = (
    "this link is of another replica, or of one that has ended: use it at the admin.public_url of its own"
)
_TOKEN = "token"


@dataclass(frozen=True)
class ApprovalPage:
    """Handlers of the page. `links` opens the token in a path, which names the call."""

    pages: Pages
    links: ApprovalLinks

    def routes(self) -> list[web.RouteDef]:
        """GET shows the call that a sealed link names, POST decides it. The link alone is the permission."""
        path = f"{PATH}/{{{_TOKEN}}}"
        return [web.get(path, self._show), web.post(path, self._decide)]

    async def _show(self, request: web.Request) -> web.Response:
        id = self._id(request)
        if self._is_elsewhere(request):
            return html_response(self.pages.approval(id, f"Not here: {ELSEWHERE}."), 421)
        return html_response(self.pages.approval(id), 200 if self._waits(id) else 410)

    async def _decide(self, request: web.Request) -> web.Response:
        id, as_json = self._id(request), request.content_type == "application/json"
        decision = await _decision(request, as_json=as_json)
        elsewhere = self._is_elsewhere(request)
        failed = ELSEWHERE if elsewhere else self.pages.gateway.decide(id, None, approve=decision == "allow")
        status = 200 if failed is None else 421 if elsewhere else 410
        if as_json:
            answer = {"decided": True} if failed is None else {"decided": False, "reason": failed}
            return web.json_response(answer, status=status, headers=HEADERS)
        return html_response(self.pages.approval(id, decided(failed)), status)

    def _id(self, request: web.Request) -> str:
        """The approval that a link is for. Raises web.HTTPNotFound where it is no link of ours."""
        id = self.links.opened(request.match_info[_TOKEN])
        if id is None:
            raise web.HTTPNotFound(text="this is no link of this gateway\n")
        return id

    def _is_elsewhere(self, request: web.Request) -> bool:
        return self.links.is_of_another_replica(request.match_info[_TOKEN])

    def _waits(self, id: str) -> bool:
        return any(call.id == id for call in self.pages.gateway.waiting_calls())


async def _decision(request: web.Request, *, as_json: bool) -> str:
    """`allow` or `deny`, of a form or of JSON. Raises web.HTTPBadRequest."""
    try:
        given = await request.json() if as_json else await request.post()
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        given = None
    decision = given.get("decision") if isinstance(given, Mapping) else None
    if not isinstance(decision, str) or decision not in {"allow", "deny"}:
        raise web.HTTPBadRequest(text="decision must be allow or deny\n")
    return decision
