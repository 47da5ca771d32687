"""Render the login pages. Every value is escaped; nothing is loaded, no script runs, no other page may frame them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from mcproxy.http import server as http

if TYPE_CHECKING:
    from jinja2 import Environment

STYLE: Final = """
:root { color-scheme: light dark; font: 1.05rem/1.5 system-ui, sans-serif }
body { margin: 3rem auto; max-width: 34rem; padding: 0 1rem }
h1 { font-size: 1.4rem } dt { font-weight: 600 } dd { margin: 0 0 .6rem; overflow-wrap: anywhere }
button { font: inherit; padding: .5rem 1rem; cursor: pointer }
input[type=password] { font: inherit; padding: .4rem; width: 100%; box-sizing: border-box }
form { margin: 1rem 0 } label { display: block; margin-bottom: .4rem }
.why { border-left: .25rem solid; padding-left: 1rem }
"""
_DIGEST: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

HEADERS: Final = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_DIGEST}'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Not `no-referrer`, with which browsers send `Origin: null` with our own forms. Other sites learn no more by this.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class LoginTemplates:
    """The templates of the login pages, read when the first page is asked for."""

    @cached_property
    def _templates(self) -> Environment:
        from jinja2 import Environment, PackageLoader, StrictUndefined

        loader = PackageLoader("mcproxy.login")
        return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)

    def page(
        self, template: str, status: int = 200, fields: Mapping[str, str] | None = None, **values: object
    ) -> http.Response:
        """A page as a response; `fields` are further header fields."""
        text = self._templates.get_template(f"{template}.html").render(style=STYLE, **values)
        return http.Response(status, text.encode(), {**HEADERS, **(fields or {})})
