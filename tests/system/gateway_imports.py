"""What a gateway imports as it starts, for the process that gateways are forked from."""

from mcproxy.cli.runtime import unimportable

with unimportable("rich"):  # as `mcproxy serve` does
    import structlog  # noqa: F401
from mcproxy.cli import commands, serving  # noqa: F401
