"""Our own refusals as exceptions, why calls fail, and whose fault it was."""

from __future__ import annotations

from enum import Enum

from mcproxy.protocol.jsonrpc import ErrorObject, raw


class McpError(Exception):
    """Our own refusal of a request: a JSON-RPC code and a sentence that says what was wrong and what to do.

    `data` becomes the error's `data`; any encodable type. `reason` is for metrics and audit.
    """

    def __init__(self, code: int, message: str, data: object = None, *, reason: Reason | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.reason = reason or Reason.PROTOCOL_ERROR

    def error(self) -> ErrorObject:
        """What the client is answered with; `data` is encoded."""
        return ErrorObject(self.code, self.message, None if self.data is None else raw(self.data))


class Reason(Enum):
    """Why a call failed; the values are the `outcome` label of metrics (requirement R52)."""

    PROTOCOL_ERROR = "protocol_error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    DENIED = "denied"
    RATE_LIMITED = "rate_limited"
    """A limit of the gateway's own (`access.limits`)."""
    UNAVAILABLE = "unavailable"
    APPROVAL_DENIED = "approval_denied"
    APPROVAL_EXPIRED = "approval_expired"
    APPROVAL_WITHDRAWN = "approval_withdrawn"
    """No approver could be asked, the caller dismissed the question, or the policy changed meanwhile."""
    LOGIN_NEEDED = "login_needed"
    """A person has to log in at the upstream first."""


class Party(Enum):
    """The party at fault."""

    CLIENT = "client"
    GATEWAY = "gateway"
    UPSTREAM = "upstream"
