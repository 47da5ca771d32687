"""What is accepted from servers that deviate from the specifications in a way with exactly one reasonable reading.

Small functions, each with the report that it comes from; nearly all are pure. `oddities` counts what they accept. An
ordinary answer passes none of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from mcproxy.protocol.eras import HANDSHAKE_VERSIONS, V2025_11_25
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, INVALID_REQUEST

REFUSALS_QUOTED: Final = 4096
"""Characters of a refusal in which versions are looked for."""
_REVISION: Final = re.compile(r"(?<!\d)20\d\d-\d\d-\d\d(?!\d)")

_PERHAPS_VERSION: Final = frozenset({INVALID_PARAMS, INVALID_REQUEST, 400})


def next_version(refusal: str, refused: Collection[str]) -> str | None:
    """The version to say `initialize` with after a refusal: the newest that it lists, else one step down.

    typescript-sdk #1004, python-sdk #832 and Slack's server: versions stand in `data.supported`, `data.expected`,
    `data.supportedVersions`, the message, the body, or nowhere. `refused` are those that were tried; None if there is
    nothing left to try.
    """
    left = [version for version in reversed(HANDSHAKE_VERSIONS) if version not in refused]
    listed = set(_REVISION.findall(refusal[:REFUSALS_QUOTED]))
    return next((version for version in left if version in listed), left[0] if left else None)


def speaks_of_versions(refusal: str) -> bool:
    """Whether a refusal of `initialize` names a revision, or the version as its cause."""
    return _REVISION.search(refusal[:REFUSALS_QUOTED]) is not None or "version" in refusal[:REFUSALS_QUOTED].lower()


def may_be_about_versions(refusal: str, code: int | None) -> bool:
    """Whether another version is worth a try, after a refusal with this JSON-RPC code or HTTP status.

    A server that fails whatever it is asked gets none, unless it says so.
    """
    return code in _PERHAPS_VERSION or speaks_of_versions(refusal)


def has_parts(version: str) -> bool:
    """Whether `sampling` and `elicitation` have parts in a version (2025-11-25)."""
    return version >= V2025_11_25
