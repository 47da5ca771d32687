"""Errors become outcomes here, and at no other place of the gateway: refusals of ours, and crashes.

Around every call as a stage of the pipeline, and around what outlives a call's own request: a parked call, and a read
that several callers share. An upstream's error is an outcome already, and passes.
"""

from __future__ import annotations

from typing import Final

import structlog

from mcproxy.call.calls import Call, Failed, Handler, Outcome
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, ErrorObject
from mcproxy.protocol.methods import Method
from mcproxy.telemetry.metrics import UNKNOWN

log = structlog.get_logger()

CRASHED: Final = Failed(ErrorObject(INTERNAL_ERROR, "internal error of the gateway: see its log"), Party.GATEWAY)


def contained(handler: Handler) -> Handler:
    """Turns refusals into failures, and a crash of ours into one that tells the client nothing."""

    async def containing(call: Call) -> Outcome:
        try:
            return await handler(call)
        except McpError as refusal:
            party = Party.UPSTREAM if refusal.reason is Reason.UNAVAILABLE else Party.CLIENT
            return Failed(refusal.error(), party, refusal.reason)
        except Exception:
            log.exception("a call crashed", method=method_label(call.row))
            return CRASHED

    return containing


def method_label(row: Method) -> str:
    """The method's name as a label of metrics and logs: only the names of known methods are (requirement R52)."""
    return row.name if row.known else UNKNOWN
