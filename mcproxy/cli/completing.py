"""Values that shells complete: hosts, levels of the log, and the servers of the configuration.

Imported by every command: what reads the configuration is imported by the function that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

LISTS: Final = ("tools", "resources", "prompts", "upstreams")
"""What `mcproxy list` prints."""


def hosts(incomplete: str) -> Sequence[str]:
    """The hosts that `connect` and `import` know."""
    from mcproxy.configuration.hosts.locations import HOSTS

    return [name for name in HOSTS if name.startswith(incomplete)]


def list_names(incomplete: str) -> Sequence[str]:
    """The lists that `mcproxy list` prints."""
    return [name for name in LISTS if name.startswith(incomplete)]


def levels(incomplete: str) -> Sequence[str]:
    """The levels that `loglevel` takes."""
    return [level for level in ("debug", "info", "warning", "error", "critical") if level.startswith(incomplete)]


def servers(incomplete: str) -> Sequence[str]:
    """The servers of the configuration that is found without `--config`; none where it cannot be read."""
    from mcproxy.configuration.hosts.translation import SERVER_MAPS
    from mcproxy.configuration.loading import find, read_document
    from mcproxy.configuration.problems import ConfigurationError

    try:
        members = read_document(find()).members
    except ConfigurationError:
        return []
    return [
        name for key in SERVER_MAPS if key in members for name in members[key].members if name.startswith(incomplete)
    ]
