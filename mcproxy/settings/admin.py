"""What can be said of the operator's side: the listener with the status page, health and metrics."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mcproxy.settings.section import Positive, Section


class Admin(Section):
    """The operator's listener. Where callers are authenticated, operators are too."""

    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """The port of the status page, 0 for any free one; there is no page without."""
    host: str = "127.0.0.1"
    """The address to listen on. Elsewhere than on loopback only with authentication."""
    role: str = "operator"
    """The role that an authenticated caller needs to see the page."""
    max_watchers: Positive = 20
    """Pages of live calls and events that may be open at once."""
