"""Settings of the operators' listener (`admin`): the status page, health and metrics."""

from typing import Annotated

from pydantic import Field

from mcproxy.settings.loopback import SafeUrl
from mcproxy.settings.section import Positive, Section, Whole


class Admin(Section):
    """The operators' listener: status page, health and metrics. Operators authenticate where callers do."""

    port: Annotated[Whole, Field(ge=0, le=65535)] | None = None
    """Port of the status page, 0 for any free one; without it there is no status page."""
    host: str = "127.0.0.1"
    """Address to listen on; other addresses than loopback need authentication."""
    public_url: SafeUrl | None = None
    """URL at which operators reach this listener through a reverse proxy: https, or http on loopback.

    Links to calls that wait for approval begin with it; by default with the address of the listener.
    """
    role: str = "operator"
    """Role that an authenticated caller needs to see the status page."""
    socket: bool = True
    """Answer commands (`mcproxy status`, `restart`, `logs`, ...) of the same user on this machine, at a Unix socket."""
    max_watchers: Positive = 20
    """Pages with live calls and events that may be open at once."""
