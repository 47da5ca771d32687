"""The states of a connection to the HTTP server, and what leads from one to another.

    IDLE --REQUEST_READ--> ANSWERING --ALL_ANSWERED--> IDLE
    ANSWERING --BODIES_FULL--> FULL --BODIES_TAKEN--> ANSWERING     (reading is paused in FULL, and nowhere else)
    ANSWERING --READING_STOPPED--> LAST --DONE--> CLOSING --LOST--> CLOSED
    ANSWERING --CLIENT_SHUT_DOWN--> LEFT --DONE--> CLOSING
    ANSWERING --DONE_EARLY--> LINGERING --LOST--> CLOSED

`connection` runs on this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class ConnectionState(Enum):
    """What a connection does, and whether it reads."""

    __hash__ = object.__hash__  # Enum's own is written in Python, and each request takes two edges

    IDLE = "nothing to answer: reads on, until the idle deadline"
    ANSWERING = "requests are answered, in order: reads on"
    FULL = "requests are answered: reading is paused until a handler takes a body"
    LAST = "the last requests are answered: nothing more is read"
    LEFT = "the client has shut down its side: what it asked before is answered"
    LINGERING = "the last response was sent before the client had sent all: what comes is thrown away"
    CLOSING = "all is answered: the client takes what was written"
    CLOSED = "the connection is gone"


class ConnectionEvent(Enum):
    """What happens to a connection."""

    __hash__ = object.__hash__

    REQUEST_READ = "a request was read, and there was none to answer"
    BODIES_FULL = "more bytes than MAX_UNREAD wait for handlers"
    BODIES_TAKEN = "no more bytes than MAX_UNREAD wait for handlers"
    ALL_ANSWERED = "no request is left to answer"
    READING_STOPPED = "nothing more may be read"
    CLIENT_SHUT_DOWN = "the client sends no more"
    DONE = "nothing is left to do"
    DONE_EARLY = "nothing is left to do, though the client may still be sending"
    LOST = "the transport is closed"


# By these names, since an attribute of an enum costs a call of its metaclass.
IDLE, ANSWERING, FULL, LAST, LEFT, LINGERING, CLOSING, CLOSED = ConnectionState
REQUEST_READ, BODIES_FULL, BODIES_TAKEN, ALL_ANSWERED, READING_STOPPED, CLIENT_SHUT_DOWN, DONE, DONE_EARLY, LOST = (
    ConnectionEvent
)

TRANSITIONS: Final[Mapping[ConnectionState, Mapping[ConnectionEvent, ConnectionState]]] = {
    IDLE: {
        REQUEST_READ: ANSWERING,
        DONE: CLOSING,
        DONE_EARLY: LINGERING,
        LOST: CLOSED,
    },
    ANSWERING: {
        BODIES_FULL: FULL,
        ALL_ANSWERED: IDLE,
        READING_STOPPED: LAST,
        CLIENT_SHUT_DOWN: LEFT,
        DONE: CLOSING,
        DONE_EARLY: LINGERING,
        LOST: CLOSED,
    },
    FULL: {
        BODIES_TAKEN: ANSWERING,
        READING_STOPPED: LAST,
        CLIENT_SHUT_DOWN: LEFT,
        DONE: CLOSING,
        DONE_EARLY: LINGERING,
        LOST: CLOSED,
    },
    LAST: {
        CLIENT_SHUT_DOWN: LEFT,
        DONE: CLOSING,
        DONE_EARLY: LINGERING,
        LOST: CLOSED,
    },
    LEFT: {DONE: CLOSING, LOST: CLOSED},
    LINGERING: {DONE: CLOSING, LOST: CLOSED},
    CLOSING: {LOST: CLOSED},
    CLOSED: {},
}
