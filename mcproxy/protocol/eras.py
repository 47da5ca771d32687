"""The protocol revisions and their two eras, handshake and stateless; the reserved keys of `_meta`."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Era(Enum):
    """How a peer begins: with `initialize` and a session, or with everything in each request."""

    HANDSHAKE = "handshake"
    STATELESS = "stateless"


V2024_11_05: Final = "2024-11-05"
V2025_03_26: Final = "2025-03-26"
V2025_06_18: Final = "2025-06-18"
V2025_11_25: Final = "2025-11-25"
V2026_07_28: Final = "2026-07-28"

HANDSHAKE_VERSIONS: Final = (V2024_11_05, V2025_03_26, V2025_06_18, V2025_11_25)
STATELESS_VERSIONS: Final = (V2026_07_28,)
LATEST_HANDSHAKE: Final = HANDSHAKE_VERSIONS[-1]
LATEST: Final = STATELESS_VERSIONS[-1]

META_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
META_CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
META_CLIENT_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
META_LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
META_SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
META_SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
META_PROGRESS_TOKEN: Final = "progressToken"

HOP_META: Final = frozenset(
    {
        META_VERSION,
        META_CLIENT_INFO,
        META_CLIENT_CAPABILITIES,
        META_LOG_LEVEL,
        META_SUBSCRIPTION,
        META_PROGRESS_TOKEN,
    }
)
"""Keys of `_meta` that belong to one hop: removed where a request enters, set anew where it leaves."""


def negotiate(requested: str) -> str:
    """The handshake version to answer `initialize` with: the requested one, else our latest (lifecycle, 2025-11-25)."""
    return requested if requested in HANDSHAKE_VERSIONS else LATEST_HANDSHAKE


def has_batches(version: str) -> bool:
    """Whether a version has JSON-RPC batches: only 2025-03-26 does."""
    return version == V2025_03_26


def polls(version: str) -> bool:
    """Whether a server may prime a stream, close it and be polled for the rest (2025-11-25, transports)."""
    return version >= V2025_11_25
