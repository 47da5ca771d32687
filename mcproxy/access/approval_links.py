"""Links for deciding one call that waits for an operator: sealed, and handed out by the operators' webhook.

A link alone authorizes the decision on one approval: its token is sealed, and is valid while the call waits. Decides
nothing, and knows no call.
"""

from __future__ import annotations

from typing import Final

from mcproxy.sealing import Sealer, Unsealable, label_of

PATH: Final = "/approvals"
"""The path before the token, on the operators' listener."""

_PURPOSE: Final = "approval"


class ApprovalLinks:
    """`base` is the URL of the operators' listener once it is known; without it there are no links."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer
        self.base: str | None = None

    def link(self, id: str) -> str | None:
        """The link for the approval `id`; None where there is no listener for it."""
        if self.base is None:
            return None
        return f"{self.base.rstrip('/')}{PATH}/{self._sealer.seal_here(_PURPOSE, id.encode())}"

    def is_of_another_replica(self, token: str) -> bool:
        """Whether a valid token is for a call of another process, which alone can decide it."""
        return label_of(token) != self._sealer.label

    def opened(self, token: str) -> str | None:
        """The id of the approval that a token is for; None if no replica of this gateway sealed the token."""
        try:
            return self._sealer.open(_PURPOSE, token).decode()
        except Unsealable:
            return None
