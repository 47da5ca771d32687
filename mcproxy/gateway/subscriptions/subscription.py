"""One subscription of the gateway at an upstream, however many clients watch the resource: a state machine.

`TRANSITIONS` is the whole table; `resources` feeds it events, and sends the requests that a state calls for. Sends
nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from mcproxy.call.calls import Failed


class SubscriptionState(Enum):
    """What the upstream was asked for, and what it is known to report."""

    WANTED = "clients watch the resource, and the upstream is to be asked"
    CONNECTING = "the upstream is being asked by the request that makes the link"
    ASKED = "the upstream was asked, and has not answered"
    MADE = "the upstream agreed, and reports updates"
    DOUBTFUL = "the upstream agreed, may have dropped it since, and is to be asked again"
    RENEWING = "the upstream is being asked again, and may report updates already"
    REFUSED = "the upstream refused, and is asked again after a pause"
    UNSURE = "the upstream may report updates though it refused or did not answer; it is asked again after a pause"
    LEFT_CONNECTING = "the last client left while the request that makes the link was under way"
    LEFT_ASKED = "the last client left while the upstream was being asked"
    UNWANTED = "the last client left, and the upstream is to be told"
    ENDED = "no client watches, and the upstream reports nothing"


class SubscriptionEvent(Enum):
    """An event in the life of a subscription."""

    SENT = "the upstream is asked over a link that is up"
    SENT_UNCONNECTED = "the upstream is asked, and the request makes the link"
    AGREED = "the upstream agreed"
    REFUSED = "the upstream refused"
    UNANSWERED = "the upstream did not answer in time"
    LINK_UP = "the link came up"
    LINK_LOST = "the link was lost"
    CHANNEL_RESTORED = "the push channel is there again after a gap"
    LEFT = "the last client left"
    WATCHED = "a client watches again"
    WITHDRAWN = "the upstream is told that no client watches"


_S, _E = SubscriptionState, SubscriptionEvent
TRANSITIONS: Final[Mapping[SubscriptionState, Mapping[SubscriptionEvent, SubscriptionState]]] = {
    _S.WANTED: {
        _E.SENT: _S.ASKED,
        _E.SENT_UNCONNECTED: _S.CONNECTING,
        _E.AGREED: _S.WANTED,  # the answer of a link that is gone since
        _E.REFUSED: _S.WANTED,
        _E.UNANSWERED: _S.WANTED,
        _E.LINK_UP: _S.WANTED,
        _E.LINK_LOST: _S.WANTED,
        _E.CHANNEL_RESTORED: _S.WANTED,
        _E.LEFT: _S.ENDED,
    },
    _S.CONNECTING: {
        _E.AGREED: _S.WANTED,
        _E.REFUSED: _S.WANTED,  # no link; its owner's next call makes one
        _E.UNANSWERED: _S.WANTED,
        _E.LINK_UP: _S.ASKED,
        _E.LINK_LOST: _S.WANTED,
        _E.CHANNEL_RESTORED: _S.CONNECTING,
        _E.LEFT: _S.LEFT_CONNECTING,
    },
    _S.ASKED: {
        _E.AGREED: _S.MADE,
        _E.REFUSED: _S.REFUSED,
        _E.UNANSWERED: _S.UNSURE,
        _E.LINK_UP: _S.WANTED,
        _E.LINK_LOST: _S.WANTED,
        _E.CHANNEL_RESTORED: _S.ASKED,
        _E.LEFT: _S.LEFT_ASKED,
    },
    _S.MADE: {
        _E.LINK_UP: _S.WANTED,
        _E.LINK_LOST: _S.WANTED,
        _E.CHANNEL_RESTORED: _S.DOUBTFUL,
        _E.LEFT: _S.UNWANTED,
    },
    _S.DOUBTFUL: {
        _E.SENT: _S.RENEWING,
        _E.LINK_UP: _S.WANTED,
        _E.LINK_LOST: _S.WANTED,
        _E.CHANNEL_RESTORED: _S.DOUBTFUL,
        _E.LEFT: _S.UNWANTED,
    },
    _S.RENEWING: {
        _E.AGREED: _S.MADE,
        _E.REFUSED: _S.UNSURE,
        _E.UNANSWERED: _S.UNSURE,
        _E.LINK_UP: _S.WANTED,
        _E.LINK_LOST: _S.WANTED,
        _E.CHANNEL_RESTORED: _S.RENEWING,
        _E.LEFT: _S.LEFT_ASKED,
    },
    _S.REFUSED: {
        _E.SENT: _S.ASKED,
        _E.LINK_UP: _S.WANTED,
        _E.LINK_LOST: _S.WANTED,
        _E.CHANNEL_RESTORED: _S.WANTED,
        _E.LEFT: _S.ENDED,
    },
    _S.UNSURE: {
        _E.SENT: _S.RENEWING,
        _E.LINK_UP: _S.WANTED,
        _E.LINK_LOST: _S.WANTED,
        _E.CHANNEL_RESTORED: _S.DOUBTFUL,
        _E.LEFT: _S.UNWANTED,
    },
    _S.LEFT_CONNECTING: {
        _E.AGREED: _S.ENDED,
        _E.REFUSED: _S.ENDED,
        _E.UNANSWERED: _S.ENDED,
        _E.LINK_UP: _S.LEFT_ASKED,
        _E.LINK_LOST: _S.ENDED,
        _E.CHANNEL_RESTORED: _S.LEFT_CONNECTING,
        _E.WATCHED: _S.CONNECTING,
    },
    _S.LEFT_ASKED: {
        _E.AGREED: _S.UNWANTED,
        _E.REFUSED: _S.UNWANTED,  # it may have agreed before
        _E.UNANSWERED: _S.UNWANTED,
        _E.LINK_UP: _S.ENDED,
        _E.LINK_LOST: _S.ENDED,
        _E.CHANNEL_RESTORED: _S.LEFT_ASKED,
        _E.WATCHED: _S.RENEWING,
    },
    _S.UNWANTED: {
        _E.LINK_UP: _S.ENDED,
        _E.LINK_LOST: _S.ENDED,
        _E.CHANNEL_RESTORED: _S.UNWANTED,
        _E.WATCHED: _S.DOUBTFUL,
        _E.WITHDRAWN: _S.ENDED,
    },
}

TO_ASK: Final = frozenset(state for state, row in TRANSITIONS.items() if SubscriptionEvent.SENT in row)
"""States in which a request to the upstream is due."""

HELD: Final = frozenset(
    {SubscriptionState.MADE, SubscriptionState.DOUBTFUL, SubscriptionState.RENEWING, SubscriptionState.UNWANTED}
)
"""States in which the upstream is assumed to report updates."""


class UpstreamSubscription:
    """A subscription's state, and the facts that go with it."""

    __slots__ = ("failures", "gap", "refusal", "state")

    def __init__(self) -> None:
        self.state = SubscriptionState.WANTED
        self.gap = False
        """Whether updates may have been missed, of which watchers have yet to be told."""
        self.failures = 0
        """How often in a row the upstream refused."""
        self.refusal: Failed | None = None
        """The upstream's last answer, if it was a refusal."""

    def move(self, event: SubscriptionEvent) -> None:
        """Applies an event. Raises KeyError for one that cannot happen in the current state."""
        self.state = TRANSITIONS[self.state][event]
