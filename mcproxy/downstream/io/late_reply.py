"""The response to a POST, which chooses late between JSON and an event stream (requirements R55, R62).

JSON if the answer comes first; a stream if another message does, or no message for `stream_after` seconds. What is sent
on the stream, and whether it can be resumed, is for each era to say.
"""

from __future__ import annotations

import msgspec

from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.event_stream import EventStream
from mcproxy.downstream.io.responses import Accepted
from mcproxy.http import server as http


class LateReply(msgspec.Struct, eq=False, kw_only=True):
    """Chooses the form of one response. A subclass opens the stream."""

    context: TransportContext
    request: http.Request
    accepted: Accepted
    """The forms that the client accepts: one of them at least (`responses.check_accept`)."""
    events: EventStream | None = None
    """The event stream, once begun."""
    settled: bool = False
    """Whether no stream can begin any more: the form is chosen, or the client is gone."""

    def begin(self) -> None:
        """Chooses at once if the client accepts one form only, else later."""
        if not self.accepted.json:
            self.begin_stream()
        elif self.accepted.events:
            self.context.stream_deadlines.add(self)

    def expired(self) -> None:
        """Chooses the stream, as no message came within `stream_after` seconds."""
        self.begin_stream()

    def begin_stream(self) -> None:
        """Chooses the stream, unless the form is chosen already."""
        if not self.settled:
            self.settle()
            self.events = self.open_stream()

    def open_stream(self) -> EventStream:
        """Opens the stream with what there is to send."""
        raise NotImplementedError

    def settle(self) -> None:
        """Lets no stream begin any more. Idempotent."""
        self.settled = True
        self.context.stream_deadlines.discard(self)
