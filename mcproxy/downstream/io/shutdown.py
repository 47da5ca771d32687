"""What clients of either era are told when the gateway shuts down."""

from __future__ import annotations

from typing import Final

SHUTTING_DOWN: Final = "the gateway is shutting down; try again"
CUT_OFF: Final = "the gateway shut down before the answer came; what became of the call is unknown"
